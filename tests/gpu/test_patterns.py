"""Every launch pattern of the corpus, for real: in eager, and compiled into one graph."""

import pytest
import torch
from torch import Tensor

import opforge
from support.launch_patterns import PATTERNS


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.name)
def test_it_is_transparent_and_right_in_eager_and_compiled(pattern, op_name):
    @opforge.op(op_name())
    def host(x: Tensor) -> Tensor:
        return pattern.fn(x)

    assert opforge.info(host).mode == "triton_op"
    named = {id(ref.kernel) for ref in opforge.info(host).kernels}
    assert named >= {id(kernel) for kernel in pattern.kernels}
    x = torch.randn(1000, device="cuda")
    torch.testing.assert_close(host(x), x * pattern.factor)
    compiled = torch.compile(lambda t: host(t) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(x), x * pattern.factor + 1)
    # Of several that it may launch, one was.
    assert any(ref.is_certain for ref in opforge.info(host).kernels)
