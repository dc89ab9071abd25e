"""A wheel on a GPU: operators in eager, differentiated, compiled and exported, without opforge."""

import zipfile

import pytest

from opforge import native
from opforge.shipping import command
from support.gpu.arch import arch_name
from support.native import kinds
from support.processes import run_python
from support.shipped_child import HEAD

pytest.importorskip("auditwheel", reason="opforge[wheel] is not installed")

CHILD = """
import kinds, torch

def reference(x, beta):
    return x * torch.sigmoid(beta * x)

x = torch.randn(1000, device="cuda", requires_grad=True)
factor = torch.randn(1000, device="cuda")
(expected,) = torch.autograd.grad((reference(x, 1.5) * factor).sum(), x)
for run in (kinds.swish, torch.ops.kinds.swish, torch.compile(kinds.swish, fullgraph=True)):
    out = run(x, 1.5)
    (found,) = torch.autograd.grad((out * factor).sum(), x)
    torch.testing.assert_close(out, reference(x, 1.5))
    torch.testing.assert_close(found, expected)

class Model(torch.nn.Module):
    def forward(self, x):
        return kinds.swish(x, 1.5)

n = torch.export.Dim("n", max=1 << 20)
program = torch.export.export(Model(), (x.detach(),), dynamic_shapes={"x": {0: n}})
other = torch.randn(77, device="cuda")
torch.testing.assert_close(program.module()(other), reference(other, 1.5))
assert "opforge" not in sys.modules
print("done")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    native.build([kinds.swish], folder / "dist", archs=[arch_name()], torch=True)
    command.run(str(folder / "dist"), str(folder / "wheelhouse"), "1.0")
    (wheel,) = (folder / "wheelhouse").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_its_operators_run_differentiate_compile_and_export(installed, tmp_path):
    program = tmp_path / "child.py"
    program.write_text(f"import sys\nsys.argv[1:] = ['opforge']\n{HEAD}{CHILD}")
    assert run_python(program, PYTHONPATH=str(installed)) == "done\n"
