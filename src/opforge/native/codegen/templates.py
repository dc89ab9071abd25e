"""The C and CMake that are the same in every library."""

from __future__ import annotations

import string
from importlib import resources

_NATIVE = resources.files(__package__.rpartition(".")[0])


def fill(template: str, /, **values: object) -> str:
    """The template `templates/TEMPLATE.in` with its placeholders filled."""
    text = _NATIVE.joinpath("templates", f"{template}.in").read_text(encoding="utf-8")
    return string.Template(text).substitute({k: str(v) for k, v in values.items()})


def runtime() -> dict[str, str]:
    """The runtime's files, by name, as they are."""
    found = _NATIVE.joinpath("runtime").iterdir()
    files = {f.name: f for f in found if f.name.endswith((".c", ".h"))}
    return {name: files[name].read_text(encoding="utf-8") for name in sorted(files)}
