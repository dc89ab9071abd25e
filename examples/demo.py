"""Registers silu, shows what the compiler sees, and runs it everywhere.

The numbers come from the GPU, or, where there is none, from a second process in which Triton's
interpreter runs the kernels on the CPU.
"""

import os
import subprocess
import sys

import torch
from silu import silu

import opforge


class Model(torch.nn.Module):
    def forward(self, x):
        return silu(x) * 2


def see() -> None:
    """What is decided, and what the compiler is given, with no GPU needed."""
    print(opforge.explain(silu))
    print()
    exported = torch.export.export(
        Model(), (torch.randn(4, 128),), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}}
    )
    print(f"torch.export   {calls(exported)}")
    with opforge.target("sm_90"):
        decomposed = exported.run_decompositions(decompose_custom_triton_ops=True)
    print(f"decomposed     {calls(decomposed)}")


def calls(exported) -> str:
    names = [str(n.target) for n in exported.graph.nodes if n.op == "call_function"]
    return ", ".join(n for n in names if "built-in" not in n and "sym" not in n)


def run(device: str) -> None:
    """Numbers, against torch's own silu."""
    x = torch.randn(4, 128, device=device, requires_grad=True)
    expected = torch.nn.functional.silu(x)

    eager = silu(x)
    torch.testing.assert_close(eager, expected)
    print(f"eager          {tuple(eager.shape)} {eager.dtype} on {device}, as torch's silu")

    (grad,) = torch.autograd.grad(eager.sum(), x)
    (expected_grad,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(grad, expected_grad)
    print("autograd       gradient as torch's silu's")

    compiled = torch.compile(Model(), fullgraph=True, dynamic=True)
    for rows in (4, 7):
        t = torch.randn(rows, 128, device=device)
        torch.testing.assert_close(compiled(t), torch.nn.functional.silu(t) * 2)
    print("torch.compile  one full graph with dynamic shapes, sizes 4 and 7")

    torch.library.opcheck(silu, (x,))
    print("opcheck        schema, fake, autograd and aliasing hold")


def main() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        run("cpu")
        return
    see()
    if torch.cuda.is_available():
        run("cuda")
        return
    print("no GPU here: the kernels run on the CPU, through Triton's interpreter", flush=True)
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, __file__], env=interpreted, check=True)


if __name__ == "__main__":
    main()
