"""A sharding rule makes an op run on DTensors; a wrong one leaves nothing behind."""

import os
import subprocess
import sys

import pytest
from torch import Tensor

import opforge
from opforge.errors import BadOption

# In a process of its own, because a process group is for good.
SCRIPT = """
import torch, torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
import opforge

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
seen = []

def rule(x, scale):
    return [([Replicate()], [Replicate(), None]), ([Shard(0)], [Shard(0), None])]

@opforge.op("sharded::scaled", sharding=rule)
def scaled(x: Tensor, scale: float) -> Tensor:
    seen.append(type(x).__name__)
    return x * scale

x = torch.arange(6.0).reshape(3, 2)
out = scaled(distribute_tensor(x, mesh, [Shard(0)]), 2.0)
assert out.placements == (Shard(0),), out.placements
torch.testing.assert_close(out.full_tensor(), x * 2)
assert seen[-1] == "Tensor", seen
dist.destroy_process_group()
print("sharded")
"""


def test_an_op_with_a_sharding_rule_runs_on_dtensors():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "sharded" in run.stdout, run.stderr


def test_a_sharding_rule_that_is_none_leaves_the_name_free(op_name):
    name = op_name()

    def op(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(BadOption, match="is no rule") as caught:
        opforge.op(name, sharding="Shard(0)")(op)
    assert name in str(caught.value)
    opforge.op(name)(op)
