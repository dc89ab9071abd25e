"""A sharding rule makes an op run on DTensors; a wrong one leaves nothing behind."""

import subprocess

import pytest
from torch import Tensor

import opforge
from opforge.errors import BadOption
from support.processes import environment, python

# In fresh processes, because a process group cannot be undone.
TWO_RANKS = """
import sys, torch, torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.fsdp import fully_shard
import opforge

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
shapes = []

def rule(x, scale):
    return [([placement], [placement, None]) for placement in (Replicate(), Shard(0), Shard(1))]

def backward(ctx, grad):
    return grad * ctx.scale, None

def save(ctx, inputs, output):
    ctx.scale = inputs[1]

@opforge.op("sharded::scaled", sharding=rule, backward=backward, setup_context=save)
def scaled(x: Tensor, scale: float = 2.0) -> Tensor:
    shapes.append(tuple(x.shape))
    return x * scale

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
    def forward(self, x):
        return self.down(scaled(self.up(x)))

x = torch.arange(12.0).reshape(3, 4)
whole = Model()
expected = whole(x)
expected.sum().backward()
shapes.clear()

out = scaled(distribute_tensor(x, mesh, [Shard(1)]))
assert out.placements == (Shard(1),)
torch.testing.assert_close(out.full_tensor(), x * 2)
assert shapes[-1] == (3, 2), shapes

plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
parallel = parallelize_module(Model(), mesh, plan)
shapes.clear()
got = parallel(x)
torch.testing.assert_close(got, expected)
assert (3, 4) in shapes, shapes
got.sum().backward()
torch.testing.assert_close(parallel.up.weight.grad.full_tensor(), whole.up.weight.grad)

sharded = Model()
fully_shard(sharded, mesh=mesh)
got = sharded(x)
torch.testing.assert_close(got, expected)
got.sum().backward()
torch.testing.assert_close(sharded.up.weight.grad.full_tensor(), whole.up.weight.grad)
dist.destroy_process_group()
print("fine")
"""


def test_two_ranks_run_it_on_their_shards_under_tensor_parallelism_and_fsdp(tmp_path):
    ranks = [
        subprocess.Popen(
            [python(), "-c", TWO_RANKS, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for rank in range(2)
    ]
    done = [rank.communicate(timeout=240) for rank in ranks]
    assert [out.strip() for out, _ in done] == ["fine", "fine"], done


def test_an_invalid_sharding_rule_leaves_the_name_free(op_name):
    name = op_name()

    def op(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(BadOption, match="is not a rule") as caught:
        opforge.op(name, sharding="Shard(0)")(op)
    assert name in str(caught.value)
    opforge.op(name)(op)
