"""Triton's interpreter, as opforge mends it, against torch."""

from pathlib import Path

from support import launching
from support.processes import run_python

PROGRAM = Path(launching.__file__).with_name("bf16_program.py")


def test_the_interpreter_computes_as_torch_does():
    run_python(str(PROGRAM), TRITON_INTERPRET="1")
