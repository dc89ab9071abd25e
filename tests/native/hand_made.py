"""Hand-made programs, as a trace would give them, whose kernels exist in the tests only."""

import struct

from opforge.native.expr import Expr, Var, make
from opforge.native.program import (
    Case,
    Guard,
    Image,
    Kernel,
    Launch,
    Library,
    Op,
    Output,
    Path,
    Pointer,
    TensorCase,
    TensorParam,
    Value,
    Variant,
)


def cubin(name: str, arch: int) -> bytes:
    """An ELF header and nothing in it but a name: enough to be told from others."""
    payload = f"{name} sm_{arch}".encode()
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    # The section table begins where the payload ends, and has no entries.
    fields = struct.pack(
        "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(payload), 0, 64, 0, 0, 64, 0, 0
    )
    return header + fields + payload


def kernel(key: str, name: str, types: tuple[str, ...], archs=(80, 90), **image) -> Kernel:
    images = tuple(
        Image(arch=arch, cubin=cubin(key, arch), function=name, num_warps=4, **image)
        for arch in archs
    )
    return Kernel(key, name, f"kernels.py:{len(name)}", types, (("BLOCK", "128"),), images)


def times(*terms):
    return terms[0] if len(terms) == 1 else make("*", *terms)


def blocks(numel, block=128):
    return make("//", make("+", numel, block - 1), block)


def compact(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = make("*", size, step) if step != 1 else size
    return tuple(strides)


def out_like(dtype, shape):
    return Output(dtype, tuple(shape), compact(shape))


def add() -> tuple[Op, list[Kernel]]:
    """out = x + y, of two types and ranks 1 and 2, with an empty path and i64 twins."""
    cases, kernels = [], {}
    for dtype in ("fp16", "fp32"):
        pointers = (f"*{dtype}",) * 3
        for kind, width in (("aligned", "i32"), ("plain", "i32"), ("wide", "i64")):
            key = f"add_{dtype}_{kind}"
            kernels[key] = kernel(key, "add_kernel", (*pointers, width))
        for rank in (1, 2):
            shape = tuple(Var(n) for n in "mn"[:rank])
            numel = times(*shape)
            variants = (
                Variant(f"add_{dtype}_aligned", (*pointers, "i32"), (0, 1, 2), (3,)),
                Variant(f"add_{dtype}_plain", (*pointers, "i32")),
                Variant(f"add_{dtype}_wide", (*pointers, "i64")),
            )
            arguments = (
                Pointer("x_ptr", "x", 0, dtype),
                Pointer("y_ptr", "y", 0, dtype),
                Pointer("out_ptr", "out", 0, dtype),
                Value("n", numel),
            )
            launch = Launch(
                "add_kernel", "kernels.py:10", (blocks(numel), 1, 1), arguments, variants,
                (("BLOCK", "128"),), "ops.py:13",
            )  # fmt: skip
            output = (out_like(dtype, shape),)
            paths = (
                Path((Guard(Expr("==", (numel, 0)), "ops.py:12"),), output),
                Path((Guard(Expr("!=", (numel, 0)), "ops.py:12"),), output, (launch,)),
            )
            tensors = (TensorCase("x", True, dtype, shape), TensorCase("y", True, dtype, shape))
            cases.append(Case(tensors, paths=paths))
    op = Op(
        "add", "demo::add", "ops.py:10", (TensorParam("x"), TensorParam("y")), ("out",),
        tuple(cases), "The sum of two tensors.", "0123", "add(Tensor x, Tensor y) -> Tensor",
    )  # fmt: skip
    return op, list(kernels.values())


def library(*parts, name="demo", archs=(80, 90)) -> Library:
    parts = parts or (add(),)
    kernels = [k for _, ks in parts for k in ks]
    versions = (("opforge", "0.1.0"), ("triton", "3.7.1"))
    return Library(name, tuple(op for op, _ in parts), tuple(kernels), archs, versions)
