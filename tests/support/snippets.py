"""Reads the code blocks of a documentation page, in the order in which a reader runs them.

The info string of a fence says what becomes of a block, a comment before it what it needs:

    ```python                   runs in the page's namespace, which its Python blocks share
    ```python title="ops.py"    is written to the page's folder and imported
    ```bash                     runs in that folder; so does ```console, its lines with `$ `
    ```c title="main.c"         is written; without a title, other languages only illustrate

    <!-- needs-gpu -->          runs in tests/gpu alone
    <!-- without-gpu -->        does not run there, but everywhere else
    <!-- needs-package: jax --> runs where that package is installed
    <!-- interpret -->          once per page: Triton's interpreter runs its kernels
    <!-- append -->             adds to the file of that title, as a reader would
    <!-- not-run: reason -->    needs the network, or would run the suite again
    <!-- raises: ErrorClass --> ends in this error; for a single `opforge` command, too, and for
                                any other CalledProcessError
    <!-- output -->             before ```text: what the block above printed, or its error's text;
                                `pytest --accept` writes it anew
    <!-- hidden: python         set-up that a reader has already; up to the closing -->
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = {"python", "py"}
SHELL = {"bash", "sh", "shell"}
CONSOLE = "console"

_FENCE = re.compile(r"^(?P<indent>\s*)(?P<marks>`{3,})(?P<language>[\w+-]*)(?P<rest>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_DIRECTIVE = re.compile(r"^\s*<!--\s*(?P<name>[\w-]+)(?::\s*(?P<value>.*?))?\s*-->\s*$")
_HIDDEN = re.compile(r"^<!--\s*hidden:\s*(?P<language>\w+)\s*$")


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its first line of code."""

    language: str
    text: str
    line: int
    title: str | None = None
    needs_gpu: bool = False
    without_gpu: bool = False
    package: str | None = None
    append: bool = False
    not_run: str | None = None
    raises: str | None = None
    is_output: bool = False

    @property
    def runs(self) -> bool:
        code = self.language in PYTHON | SHELL | {CONSOLE}
        return self.not_run is None and (code or self.is_output or self.title is not None)

    @property
    def commands(self) -> str:
        """What a shell runs; a console shows its output as well."""
        if self.language != CONSOLE:
            return self.text
        lines = self.text.splitlines()
        kept = [i for i, line in enumerate(lines) if line.startswith("$ ") or _continued(lines, i)]
        return "\n".join(lines[i].removeprefix("$ ") for i in kept)


@dataclass(frozen=True)
class Page:
    """A page's blocks, and whether Triton's interpreter runs its kernels."""

    path: Path
    blocks: tuple[Block, ...]
    interpret: bool

    @property
    def name(self) -> str:
        return os.path.relpath(self.path, ROOT)

    @property
    def runs(self) -> bool:
        return any(block.runs and not block.needs_gpu for block in self.blocks)

    @property
    def needs_gpu(self) -> bool:
        return any(block.runs and block.needs_gpu for block in self.blocks)


def all_pages() -> list[Page]:
    """README and every page of the site."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [read_page(path) for path in found]


def read_page(path: Path) -> Page:
    lines = path.read_text().splitlines()
    interpret = any(_directive(line) == ("interpret", None) for line in lines)
    return Page(path, tuple(_blocks(lines)), interpret)


def _blocks(lines: list[str]) -> Iterator[Block]:
    given: dict[str, str | None] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        fence, hidden = _FENCE.match(line), _HIDDEN.match(line)
        if hidden:
            end = lines.index("-->", at)
            yield _block(hidden["language"], "", lines, at, end, "", given)
            at, given = end, {}
        elif fence:
            end = _end(lines, at, fence)
            yield _block(fence["language"], fence["rest"], lines, at, end, fence["indent"], given)
            at, given = end, {}
        elif directive := _directive(line):
            given[directive[0]] = directive[1]
        elif line.strip():
            given = {}
        at += 1


def _block(  # noqa: PLR0917  # where a block stands, and what was said of it
    language: str,
    rest: str,
    lines: list[str],
    at: int,
    end: int,
    indent: str,
    given: dict[str, str | None],
) -> Block:
    title = _TITLE.search(rest)
    return Block(
        language=language,
        text="\n".join(line.removeprefix(indent) for line in lines[at + 1 : end]) + "\n",
        line=at + 2,
        title=title[1] if title else None,
        needs_gpu="needs-gpu" in given,
        without_gpu="without-gpu" in given,
        package=given.get("needs-package"),
        append="append" in given,
        not_run=given.get("not-run"),
        raises=given.get("raises"),
        is_output="output" in given,
    )


def _end(lines: list[str], at: int, fence: re.Match[str]) -> int:
    closing = fence["indent"] + fence["marks"]
    return next(i for i in range(at + 1, len(lines)) if lines[i].rstrip() == closing)


def _directive(line: str) -> tuple[str, str | None] | None:
    found = _DIRECTIVE.match(line)
    return (found["name"], found["value"]) if found else None


def _continued(lines: list[str], at: int) -> bool:
    """Whether a line goes on with the command above it, which ends in a backslash."""
    while at > 0 and lines[at - 1].endswith("\\"):
        at -= 1
        if lines[at].startswith("$ "):
            return True
    return False
