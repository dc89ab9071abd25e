"""Runs the blocks of one page, in a process and a folder of its own.

python run_page.py docs/install.md          without those that need a GPU
python run_page.py --gpu docs/install.md    all of them
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

from snippets import PYTHON, ROOT, Block, Page, read_page

# A reader works in a checkout, where these lie beside what the page writes.
CHECKOUT = ("examples", "ops", "benchmarks")


def main() -> None:
    gpu, path = sys.argv[1] == "--gpu", Path(sys.argv[-1]).resolve()
    page = read_page(path)
    with tempfile.TemporaryDirectory(prefix="opforge-page-") as folder:
        os.chdir(folder)
        _equip(Path(folder), page)
        namespace = types.ModuleType("page")
        sys.modules["page"] = namespace
        for block in page.blocks:
            if block.runs and (gpu or not block.needs_gpu):
                sys.stdout.write(f"{page.name}:{block.line}\n")
                sys.stdout.flush()
                _run(block, page, namespace)


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
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        script.chmod(0o755)
    os.environ["PATH"] = f"{commands}{os.pathsep}{os.environ['PATH']}"
    sys.path.insert(0, str(folder))


def _run(block: Block, page: Page, namespace: types.ModuleType) -> None:
    try:
        _run_plainly(block, page, namespace)
    except Exception as error:
        if type(error).__name__ != block.raises:
            raise
    else:
        if block.raises:
            raise AssertionError(f"{page.name}:{block.line} did not raise {block.raises}")


def _run_plainly(block: Block, page: Page, namespace: types.ModuleType) -> None:
    if block.title:
        _write(block)
        if block.title.endswith(".py") and "/" not in block.title:
            _import(block.title.removesuffix(".py"))
    elif block.language in PYTHON:
        _execute(block, page, namespace)
    else:
        # A command that wants the interpreter says so itself.
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        command = ["bash", "-euo", "pipefail", "-c", block.commands]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=environment)


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


def _execute(block: Block, page: Page, namespace: types.ModuleType) -> None:
    # A file, because Triton and opforge read the source of functions; its lines are the page's.
    file = Path(".blocks", f"{page.path.stem}_{block.line}.py").resolve()
    file.parent.mkdir(exist_ok=True)
    text = "\n" * (block.line - 1) + block.text
    file.write_text(text)
    exec(compile(text, str(file), "exec"), namespace.__dict__)


if __name__ == "__main__":
    main()
