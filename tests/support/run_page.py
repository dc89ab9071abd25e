"""Runs the blocks of one page, in a process and a folder of its own.

python run_page.py docs/install.md          without those that need a GPU
python run_page.py --gpu docs/install.md    all of them
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from pathlib import Path

from processes import python
from snippets import PYTHON, ROOT, Block, Page, read_page

# A reader works in a checkout, where these lie beside what the page writes.
# The messages of a page of errors, which does not show them itself.
GOLDEN = ROOT / "tests" / "docs" / "golden"
CHECKOUT = ("examples", "ops", "benchmarks")


def main() -> None:
    *options, path = sys.argv[1:]
    page = read_page(Path(path).resolve())
    with tempfile.TemporaryDirectory(prefix="opforge-page-") as folder:
        os.chdir(folder)
        _equip(Path(folder), page)
        run = Run(page, Path(folder).resolve())
        for block in page.blocks:
            elsewhere = block.without_gpu if "--gpu" in options else block.needs_gpu
            if block.runs and not elsewhere and _is_installed(block.package):
                sys.stdout.write(f"{page.name}:{block.line}\n")
                sys.stdout.flush()
                run.block(block)
        golden = GOLDEN / f"{page.path.stem}.txt"
        wrong = _compared(golden, run.messages) if golden.exists() else []
        if "--accept" in options:
            run.accept()
            if golden.exists():
                _accept(golden, run.messages)
        elif run.changed or wrong:
            sys.exit("\n".join([*run.differences(), *wrong]))


def _compared(golden: Path, messages: Mapping[str, str]) -> list[str]:
    expected = _read_golden(golden)
    more = [f"{golden.name} has no {heading}" for heading in messages if heading not in expected]
    more += [f"nothing raises {heading}" for heading in expected if heading not in messages]
    return more + [
        f"{heading} of {golden.name} is now:\n{text}"
        for heading, text in messages.items()
        if heading in expected and not _matches(expected[heading], text)
    ]


def _accept(golden: Path, messages: Mapping[str, str]) -> None:
    old = _read_golden(golden)
    kept = {h: old[h] if _matches(old.get(h, ""), text) else text for h, text in messages.items()}
    golden.write_text("\n".join(f"{heading}\n{text.strip()}\n" for heading, text in kept.items()))


def _read_golden(golden: Path) -> dict[str, str]:
    parts = re.split(r"^(### .*)\n", golden.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _matches(expected: str, printed: str) -> bool:
    """Whether a text is what was expected; "..." stands for what differs between versions."""
    pattern = re.escape(expected.strip()).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, printed.strip()) is not None


def _is_installed(package: str | None) -> bool:
    return package is None or importlib.util.find_spec(package) is not None


def _equip(folder: Path, page: Page) -> None:
    written = {Path(block.title).parts[0] for block in page.blocks if block.title}
    for name in set(CHECKOUT) - written:
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "plots")
        )
    commands = folder / ".bin"
    commands.mkdir()
    for name, arguments in {"opforge": "-m opforge ", "python": "", "pytest": "-m pytest "}.items():
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{python()}" {arguments}"$@"\n')
        script.chmod(0o755)
    os.environ["PATH"] = f"{commands}{os.pathsep}{os.environ['PATH']}"
    # In place of this script's folder, whose modules are not the reader's.
    sys.path[0] = str(folder)


class Run:
    """One page's blocks, one after the other, and what the last of them printed."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.printed = ""
        self.changed: dict[Block, str] = {}
        # By heading, what errors say that the page does not show.
        self.messages: dict[str, str] = {}
        self.namespace = types.ModuleType("page")
        sys.modules["page"] = self.namespace

    def block(self, block: Block) -> None:
        if block.is_output:
            if not _matches(block.text, self.printed):
                self.changed[block] = self.printed.strip() + "\n"
        elif block.raises:
            self.printed = self._plain(str(self._error(block)))
            self.messages[self._heading(block)] = self.printed
        else:
            self.printed = self._plain(self._do(block) or "")

    def _heading(self, block: Block) -> str:
        above = self.page.path.read_text().splitlines()[: block.line]
        return next((line for line in reversed(above) if line.startswith("### ")), "")

    def _error(self, block: Block) -> BaseException:
        try:
            self._do(block)
        except Exception as error:
            # The command prints errors of opforge as messages of click.
            cause = error.__cause__ if type(error).__name__ == "ClickException" else error
            if type(cause).__name__ != block.raises:
                raise
            return cause
        raise AssertionError(f"{self.page.name}:{block.line} does not raise {block.raises}")

    def _do(self, block: Block) -> str | None:
        if block.title:
            _write(block)
            if block.title.endswith(".py") and "/" not in block.title:
                _import(block.title.removesuffix(".py"))
        elif block.language in PYTHON:
            self._execute(block)
        elif block.raises not in {None, "CalledProcessError"}:
            _command(block.commands)
        else:
            return _shell(block.commands)
        return None

    def _execute(self, block: Block) -> None:
        # A file, because Triton and opforge read the source of functions; its lines are the page's.
        file = self._file(block)
        file.parent.mkdir(exist_ok=True)
        text = "\n" * (block.line - 1) + block.text
        file.write_text(text)
        code = compile(text, str(file), "exec", dont_inherit=True)
        exec(code, self.namespace.__dict__)

    def _file(self, block: Block) -> Path:
        return self.folder / ".blocks" / f"{self.page.path.stem}_{block.line}.py"

    def _plain(self, text: str) -> str:
        """Without what only this run has: its folder, and the place of a block on its page."""
        text = text.replace(f"{self.folder}/", "").replace(str(self.folder), ".")
        text = re.sub(r"\.blocks/\w+_(\d+)\.py(?::(\d+))?", _in_block, text)
        text = re.sub(rf"{tempfile.gettempdir()}/opforge-[\w-]+", "/tmp/opforge", text)
        text = re.sub(rf"{ROOT}/src/|LD_PRELOAD=\S+ ?", "", text.replace(sys.executable, "python"))
        # What torch adds to an error of a node that it traces.
        return text.partition("\n\nWhile executing %")[0]

    def differences(self) -> Iterator[str]:
        for block, found in self.changed.items():
            yield f"{self.page.name}:{block.line} is not what was printed:\n{found}"

    def accept(self) -> None:
        lines = self.page.path.read_text().splitlines(keepends=True)
        for block, found in reversed(self.changed.items()):
            end = block.line - 1 + len(block.text.splitlines())
            lines[block.line - 1 : end] = [found]
        self.page.path.write_text("".join(lines))


def _in_block(place: re.Match[str]) -> str:
    return f"ops.py:{int(place[2]) - int(place[1]) + 1}" if place[2] else "ops.py"


def _command(text: str) -> None:
    """A command of opforge's in this process, for the error behind its message."""
    from opforge.cli import main  # noqa: PLC0415 - pages without such commands need no opforge

    main(shlex.split(text)[1:], standalone_mode=False)


def _shell(text: str) -> str:
    # A command that wants the interpreter says so itself.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    sys.stdout.write(done.stdout)
    done.check_returncode()
    return done.stdout


def _write(block: Block) -> None:
    file = Path(block.title)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a" if block.append else "w") as out:
        out.write(block.text)


def _import(name: str) -> None:
    importlib.invalidate_caches()
    if name in sys.modules:
        importlib.reload(sys.modules[name])
    else:
        importlib.import_module(name)


if __name__ == "__main__":
    main()
