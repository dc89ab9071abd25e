"""Compiled for CUDA graphs that are split at an op, a model leaves no GPU memory behind.

In the manner of torch's test_graph_partition_with_memory_plan_reuse.
"""

import gc

import pytest
import torch
from torch import Tensor, nn

import opforge

ROWS, SIZE = 16, 128


def live_blocks():
    """How many blocks of the caching allocator are in use, in any of its pools."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return sum(
        block["state"] == "active_allocated"
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
    )


class Attention(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.before = nn.Linear(SIZE, SIZE, bias=False)
        self.after = nn.Linear(SIZE, SIZE, bias=False)
        self.norm = nn.RMSNorm(SIZE)

    def forward(self, x):
        x = self.norm(self.before(x))
        out = torch.empty_like(x)
        self.attend(x, x, x, out)
        return self.after(self.norm(out))


class Model(nn.Module):
    """Copies into one buffer between its parts, because a CUDA graph reads one address."""

    def __init__(self, attend):
        super().__init__()
        self.one, self.two = Attention(attend), Attention(attend)
        self.register_buffer("hidden", torch.zeros(ROWS, SIZE))

    def forward(self, x):
        rows = x.shape[0]
        self.hidden[:rows].copy_(x)
        x = self.one(self.hidden[:rows])
        # With its history, torch itself would keep the buffer: see tests/registration/test_memory.
        self.hidden[:rows].copy_(x.detach())
        return self.two(self.hidden[:rows])


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores", "ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("recording", [True, False])
def test_no_block_stays(recording):
    before = live_blocks()

    @opforge.op("cudagraph_tests::attend", mutates_args=["out"], tags=[torch.Tag.cudagraph_unsafe])
    def attend(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        out.copy_(q + k + v)

    def run():
        model = Model(attend).eval().cuda()
        compiled = torch.compile(model, mode="reduce-overhead")
        x = torch.randn(ROWS, SIZE, device="cuda")
        for _ in range(4):
            torch.testing.assert_close(compiled(x), model(x))

    try:
        with (
            torch.set_grad_enabled(recording),
            torch._inductor.config.patch(graph_partition=True),
        ):
            run()
        assert live_blocks() == before
    finally:
        opforge.unregister(attend)
