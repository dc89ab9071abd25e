"""Run with TRITON_INTERPRET=1: calls a library whose kernel the interpreter executes."""

import sys
from pathlib import Path

import torch
import triton
import triton.language as tl


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, cols, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=0.0)
    total = tl.reduce(values.to(tl.float32), 0, add)
    tl.store(out_ptr + row, (total * scale).to(out_ptr.dtype.element_ty))


def main(folder: str) -> None:
    from support.standin.driver import load_standin  # noqa: PLC0415
    from support.standin.interpreter import Interpreter  # noqa: PLC0415
    from support.standin.library import NativeLibrary  # noqa: PLC0415

    standin = load_standin()
    standin.reset()
    library = NativeLibrary(Path(folder), "sums")
    standin.execute = Interpreter(library.manifest)
    for dtype in (torch.float16, torch.float32):
        for rows, cols in ((1, 1), (3, 32), (5, 31), (0, 4)):
            x = torch.randn(rows, cols).to(dtype)
            (out,) = library.run("row_sum", x, 0.5)
            expected = (x.float().sum(1) * 0.5).to(dtype)
            torch.testing.assert_close(out, expected)
    assert standin.errors == [], standin.errors
    assert len(standin.launches) == 6
    library.unload()


if __name__ == "__main__":
    main(sys.argv[1])
