"""Runs a documentation page in a child process, and shows what it printed where it fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .processes import python, without_machine_code
from .snippets import ROOT, Page

RUNNER = Path(__file__).with_name("run_page.py")


def run_page(page: Page, *, gpu: bool = False, accept: bool = False) -> None:
    """Op names, Triton's interpreter and imports of one page do not reach the next."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    environment.pop("TRITON_INTERPRET", None)
    if not gpu:
        environment |= {"CUDA_VISIBLE_DEVICES": "", **without_machine_code()}
    if page.interpret and not gpu:
        environment["TRITON_INTERPRET"] = "1"
    options = [*(["--gpu"] if gpu else []), *(["--accept"] if accept else [])]
    command = [python(), str(RUNNER), *options, str(page.path)]
    done = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.fail(f"{page.name} does not run:\n{done.stdout[-8000:]}", pytrace=False)
