"""The operators of ops/ as compilers see them, with the inputs that stand beside them.

The interpreter, with which `calls_checked.py` runs, shows a compiler no kernel.
"""

from click.testing import CliRunner

from opforge.cli import main
from support.processes import ROOT


def test_the_compiler_sees_the_kernels_and_what_they_write():
    said = CliRunner().invoke(main, ["check", str(ROOT / "ops"), "--only", "kernels visible"])
    assert said.exit_code == 0, said.output
    # Attention forward, also of packed sequences, and gemm are opaque, because of Hopper's paths.
    assert said.output.count("kernels visible: pass") == 26
    assert said.output.count("kernels visible: skipped") == 3
