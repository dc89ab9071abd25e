"""An operator per kind of host function: numbers, choices, workspace, autotuning, ..."""

import dataclasses
import enum

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native

# Small enough for 32 bits, so that there are fewer kernels.
SMALL = {"n": (0, 1 << 20)}


@triton.jit
def scalars_kernel(
    floats_ptr, ints_ptr, single, half, brain, double, i8, i16, i32, i64, u8, u16, u32, u64
):
    tl.store(floats_ptr, single.to(tl.float64))
    tl.store(floats_ptr + 1, half.to(tl.float64))
    tl.store(floats_ptr + 2, brain.to(tl.float64))
    tl.store(floats_ptr + 3, double)
    tl.store(ints_ptr, i8.to(tl.int64))
    tl.store(ints_ptr + 1, i16.to(tl.int64))
    tl.store(ints_ptr + 2, i32.to(tl.int64))
    tl.store(ints_ptr + 3, i64)
    tl.store(ints_ptr + 4, u8.to(tl.int64))
    tl.store(ints_ptr + 5, u16.to(tl.int64))
    tl.store(ints_ptr + 6, u32.to(tl.int64))
    tl.store(ints_ptr + 7, u64.to(tl.int64))


@opforge.op("kinds::scalars")
def scalars(
    x: Tensor, single: float, half: float, brain: float, double: float, i8: int, i16: int,
    i32: int, i64: int, u8: int, u16: int, u32: int, u64: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What a kernel saw of numbers of every width."""
    floats = torch.empty(4, dtype=torch.float64, device=x.device)
    ints = torch.empty(8, dtype=torch.int64, device=x.device)
    scalars_kernel[(1,)](
        floats, ints, single, half, brain, double, i8, i16, i32, i64, u8, u16, u32, u64
    )
    return floats, ints


FLOAT_TYPES = {"single": "fp32", "half": "fp16", "brain": "bf16", "double": "fp64"}
INT_TYPES = {t: t for t in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")}
native.declare(
    scalars,
    x=native.tensor("n", dtype="fp32"),
    **{name: native.scalar(t) for name, t in (FLOAT_TYPES | INT_TYPES).items()},
)


@triton.jit
def choose_kernel(x_ptr, bias_ptr, out_ptr, n, ACT: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offsets, mask=mask)
    if ACT == "relu":
        x = tl.maximum(x, 0.0)
    tl.store(out_ptr + offsets, x, mask=mask)


@opforge.op("kinds::choose")
def choose(x: Tensor, bias: Tensor | None, act: str | None, large: bool) -> Tensor:
    """Two kinds of choices, and a tensor that may be missing."""
    n = x.numel()
    out = torch.empty_like(x)
    block = 64 if large else 32
    choose_kernel[(triton.cdiv(n, block),)](x, bias, out, n, ACT=act, BLOCK=block)
    return out


native.declare(
    choose,
    x=native.tensor("n", dtype="fp32"),
    bias=native.optional(native.tensor("n", dtype="fp32")),
    act=native.choice("relu", None),
    large=native.scalar("bool"),
    dims=SMALL,
)


@triton.jit
def negated_kernel(x_ptr, out_ptr, rows, cols, out_row, out_col, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row, col = at // cols, at % cols
    x = tl.load(x_ptr + at, mask=at < rows * cols)
    tl.store(out_ptr + row * out_row + col * out_col, -x, mask=at < rows * cols)


@opforge.op("kinds::negated")
def negated(x: Tensor) -> Tensor:
    """Into an output of any strides."""
    out = torch.empty_like(x)
    rows, cols = x.shape
    negated_kernel[(1,)](x, out, rows, cols, *out.stride(), BLOCK=64)
    return out


native.declare(
    negated,
    x=native.tensor("m n", dtype="fp32"),
    returns=native.tensor("m n", dtype="fp32", layout="strided"),
    dims={"m": (0, 8), "n": (0, 8)},
)


@triton.jit
def scale_kernel(x_ptr, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


@opforge.op("kinds::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: float) -> None:
    """In place, without an output."""
    scale_kernel[(triton.cdiv(x.numel(), 64),)](x, factor, x.numel(), BLOCK=64)


native.declare(scale_, x=native.tensor("n", dtype="fp32"), factor=native.scalar(), dims=SMALL)


@triton.jit
def extremes_kernel(x_ptr, low_ptr, at_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=float("inf"))
    low = tl.min(x, axis=0)
    tl.store(low_ptr + row, low)
    if at_ptr is not None:
        first = tl.min(tl.where(x == low, offsets, BLOCK), axis=0)
        tl.store(at_ptr + row, first.to(tl.int64))


@opforge.op("kinds::extremes")
def extremes(x: Tensor, indices: bool) -> tuple[Tensor, Tensor | None]:
    """Two outputs of different types, one of them only on request."""
    rows, cols = x.shape
    low = x.new_empty(rows)
    at = torch.empty(rows, dtype=torch.int64, device=x.device) if indices else None
    extremes_kernel[(rows,)](x, low, at, cols, BLOCK=triton.next_power_of_2(cols))
    return low, at


native.declare(
    extremes,
    x=native.tensor("rows cols", dtype="fp32"),
    indices=native.choice(False, True),
    dims={"rows": (0, 65535), "cols": (1, 4)},
)


@triton.jit
def histogram_kernel(x_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x_ptr + offsets, mask=mask, other=0)
    tl.atomic_add(counts_ptr + value, 1, mask=mask)


@triton.jit
def running_kernel(counts_ptr, bias_ptr, out_ptr, BINS: tl.constexpr):
    bins = tl.arange(0, BINS)
    counts = tl.load(counts_ptr + bins) + tl.load(bias_ptr + bins)
    tl.store(out_ptr + bins, tl.cumsum(counts, 0))


@opforge.op("kinds::running")
def running(x: Tensor) -> Tensor:
    """How many elements are at most 0, 1, ..., 15, plus 100 per bin: two filled workspaces."""
    counts = torch.zeros(16, dtype=torch.int32, device=x.device)
    bias = torch.full((16,), 100, dtype=torch.int32, device=x.device)
    out = torch.empty(16, dtype=torch.int32, device=x.device)
    histogram_kernel[(triton.cdiv(x.numel(), 64),)](x, counts, x.numel(), BLOCK=64)
    running_kernel[(1,)](counts, bias, out, BINS=16)
    return out


native.declare(running, x=native.tensor("n", dtype="i32"), dims=SMALL)


@triton.autotune(
    [triton.Config({"BLOCK": 32}, num_warps=1), triton.Config({"BLOCK": 128}, num_warps=2)],
    key=["n"],
)
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def square_kernel(x_ptr, out_ptr, blocks_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    if EVEN:
        x = tl.load(x_ptr + offsets)
        tl.store(out_ptr + offsets, x * x)
    else:
        x = tl.load(x_ptr + offsets, mask=mask)
        tl.store(out_ptr + offsets, x * x, mask=mask)
    tl.store(blocks_ptr, tl.num_programs(0) * 10 + EVEN)


@opforge.op("kinds::square")
def square(x: Tensor) -> tuple[Tensor, Tensor]:
    """Autotuned, with a heuristic on a size; the second output shows what was launched."""
    out, n = torch.empty_like(x), x.numel()
    blocks = torch.zeros(1, dtype=torch.int32, device=x.device)
    square_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, blocks, n)
    return out, blocks


native.declare(square, x=native.tensor("n", dtype="fp32"), dims=SMALL)


class Rounding(enum.Enum):
    DOWN = "down"
    UP = "up"


@dataclasses.dataclass(frozen=True)
class Affine:
    scale: float
    shift: Tensor | None = None
    rounding: Rounding = Rounding.DOWN


@triton.jit
def affine_kernel(x_ptr, shift_ptr, out_ptr, scale, cols, UP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols_at = tl.arange(0, BLOCK)
    mask = cols_at < cols
    x = tl.load(x_ptr + row * cols + cols_at, mask=mask) * scale
    if shift_ptr is not None:
        x += tl.load(shift_ptr + cols_at, mask=mask)
    tl.store(out_ptr + row * cols + cols_at, tl.ceil(x) if UP else tl.floor(x), mask=mask)


@opforge.op("kinds::affine")
def affine(x: Tensor, cfg: Affine) -> Tensor:
    """Its options in a dataclass, a tensor among them."""
    out = torch.empty_like(x)
    up = cfg.rounding is Rounding.UP
    affine_kernel[(x.shape[0],)](x, cfg.shift, out, cfg.scale, x.shape[1], UP=up, BLOCK=64)
    return out


native.declare(
    affine,
    x=native.tensor("rows cols", dtype="fp32"),
    cfg={
        "scale": native.scalar("fp32"),
        "shift": native.optional(native.tensor("cols", dtype="fp32")),
        "rounding": native.choice(Rounding.DOWN, Rounding.UP),
    },
    dims={"rows": (0, 65535), "cols": (1, 64)},
)


@triton.jit
def where_kernel(out_ptr, b, c):
    i, j, k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out_ptr + (i * b + j) * c + k, i * 10000 + j * 100 + k)


@opforge.op("kinds::where")
def where(x: Tensor) -> Tensor:
    """A grid of three dimensions."""
    a, b, c = x.shape
    out = torch.empty((a, b, c), dtype=torch.int32, device=x.device)
    where_kernel[(a, b, c)](out, b, c)
    return out


native.declare(
    where,
    x=native.tensor("a b c", dtype="fp32", layout="strided"),
    dims={"a": (0, 99), "b": (0, 99), "c": (0, 99)},
)


@triton.jit
def persistent_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + 1, mask=mask)


@opforge.op("kinds::persistent")
def persistent(x: Tensor) -> Tensor:
    """As many programs as the GPU has multiprocessors."""
    out = torch.empty_like(x)
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    persistent_kernel[(programs,)](x, out, x.numel(), BLOCK=32)
    return out


native.declare(persistent, x=native.tensor("n", dtype="i32"), dims=SMALL)


@triton.jit
def shifted_kernel(x_ptr, out_ptr, row_step, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + row * row_step + offsets, mask=mask)
    tl.store(out_ptr + row * n + offsets, x, mask=mask)


@opforge.op("kinds::halves")
def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Both halves of every row: views of the input, and two launches."""
    rows, n = x.shape[0], x.shape[1] // 2
    left, right = x[:, :n], x[:, n : 2 * n]
    outs = [torch.empty((rows, n), dtype=x.dtype, device=x.device) for _ in range(2)]
    for part, out in zip((left, right), outs, strict=True):
        shifted_kernel[(rows,)](part, out, part.stride(0), n, BLOCK=64)
    return outs[0], outs[1]


native.declare(
    halves,
    x=native.tensor("rows width", dtype=("i8", "u8", "i16", "fp64", "fp8e5", "bool")),
    dims={"rows": (0, 65535), "width": (0, 128)},
)


@opforge.op("kinds::picked")
def picked(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """The largest element of each row, and some of the rows."""
    return x.amax(-1), x.index_select(0, at)


native.declare(
    picked,
    x=native.tensor("rows width", dtype="fp32"),
    at=native.tensor("n", dtype="i64"),
    dims={"rows": (1, 1024), "width": (0, 64), "n": (0, 1024)},
)


@opforge.op("kinds::mixed")
def mixed(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """torch calls before and after a launch."""
    y = (x.float() - x.float().mean(-1, keepdim=True)) * scale
    out = torch.empty_like(y)
    shifted_kernel[(y.shape[0],)](y, out, y.stride(0), y.shape[1], BLOCK=64)
    return torch.softmax(out, -1).to(x.dtype), torch.cat([x, x.flip(0)], 1)


native.declare(
    mixed,
    x=native.tensor("rows width", dtype="fp16"),
    scale=native.scalar("fp32"),
    dims={"rows": (0, 65535), "width": (1, 64)},
)


def save_swish(ctx, inputs, output):
    x, ctx.beta = inputs
    ctx.save_for_backward(x, output)


def swish_gradient(ctx, grad):
    x, out = ctx.saved_tensors
    scaled = ctx.beta * out
    return grad * (scaled + torch.sigmoid(ctx.beta * x) * (1 - scaled)), None


@opforge.op("kinds::swish", backward=swish_gradient, setup_context=save_swish)
def swish(x: Tensor, beta: float) -> Tensor:
    """With a backward of torch calls, which saves an output and a number."""
    return x * torch.sigmoid(beta * x)


native.declare(swish, x=native.tensor("n", dtype="fp32"), beta=native.scalar("fp32"), dims=SMALL)
