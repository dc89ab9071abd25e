"""opforge where Triton or torch is not installed."""

import subprocess
import sys

import pytest

from support.processes import TORCH_ALONE, environment, python

# Importing a package whose name stands for None raises ModuleNotFoundError.
WITHOUT = "import sys; sys.modules[{!r}] = None; "
MAIN = "from opforge.cli import main; main(sys.argv[1:])"
COMMAND = WITHOUT + MAIN
PLAIN_OPS = """
from dataclasses import dataclass
import torch, opforge

@dataclass(frozen=True)
class Cfg:
    scale: float = 2.0

@opforge.op("absent::twice")
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@opforge.op("absent::scaled", backward=lambda ctx, grad: (grad * 2, None))
def scaled(x: torch.Tensor, cfg: Cfg) -> torch.Tensor:
    return x * cfg.scale

@opforge.op("absent::grow", mutates_args=["x"])
def grow(x: torch.Tensor) -> None:
    x.add_(1)
"""

USE_PLAIN_OPS = """
class Model(torch.nn.Module):
    def forward(self, x):
        return twice(x) + scaled(x, Cfg())

x, model = torch.ones(3), Model()
expected = 4 * x
torch.testing.assert_close(model(x), expected)
for backend in ("aot_eager", "inductor"):
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
leaf = torch.ones(3, requires_grad=True)
torch.compile(scaled, backend="aot_eager", fullgraph=True)(leaf, Cfg()).sum().backward()
torch.testing.assert_close(leaf.grad, 2 * x)
grown = torch.ones(3)
torch.compile(grow, backend="aot_eager", fullgraph=True)(grown)
torch.testing.assert_close(grown, 2 * x)
for strict in (False, True):
    exported = torch.export.export(model, (x,), strict=strict)
    torch.testing.assert_close(exported.module()(x), expected)
assert model(x.to("meta")).shape == x.shape
assert opforge.find_kernels(twice).kernels == ()
print("done")
"""


def run(code, *arguments, program=sys.executable, **variables):
    return subprocess.run(
        [program, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, check=False, env=environment(**variables),
    )  # fmt: skip


def test_plain_torch_ops_work_everywhere_without_triton(tmp_path):
    script = tmp_path / "plain_ops.py"
    script.write_text(WITHOUT.format("triton") + PLAIN_OPS + USE_PLAIN_OPS)
    # torch alone has not imported Triton.
    code = f"import runpy; runpy.run_path({str(script)!r})"
    ran = run(code, program=python(), **TORCH_ALONE)
    assert ran.stdout.split() == ["done"], ran.stderr


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_command_that_needs_a_package_says_that_it_is_missing(tmp_path, package):
    file = tmp_path / "ops.py"
    file.write_text(PLAIN_OPS)
    # With torch alone, Triton is not imported before.
    program = {"program": python(), **TORCH_ALONE} if package == "triton" else {}
    ran = run(COMMAND.format(package), "build", file, **program)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"Error: {package} is not installed\n  fix: pip install ")


@pytest.mark.parametrize("package", ["auditwheel", "packaging"])
@pytest.mark.parametrize("command", [["wheel", "dist"], ["build", "ops.py", "--wheel"]])
def test_a_wheel_says_which_extra_it_needs(package, command):
    ran = run(COMMAND.format(package), *command)
    assert ran.returncode == 1
    assert ran.stderr.endswith("\n  fix: pip install 'opforge[wheel]'\n"), ran.stderr


def test_the_doctor_says_that_torch_is_missing():
    ran = run(COMMAND.format("torch"), "doctor")
    assert ran.returncode == 1, ran.stderr
    (fix,) = [
        line for line in ran.stdout.splitlines() if line.endswith(": pip install 'torch>=2.11'")
    ]
    assert fix.startswith("torch, ")
    assert "eager, " in fix


@pytest.mark.parametrize("kind", ["ImportError", "OSError"])
@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_command_says_that_a_package_does_not_import(tmp_path, package, kind):
    file = tmp_path / "ops.py"
    file.write_text(PLAIN_OPS)
    source = tmp_path / "broken" / package / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("from . import _C\n")
    source.with_name("_C.py").write_text(f"raise {kind}('libx.so: cannot open')\n")
    program = {"program": python(), **TORCH_ALONE} if package == "triton" else {}
    path = f"import sys; sys.path.insert(0, {str(tmp_path / 'broken')!r}); "
    ran = run(path + MAIN, "build", file, **program)
    assert ran.returncode == 1
    told = f"Error: {package} is installed, but does not import: libx.so: cannot open\n"
    assert ran.stderr.startswith(f"{told}  fix: pip install --force-reinstall '{package}>=")
