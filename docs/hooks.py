"""Fills in what the site takes from code, and lets pages link to files of the repository.

`<!-- generated: NAME -->` on a page is replaced with the text that NAME below makes.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PLOTS = ROOT / "benchmarks/plots"
SOURCE = ROOT / "src"

_MARK = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
_NAME = re.compile(r"^::: (opforge[\w.]*)\.(\w+)$", re.MULTILINE)
_ERROR_CLASS = re.compile(r"^## (?!OpforgeWarning)(\w+)\n(?:(?!## ).*\n)*", re.MULTILINE)
_MISTAKE = re.compile(r"^### (.*)\n((?:(?!###? ).*\n?)*)", re.MULTILINE)
_HIDDEN = re.compile(r"^<!-- hidden:.*?^-->$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)\)")


def on_startup(**_: Any) -> None:
    """The checkout's opforge is documented, wherever another may be installed."""
    sys.path.insert(0, str(SOURCE))


def on_files(files: Files, config: Any) -> Files:
    """Plots are drawn by benchmarks/ops.py, outside of the pages."""
    for plot in sorted(PLOTS.glob("*.png")):
        uri = f"gallery/plots/{plot.name}"
        files.append(File.generated(config, uri, abs_src_path=str(plot)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = Path(page.file.abs_src_path).parent
    filled = _NAME.sub(_at_home, _MARK.sub(_generated, markdown))
    if page.file.src_uri == "reference/errors.md":
        filled = _ERROR_CLASS.sub(_error_class, filled)
    return _LINK.sub(lambda link: _to_file(link, folder), filled)


def _at_home(name: re.Match[str]) -> str:
    """The function behind a name: in the source, which is all that is read, check is a folder."""
    value = getattr(importlib.import_module(name[1]), name[2])
    home = f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else None
    public = f"{name[1]}.{name[2]}"
    return (
        f"::: {home or public}\n    options:\n      heading: {public}\n      toc_label: {name[2]}\n"
    )


def _to_file(link: re.Match[str], folder: Path) -> str:
    """Name a repository file that is not a page of the site, instead of linking to it."""
    target = (folder / link[2]).resolve()
    if target.is_relative_to(ROOT / "docs"):
        return link[0]
    if not target.exists():
        raise PluginError(f"{link[0]} leads to {target}, which does not exist")
    return f"`{target.relative_to(ROOT)}`"


def _generated(mark: re.Match[str]) -> str:
    return "\n".join(_GENERATORS[mark[1]]())


def _error_class(section: re.Match[str]) -> str:
    """A class with all its mistakes: those of the page, and of the tests' page of others."""
    from opforge import errors  # noqa: PLC0415 - on_startup finds it first

    cls = getattr(errors, section[1])
    kinds = " and ".join(f"`{b.__name__}`" for b in cls.__bases__ if b is not errors.OpforgeError)
    others = (ROOT / "tests/docs/mistakes.md").read_text()
    examples = dict(_MISTAKE.findall(f"{others}\n{section[0]}"))
    shown = "\n".join(
        f"### {mistake}\n{_HIDDEN.sub('', examples[mistake])}\n```text\n{_message(mistake)}\n```\n"
        for mistake in errors.mistakes[cls]
    )
    return f"## {section[1]}\n\n{inspect.getdoc(cls)} Derives from {kinds}.\n\n{shown}\n"


def _message(mistake: str) -> str:
    """What an example says when it is run, which tests compare."""
    texts = _golden("errors.txt") + "\n" + _golden("mistakes.txt")
    return texts.partition(f"### {mistake}\n")[2].partition("\n### ")[0].strip()


def _commands() -> Iterator[str]:
    from opforge.cli import main  # noqa: PLC0415 - on_startup finds it first

    for name, command in sorted(main.commands.items()):
        context = click.Context(command, info_name=f"opforge {name}")
        usage = " ".join(["opforge", name, *command.collect_usage_pieces(context)])
        yield f"\n## opforge {name}\n\n```text\n{usage}\n```\n"
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            # Below a backspace click wraps nothing: an example.
            if paragraph.startswith("\b"):
                yield f"```text{paragraph.removeprefix(chr(8))}\n```\n"
            else:
                yield f"{paragraph}\n"
        yield from _options(command, context)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    yield "| option | |\n|---|---|"
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            described = parameter.get_help_record(context)
            assert described is not None, f"{parameter.name} is hidden"
            names, text = (part.replace("|", "\\|") for part in described)
            yield f"| `{names}` | {text} |"


def _environment() -> Iterator[str]:
    from opforge.environment import VARIABLES  # noqa: PLC0415 - on_startup finds it first

    yield "| variable | default | what it does |"
    yield "|---|---|---|"
    for variable in VARIABLES:
        yield f"| `{variable.name}` | {variable.default} | {variable.purpose} |"


def _patches() -> Iterator[str]:
    patches = importlib.import_module("opforge._compat.patches")
    yield "| replaced | why | during | undone |\n|---|---|---|---|"
    for patch in patches.table():
        names = ", ".join(f"`{name}`" for name in patch.names)
        yield f"| `{patch.owner}`: {names} | {patch.why} | {patch.scope} | {patch.undone} |"


def _c_types() -> Iterator[str]:
    """What the headers of all libraries share, up to what only compilers need."""
    abi = SOURCE / "opforge/native/runtime/include/opforge/abi.h"
    text = abi.read_text() if abi.exists() else _header()
    shared = text[text.index("typedef enum {\n    OPFORGE_OK") : text.index("#if !defined(DLPACK")]
    yield from ("```c", shared.removesuffix("#endif\n\n").strip(), "```")


def _c_library() -> Iterator[str]:
    text = _header()
    yield from _functions(text[text.index("/* Linking fails") : text.index("\n/* The sum of")])


def _c_operator() -> Iterator[str]:
    text = _header()
    yield from _functions(text[text.index("/* The sum of") : text.index("/* demo::matmul")])


def _c_parameters() -> Iterator[str]:
    text = _header()
    start = text.index("/* demo::everything")
    yield from ("```c", text[start : text.index(";", start) + 1], "```")


def _functions(text: str) -> Iterator[str]:
    """A heading, the comment as prose and the declarations, for each comment of a header."""
    for comment, declared in re.findall(r"/\*(.*?)\*/\n(.*?)(?=\n/\*|\Z)", text, re.DOTALL):
        names = [n for n in re.findall(r"\b(demo_\w+)\(", declared) if n in declared]
        yield f"\n### {', '.join(f'`{name}`' for name in names)}\n"
        yield from _prose(comment)
        yield from ("\n```c", declared.strip(), "```")


def _prose(comment: str) -> Iterator[str]:
    lines = [line.strip().removeprefix("*") for line in comment.strip().splitlines()]
    listed = any(line.startswith("   ") for line in lines)
    yield from (
        ("```text", *(line.strip() for line in lines), "```") if listed else map(str.strip, lines)
    )


def _c_source() -> Iterator[str]:
    yield from ("```c", _golden("op_matmul.c"), "```")


def _c_dispatch() -> Iterator[str]:
    yield from ("```c", _golden("several_demo_dispatch.inc"), "```")


def _header() -> str:
    return _golden("demo.h")


def _golden(name: str) -> str:
    (file,) = (ROOT / "tests").rglob(f"golden/{name}")
    return file.read_text()


_GENERATORS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": _commands,
    "environment": _environment,
    "patches": _patches,
    "c-types": _c_types,
    "c-library": _c_library,
    "c-operator": _c_operator,
    "c-parameters": _c_parameters,
    "c-source": _c_source,
    "c-dispatch": _c_dispatch,
}
