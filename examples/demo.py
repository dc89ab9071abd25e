"""Registers silu, shows what the compiler sees, runs it everywhere, and calls it as a C library.

Without a GPU, Triton's interpreter runs the kernels on the CPU, in a second process, and a
stand-in takes the place of the CUDA driver.
"""

import os
import subprocess
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path

import torch
from silu import silu

import opforge
from opforge import native

# torch.export of torch 2.13 warns about itself.
warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)


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


def build(folder: Path) -> None:
    """A C library for the GPU that is here, or for an sm_80, with no GPU needed."""
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (8, 0)
    native.build([silu], folder, archs=[f"sm_{major}{minor}"])
    files = sorted(f.relative_to(folder) for f in folder.rglob("*") if f.is_file())
    generated = [f.name for f in files if f.parts[0] == "src"]
    print("native.build   the same function as a C library:")
    for file in files:
        if file.parts[0] != "src":
            print(f"    {file}")
    print(f"    src/examples/*.[ch], {len(generated)} files")
    header = (folder / "include" / "examples.h").read_text()
    function = header.index("examples_silu(")
    begin, end = header.rindex("/*", 0, function), header.index(";", function) + 1
    print("examples.h     declares:")
    print(textwrap.indent(header[begin:end], "    "))


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


def call_library(folder: str, device: str) -> None:
    """The C function, by way of DLPack; nothing of Triton or of silu.py is needed for it."""
    if device == "cpu":
        import on_cpu  # noqa: PLC0415 - it brings Triton's interpreter

        on_cpu.use_standin(folder)
    x = torch.randn(4, 128, device=device)
    found = native.open(folder, host_memory=device == "cpu").silu(x)
    torch.testing.assert_close(found, torch.nn.functional.silu(x))
    where = "a stand-in driver" if device == "cpu" else torch.cuda.get_device_name()
    print(f"native.open    examples_silu on {where}, as torch's silu")


def main(*arguments: str) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        run("cpu")
        for folder in arguments:
            input()  # until the library is built
            call_library(folder, "cpu")
        return
    with tempfile.TemporaryDirectory() as folder:
        if torch.cuda.is_available():
            show(Path(folder))
            run("cuda")
            call_library(folder, "cuda")
            return
        with interpreted(folder) as child:
            show(Path(folder))
            print("no GPU here: Triton's interpreter runs the kernels on the CPU")
            print(child.communicate("\n")[0], end="")
    sys.exit(child.returncode)


def show(folder: Path) -> None:
    see()
    build(folder)
    print()


def interpreted(folder: str) -> subprocess.Popen:
    """This program in a second process, which works while the first one shows and builds."""
    command, env = [sys.executable, __file__, folder], {**os.environ, "TRITON_INTERPRET": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
