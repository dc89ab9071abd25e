"""What importing opforge, using its names and decorating load: never Inductor, Dynamo or Triton."""

import json
import pathlib
import subprocess
import sys

import opforge
from support.processes import TORCH_ALONE, environment, python

PREAMBLE = """
import json, sys
import torch
before = set(sys.modules)
import opforge
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, Optional
from torch import Tensor
"""

REPORT = """
heavy = ("torch._inductor", "torch._dynamo", "triton")
assert not before.intersection(heavy)
loaded = sorted(set(sys.modules) - before)
loaded = [m for m in loaded if m.startswith(heavy)]
print(json.dumps({"loaded": loaded, "opforge": opforge.__file__}))
"""


def loaded_by(code):
    """The heavy modules that a process with torch alone has loaded after `code`."""
    result = subprocess.run(
        [python(), "-c", PREAMBLE + code + REPORT],
        capture_output=True,
        text=True,
        check=False,
        env=environment(**TORCH_ALONE),
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert pathlib.Path(report["opforge"]) == pathlib.Path(opforge.__file__)
    return report["loaded"]


DECORATE = """
@dataclass(frozen=True)
class Cfg:
    weight: Tensor
    scale: float = 1.0
    bias: Optional[Tensor] = None

class Kind(Enum):
    A = "a"
    B = (1, 2)

class Pair(NamedTuple):
    left: Tensor
    right: Tensor

@opforge.op("cost::direct")
def direct(x: Tensor, n: int = 2) -> Tensor:
    return x * n

@opforge.op("cost::lowered", fake=["x"])
def lowered(x: Tensor, how: Literal["a", "b"] = "a", *, n: int = 2) -> Tensor:
    return x * n

@opforge.op("cost::flattened", fake=lambda x, cfg, kind=Kind.A, pair=None: torch.empty_like(x))
def flattened(x: Tensor, cfg: Cfg, kind: Kind = Kind.A, pair: Optional[Pair] = None) -> Pair:
    return Pair(x * cfg.scale, x + 1)

@opforge.op("cost::mutates", mutates_args=["x"])
def mutates(x: Tensor) -> None:
    x.add_(1)

@opforge.op(
    "cost::everything",
    backward=lambda ctx, g: g,
    setup_context=lambda ctx, inputs, output: None,
    vmap="sequential",
    autocast=torch.bfloat16,
    tags=torch.Tag.pt2_compliant_tag,
)
def everything(x: Tensor) -> Tensor:
    return x + 1

@opforge.magi.magi_register_custom_op("cost::magi")
def magi(x: Tensor) -> Tensor:
    return x + 1

@opforge.op("cost::schema", schema="(Tensor x) -> Tensor")
def schema(x):
    return x + 1
"""

CALL = """
x = torch.ones(2)
direct(x); lowered(x, "b"); flattened(x, Cfg(x)); mutates(x); everything(x); schema(x); magi(x)
y = torch.ones(2, requires_grad=True)
everything(y).sum().backward()
direct(y)
"""


def test_using_every_name_loads_nothing_heavy():
    assert loaded_by("for name in opforge.__all__: getattr(opforge, name)\n") == []


def test_decorating_does_not_wait_for_what_checks_and_packages():
    code = "import opforge; opforge.op\nprint(*sorted(m for m in sys.modules if 'opforge' in m))"
    result = subprocess.run(
        [python(), "-c", f"import sys; {code}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(**TORCH_ALONE),
    )
    loaded = result.stdout.split()
    assert "opforge.op" in loaded
    assert not {"opforge.check", "opforge.aoti_package", "opforge.cli"} & set(loaded)


def test_calling_in_eager_and_describing_load_nothing_heavy():
    describe = "for op in (direct, lowered, flattened): opforge.info(op), opforge.explain(op)\n"
    assert loaded_by(DECORATE + CALL + describe) == []


def test_the_check_itself_would_notice():
    assert "triton" in loaded_by("import triton\n")


def test_pytest_does_not_import_torch_because_opforge_is_installed():
    code = "import sys, opforge.testing; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), check=False)
    assert done.returncode == 0
