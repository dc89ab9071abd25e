"""Registers silu, runs it everywhere, and prints what opforge decided."""

import torch
from silu import silu

import opforge


def main() -> None:
    x = torch.randn(4, 128, requires_grad=True)
    expected = torch.nn.functional.silu(x)

    eager = silu(x)
    torch.testing.assert_close(eager, expected)
    print(f"eager          {tuple(eager.shape)} {eager.dtype}, as torch.nn.functional.silu")

    (grad,) = torch.autograd.grad(eager.sum(), x)
    (expected_grad,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(grad, expected_grad)
    print("autograd       gradient as torch.nn.functional.silu's")

    compiled = torch.compile(lambda t: silu(t) * 2, fullgraph=True, dynamic=True)
    for rows in (4, 7):
        t = torch.randn(rows, 128)
        torch.testing.assert_close(compiled(t), torch.nn.functional.silu(t) * 2)
    print("torch.compile  one full graph with dynamic shapes, sizes 4 and 7")

    torch.library.opcheck(silu, (x,))
    print("opcheck        schema, fake, autograd and aliasing hold")

    print()
    print(opforge.explain(silu))


if __name__ == "__main__":
    main()
