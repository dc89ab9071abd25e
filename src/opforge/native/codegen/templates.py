"""What is the same in every library: templates to fill, and the runtime as it is."""

from __future__ import annotations

import string
from importlib import resources

_NATIVE = resources.files(__package__.rpartition(".")[0])


def fill(template: str, /, **values: object) -> str:
    """The template `templates/TEMPLATE.in` with its placeholders filled."""
    text = _NATIVE.joinpath("templates", f"{template}.in").read_text(encoding="utf-8")
    return string.Template(text).substitute({k: str(v) for k, v in values.items()})


def with_constants(module: str, **values: str) -> str:
    """A module's text with the constants at its top, `LIBRARY = "mylib"`, as given."""
    for name, value in values.items():
        before = next(line for line in module.splitlines() if line.startswith(f"{name} = "))
        module = module.replace(before, f'{name} = "{value}"', 1)
    return module


def runtime(folder: str = "") -> dict[str, str]:
    """The files of `runtime/FOLDER`, by name, as they are."""
    found = _NATIVE.joinpath("runtime", folder).iterdir()
    files = {f.name: f for f in found if f.name.endswith((".c", ".h", ".hpp", ".py"))}
    return {name: files[name].read_text(encoding="utf-8") for name in sorted(files)}
