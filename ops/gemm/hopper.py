"""Products on sm_90, in Gluon: one warp copies tiles by TMA, two groups of four warps multiply.

Programs stay on their multiprocessor and take one tile of the result after the other, so the next
tile's copies run while the last one is stored.
"""

import functools

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Triton 3.8 gave them these names.
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

# Rows of a tile, of which each group multiplies half.
ROWS = 128
_TYPES = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float8_e4m3fn: gl.float8e4nv,
}


@gluon.jit
def place(tile, down, across):
    """The stack, row and column of a tile. Tiles that run together share rows and columns."""
    GROUP: gl.constexpr = 8
    stack = tile // (down * across)
    tile = tile % (down * across)
    first = tile // (GROUP * across) * GROUP
    height = gl.minimum(down - first, GROUP)
    within = tile % (GROUP * across)
    return stack, first + within % height, within // height


@gluon.jit
def copy_tiles(
    a_desc, b_desc, c_desc, out_desc, held, barriers, alpha, beta, sizes,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, K: gl.constexpr, COLS: gl.constexpr,
    A_STACKED: gl.constexpr, B_STACKED: gl.constexpr, PRECISE: gl.constexpr,
):  # fmt: skip
    """Fill each stage as soon as both groups have read it."""
    a_held, b_held, out_held = held
    ready, empty, c_ready = barriers
    m, n, k, stacks, c_stacked = sizes
    STAGES: gl.constexpr = b_held.shape[0]
    HALF: gl.constexpr = 64
    down, across = gl.cdiv(m, 2 * HALF), gl.cdiv(n, COLS)
    stage = 0
    # Empty stages count as read before.
    phase = 1
    for tile in range(gl.program_id(0), stacks * down * across, gl.num_programs(0)):
        stack, i, j = place(tile, down, across)
        a_stack = stack if A_STACKED else 0
        b_stack = stack if B_STACKED else 0
        row, col = i * (2 * HALF), j * COLS
        for at in range(0, k, K):
            bar = ready.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(bar, 2 * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            for half in gl.static_range(2):
                if A_COLUMNS:
                    a_at = [a_stack, at, row + half * HALF]
                else:
                    a_at = [a_stack, row + half * HALF, at]
                load_tile(a_desc, a_at, bar, a_held.index(2 * stage + half))
            if B_COLUMNS:
                b_at = [b_stack, col, at]
            else:
                b_at = [b_stack, at, col]
            load_tile(b_desc, b_at, bar, b_held.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.jit
def multiply(
    a_desc, b_desc, c_desc, out_desc, held, barriers, alpha, beta, sizes,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, K: gl.constexpr, COLS: gl.constexpr,
    A_STACKED: gl.constexpr, B_STACKED: gl.constexpr, PRECISE: gl.constexpr, half: gl.constexpr,
):  # fmt: skip
    """One half of the rows of each tile."""
    a_held, b_held, out_held = held
    ready, empty, c_ready = barriers
    m, n, k, stacks, c_stacked = sizes
    STAGES: gl.constexpr = b_held.shape[0]
    HALF: gl.constexpr = 64
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [4, 1], [16, COLS, 256 // a_desc.dtype.primitive_bitwidth]
    )
    down, across = gl.cdiv(m, 2 * HALF), gl.cdiv(n, COLS)
    mine = out_held.index(half)
    stage = 0
    phase = 0
    c_phase = 0
    for tile in range(gl.program_id(0), stacks * down * across, gl.num_programs(0)):
        stack, i, j = place(tile, down, across)
        total = gl.zeros((HALF, COLS), gl.float32, layout)
        before = 0
        for at in range(0, k, K):
            if A_COLUMNS:
                a = a_held.index(2 * stage + half).reshape([K, HALF]).permute((1, 0))
            else:
                a = a_held.index(2 * stage + half).reshape([HALF, K])
            if B_COLUMNS:
                b = b_held.index(stage).reshape([COLS, K]).permute((1, 0))
            else:
                b = b_held.index(stage).reshape([K, COLS])
            mbarrier.wait(ready.index(stage), phase)
            if PRECISE:
                # Tensor cores sum fp8 with some 14 bits, so the long sum is made outside.
                part = gl.zeros((HALF, COLS), gl.float32, layout)
                total += warpgroup_mma(a, b, part, use_acc=False)
                mbarrier.arrive(empty.index(stage))
            else:
                part = warpgroup_mma(a, b, total, use_acc=at > 0, is_async=True)
                # The product before this one is done, and its stage may be filled again.
                total = warpgroup_mma_wait(1, deps=[part])
                mbarrier.arrive(empty.index(before), pred=at > 0)
                before = stage
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
        if not PRECISE:
            total = warpgroup_mma_wait(0, deps=[total])
            mbarrier.arrive(empty.index(before))
        total *= alpha
        row, col = i * (2 * HALF) + half * HALF, j * COLS
        # The last tile's copy still reads what is held.
        tma.store_wait(0)
        if beta != 0:
            arrived = c_ready.index(half)
            mbarrier.expect(arrived, c_desc.block_type.nbytes)
            load_tile(c_desc, [stack * c_stacked, row, col], arrived, mine)
            mbarrier.wait(arrived, c_phase)
            c_phase ^= 1
            total += beta * mine.reshape([HALF, COLS]).load(layout).to(gl.float32)
        mine.reshape([HALF, COLS]).store(total.to(out_desc.dtype))
        fence_async_shared()
        store_tile(out_desc, [stack, row, col], mine)
    tma.store_wait(0)


@gluon.jit
def multiply_above(
    a_desc, b_desc, c_desc, out_desc, held, barriers, alpha, beta, sizes,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, K: gl.constexpr, COLS: gl.constexpr,
    A_STACKED: gl.constexpr, B_STACKED: gl.constexpr, PRECISE: gl.constexpr,
):  # fmt: skip
    multiply(
        a_desc, b_desc, c_desc, out_desc, held, barriers, alpha, beta, sizes,
        A_COLUMNS, B_COLUMNS, K, COLS, A_STACKED, B_STACKED, PRECISE, 0,
    )  # fmt: skip


@gluon.jit
def multiply_below(
    a_desc, b_desc, c_desc, out_desc, held, barriers, alpha, beta, sizes,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, K: gl.constexpr, COLS: gl.constexpr,
    A_STACKED: gl.constexpr, B_STACKED: gl.constexpr, PRECISE: gl.constexpr,
):  # fmt: skip
    multiply(
        a_desc, b_desc, c_desc, out_desc, held, barriers, alpha, beta, sizes,
        A_COLUMNS, B_COLUMNS, K, COLS, A_STACKED, B_STACKED, PRECISE, 1,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["m", "n", "k", "stacks", "c_stacked"])
def hopper_gemm_kernel(
    a_desc, b_desc, c_desc, out_desc, alpha, beta, m: gl.int32, n: gl.int32, k: gl.int32,
    stacks: gl.int32, c_stacked: gl.int32,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, K: gl.constexpr, COLS: gl.constexpr,
    A_STACKED: gl.constexpr, B_STACKED: gl.constexpr, PRECISE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    a_held = gl.allocate_shared_memory(
        a_desc.dtype, [2 * STAGES] + a_desc.block_shape, a_desc.layout
    )
    b_held = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_shape, b_desc.layout)
    out_held = gl.allocate_shared_memory(
        out_desc.dtype, [2] + out_desc.block_shape, out_desc.layout
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    c_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for half in gl.static_range(2):
        mbarrier.init(c_ready.index(half), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    # A tuple that a variable holds would lose what is constexpr.
    run_parts((
        a_desc, b_desc, c_desc, out_desc, (a_held, b_held, out_held), (ready, empty, c_ready),
        alpha, beta, (m, n, k, stacks, c_stacked),
        A_COLUMNS, B_COLUMNS, K, COLS, A_STACKED, B_STACKED, PRECISE,
    ))  # fmt: skip


@gluon.jit
def run_parts(given):
    # Registers: the groups hold sums, the warp that copies holds next to nothing.
    gl.warp_specialize(
        [(multiply_above, given), (multiply_below, given), (copy_tiles, given)], [4, 1], [232, 40]
    )


def is_mapped(k: int, a: Tensor, b: Tensor, c: Tensor, out: Tensor) -> bool:
    """Whether tensor maps can describe them; their last dimensions are dense.

    `&` makes it one question, so that a library has one path for yes and one for no.
    """
    fits = (k > 0) & (a.data_ptr() % 16 == 0) & (b.data_ptr() % 16 == 0)
    if c is not out:
        fits &= c.data_ptr() % 16 == 0
    for x in (a, b, out) if c is out else (a, b, c, out):
        for stride in x.stride()[:-1]:
            fits &= stride * x.dtype.itemsize % 16 == 0
    return bool(fits)


@functools.cache
def layout_of(rows: int, cols: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([1, rows, cols], _TYPES[dtype])


def described(x: Tensor, rows: int, cols: int) -> TensorDescriptor:
    """A matrix or a stack of them, copied in blocks of rows x cols."""
    layout, block = layout_of(rows, cols, x.dtype), [1, rows, cols]
    shape, strides = list(x.shape), list(x.stride())
    # The stride of a single matrix is not used, but it must be a multiple of 16 bytes.
    alone = x.dim() == 2
    shape, strides = ([1, *shape], [strides[0], *strides]) if alone else (shape, strides)
    return TensorDescriptor(x, shape, strides, block, layout)


def multiply_on_hopper(
    a: Tensor, b: Tensor, c: Tensor, out: Tensor, alpha: float, beta: float,
    a_columns: bool, b_columns: bool,
) -> None:  # fmt: skip
    """out = alpha * a @ b + beta * c. Of a and b, rows or columns are dense.

    fp8 needs rows of a and columns of b.
    """
    (m, n), k = out.shape[-2:], a.shape[-1]
    stacks = out.shape[0] if out.dim() == 3 else 1
    is_fp8 = a.dtype == torch.float8_e4m3fn
    step = 128 // a.dtype.itemsize
    processors = torch.cuda.get_device_properties(a.device).multi_processor_count
    down = triton.cdiv(m, ROWS)
    # Large tiles move fewer bytes; small ones keep more multiprocessors busy.
    wide = not is_fp8 and stacks * down * triton.cdiv(n, 256) >= processors
    cols, stages = (256, 3) if wide else (128, 5)
    a_desc = described(a.mT, step, 64) if a_columns else described(a, 64, step)
    b_desc = described(b.mT, cols, step) if b_columns else described(b, step, cols)
    hopper_gemm_kernel[(processors,)](
        a_desc, b_desc, described(c, 64, cols), described(out, 64, cols), alpha, beta,
        m, n, k, stacks, c.dim() - 2, A_COLUMNS=a_columns, B_COLUMNS=b_columns, K=step, COLS=cols,
        A_STACKED=a.dim() == 3, B_STACKED=b.dim() == 3, PRECISE=is_fp8, STAGES=stages,
        num_warps=4,
    )  # fmt: skip
