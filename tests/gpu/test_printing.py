"""Kernels that use what Inductor does not print by itself, compiled on a real GPU."""

import pytest
import torch
from torch import Tensor

import opforge
from support import printed_kernels


@pytest.mark.parametrize("name", printed_kernels.LACKING)
def test_a_kernel_that_inductor_would_print_in_part_is_compiled(name, op_name):
    kernel = printed_kernels.LACKING[name]
    given = {} if name == "by_tuned" else {"BLOCK": 64}

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernel[(1,)](x, out, x.numel(), **given)
        return out

    op = opforge.op(body, name=op_name())
    assert opforge.info(op).mode == "triton_op"
    x = torch.linspace(0.1, 1, 64, device="cuda")
    torch.compiler.reset()
    compiled = torch.compile(lambda x: op(x + 0), fullgraph=True)
    torch.testing.assert_close(compiled(x), body(x), rtol=0, atol=0)
