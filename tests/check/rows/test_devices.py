"""cuda graph, dtensor, native."""

import subprocess

import pytest
import torch
from torch import Tensor

import opforge
from opforge import native
from opforge.errors import BadOption
from support.checking import row
from support.launching import blocks, double, double_in_place
from support.native.compile_workers import lasting
from support.processes import environment, python


@pytest.fixture(scope="module", autouse=True)
def _lasting_workers():
    with lasting():
        yield


def add_one(x: Tensor) -> Tensor:
    return x + 1


def launch(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](x, out, x.numel(), BLOCK=64)
    return out


def test_declared_operators_are_built(op_name):
    op = opforge.op(op_name())(launch)
    native.declare(op, x=native.tensor("n", dtype="fp32"))
    found = row("native", op, torch.ones(2))
    assert found.status == "pass", found
    assert found.reason.endswith("kernel variants for sm_90")


def test_the_gpu_is_the_one_that_was_asked_for(op_name):
    op = opforge.op(op_name())(launch)
    native.declare(op, x=native.tensor("n", dtype="fp32"))
    reports = [opforge.check(op, torch.ones(2), only="native", arch="gfx942")]
    with opforge.target("gfx942"):
        reports.append(opforge.check(op, torch.ones(2), only="native"))
    for report in reports:
        assert report.rows[0].reason.endswith("kernel variants for gfx942")
    with pytest.raises(BadOption, match="'gfx9' is not a GPU architecture"):
        opforge.check(op, torch.ones(2), arch="gfx9")


def test_graphs_are_traced_for_the_gpu_that_was_asked_for(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernel = double if torch.version.hip else double_in_place
        given = (x, out) if torch.version.hip else (out,)
        kernel[blocks(x.numel())](*given, x.numel(), BLOCK=64)
        return out

    for arch, kernel in (("gfx942", "double"), ("sm_80", "double_in_place")):
        (found,) = opforge.check(op, torch.ones(2), only="kernels visible", arch=arch).rows
        assert found.reason == f"the graph launches {kernel}"


def test_native_is_skipped_in_the_interpreter_also_for_torch_calls(op_name, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    op = opforge.op(op_name())(add_one)
    native.declare(op, x=native.tensor("n", dtype="fp32"))
    found = row("native", op, torch.ones(2))
    assert found.status == "skipped"
    assert "Triton's interpreter, which compiles nothing" in found.reason


def test_an_operator_that_cannot_be_built_fails_with_the_reason(op_name):
    def ranked(x: torch.Tensor) -> torch.Tensor:
        return x.sort().values

    op = opforge.op(ranked, name=op_name())
    native.declare(op, x=native.tensor("n", dtype="fp32"))
    found = row("native", op, torch.ones(2))
    assert found.status == "fail"
    assert "it cannot be built for x fp32 1-d (aten.sort at" in found.reason
    assert "opforge.package" in found.fix


# In a fresh process, so that no other test's process group is in the way.
SCRIPT = """
import torch
from support.checking import row
from torch import Tensor
from torch.distributed.tensor import Partial, Replicate, Shard
import opforge

whole, split = Replicate(), Shard(0)
either = [([whole], [whole, None]), ([split], [split, None])]

@opforge.op("shards::scaled", sharding=lambda x, s: either)
def scaled(x: Tensor, s: float) -> Tensor:
    return x * s

@opforge.op("shards::total", sharding=lambda x: [([whole], [whole]), ([Partial()], [split])])
def total(x: Tensor) -> Tensor:
    return x.sum(0)

@opforge.op("shards::mistaken", sharding=lambda x: [([whole], [whole]), ([split], [split])])
def mistaken(x: Tensor) -> Tensor:
    return x - x.sum(0)

@opforge.op("shards::gathers", sharding=lambda x: [([whole], [whole])])
def gathers(x: Tensor) -> Tensor:
    return x - x.sum(0)

def puzzled(x):
    raise ValueError("which way?")

@opforge.op("shards::puzzled", sharding=puzzled)
def raises(x: Tensor) -> Tensor:
    return x + 1

x = torch.arange(10.0).reshape(5, 2)
rows = [row("dtensor", op, x) for op in (total, mistaken, gathers, raises)]
for found in (row("dtensor", scaled, x, 2.0), *rows):
    print(found.status, found.reason, found.fix, *found.notes, sep=" | ")
print(torch.distributed.is_initialized())
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
print(row("dtensor", total, x).reason)
torch.distributed.destroy_process_group()
"""


def test_dtensor_computes_shards_as_the_rule_says_and_compares_the_whole():
    done = subprocess.run(
        [python(), "-c", SCRIPT],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 7, done.stderr
    scaled, total, mistaken, gathers, raises, initialized, busy = lines
    assert scaled.startswith("pass | outputs placed S(0)")
    assert total.startswith("pass | outputs placed P")
    assert mistaken.startswith("fail | inputs split over two ranks: placed S(0), output 0: ")
    assert mistaken.endswith("correct sharding=")
    assert gathers.startswith("pass | outputs placed R")
    assert gathers.endswith("a batch split over ranks is gathered first")
    assert raises.startswith("fail")
    assert "which way?" in raises
    assert initialized == "False"
    assert busy == "a process group is open, but this row needs its own"
