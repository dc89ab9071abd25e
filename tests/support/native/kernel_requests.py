"""Kernels for the tests of compiling, and requests for variants of them."""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from opforge._compat import kernel_hash
from opforge.native.ir.kernel_request import Request


@triton.jit
def scale(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


@triton.jit
def total(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr, tl.sum(acc, 0))


@triton.jit
def gemm(  # noqa: PLR0917  # a kernel's parameters are all positional
    a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        at = start + inner
        a = tl.load(a_ptr + rows[:, None] * k + at[None, :], mask=at[None, :] < k, other=0.0)
        b = tl.load(b_ptr + at[:, None] * n + cols[None, :], mask=at[:, None] < k, other=0.0)
        acc = tl.dot(a, b, acc)
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gelu(x):
    return 0.5 * x * (1 + tl.math.erf(x * 0.7071067811865476))


@triton.jit
def with_helper(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, gelu(tl.load(x_ptr + at, mask=at < n).to(tl.float32)), mask=at < n)


@triton.jit(noinline=True)
def outlined(x, y):
    return x * y + tl.exp(x)


@triton.jit
def with_outlined(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    factor = outlined(n.to(tl.float32), 3)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


@triton.jit
def applied(x_ptr, y_ptr, n, fn: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, fn(tl.load(x_ptr + at, mask=at < n).to(tl.float32)), mask=at < n)


@triton.jit
def through_descriptor(x_ptr, y_ptr, rows, cols, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, cols], [cols, 1], [BLOCK, BLOCK])
    y = tl.make_tensor_descriptor(y_ptr, [rows, cols], [cols, 1], [BLOCK, BLOCK])
    at = tl.program_id(0) * BLOCK
    y.store([at, 0], x.load([at, 0]) + 1)


@triton.jit
def given_descriptor(x_desc, y_ptr, BLOCK: tl.constexpr):
    x = x_desc.load([0, 0])
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at[:, None] * BLOCK + at[None, :], x)


@gluon.jit
def copied(x_ptr, y_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y_ptr + at, gl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def wrong_range(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK + 1)
    tl.store(x_ptr + at, at)


@triton.jit
def _wrong_dot(x):
    return tl.dot(x, x)


@triton.jit
def _calls_wrong_dot(x):
    doubled = x * 2
    return _wrong_dot(doubled)


@triton.jit
def wrong_further_down(x_ptr, BLOCK: tl.constexpr):
    at = x_ptr + tl.arange(0, BLOCK)
    tl.store(at, _calls_wrong_dot(tl.load(at)))


@triton.jit
def wrong_instruction(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.inline_asm_elementwise(
        "bogus.b32 $0, $1;", "=r,r", [tl.load(x_ptr + at)], tl.int32, True, 1
    )
    tl.store(x_ptr + at, x)


@triton.jit
def crashes_the_compiler(x_ptr, BLOCK: tl.constexpr):
    # LLVM ends its process on constraints that it cannot parse.
    at = tl.arange(0, BLOCK)
    x = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=q{,z", [tl.load(x_ptr + at)], tl.int32, True, 1
    )
    tl.store(x_ptr + at, x)


@triton.jit
def with_its_target(out):
    tl.store(out, 1 if tl.target_info.cuda_capability_geq(8, 9) else 0)


def request(fn, types, constants, divisible=(), **options):
    """A variant; `types` are those of the parameters that are not constants, in order."""
    remaining = iter(types)
    signature = tuple((n, "constexpr" if n in constants else next(remaining)) for n in fn.arg_names)
    code = fn.fn.__code__
    return Request(
        fn=fn,
        name=fn.__name__,
        location=f"{code.co_filename}:{code.co_firstlineno}",
        qualified_name=f"{fn.__module__}:{fn.__qualname__}",
        source=kernel_hash.digest(fn),
        signature=signature,
        constants=tuple(constants.items()),
        divisible=tuple(divisible),
        options=tuple(options.items()),
    )


def scale_request(block=128, dtype="fp16", **options):
    types = [f"*{dtype}", f"*{dtype}", "i32", "fp32"]
    return request(scale, types, {"BLOCK": block}, (0, 1), **options)


# One of each kind of kernel.
KINDS = {
    "elementwise": scale_request(),
    "reduction": request(total, ["*fp16", "*fp32", "i32"], {"BLOCK": 512}, (0, 2)),
    "dot": request(
        gemm, ["*fp16"] * 3 + ["i32"] * 3, {"BM": 64, "BN": 64, "BK": 32}, range(6), num_stages=2
    ),
    "helper": request(with_helper, ["*fp16", "*fp16", "i32"], {"BLOCK": 256}),
    "noinline": request(with_outlined, ["*fp32", "*fp32", "i64"], {"BLOCK": 256}),
    "function as constant": request(
        applied, ["*bf16", "*bf16", "i32"], {"fn": gelu, "BLOCK": 128}, num_warps=2
    ),
    "descriptor": request(
        through_descriptor, ["*fp32", "*fp32", "i32", "i32"], {"BLOCK": 32}, (0, 1, 2, 3)
    ),
    "gluon": request(copied, ["*fp32", "*fp32", "i32"], {"BLOCK": 128}, (0, 1)),
}
