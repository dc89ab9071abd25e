"""The operators of ops/ through `opforge check ops/`, with the inputs that stand beside them."""

import pytest
from click.testing import CliRunner

from opforge.cli import main
from support.ops.operators import ON_GPU
from support.processes import ROOT

# Their library is built and called by other tests. Compiling C++ for the CPU takes long. What a
# strict export adds is Dynamo, to which every operator is a call without a body there.
SKIPPED = "native,package" if ON_GPU else "native,package,compile,compile dynamic,export strict"


def test_every_row_of_every_operator():
    said = CliRunner().invoke(main, ["check", str(ROOT / "ops"), "--skip", SKIPPED])
    assert said.exit_code == 0, said.output
    assert "29 checked: 29 passed, 0 failed, 0 incomplete" in said.output


if ON_GPU:

    @pytest.mark.parametrize("name", ["add", "rotary"])
    def test_packaged(name):
        said = CliRunner().invoke(
            main, ["check", f"ops.{name}.op:{name}", "--only", "package", "--require", "package"]
        )
        assert said.exit_code == 0, said.output
