"""Kernels of compiled graphs: texts as Inductor prints them, and what launches them in its place.

Inductor prints for a GPU only, so the texts are kept here, shortened where nobody reads them.
"""

from opforge import _compat

_HEAD = """
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
"""
_DRIVER = "triton_helpers.set_driver_to_gpu()\n"
_DEVICE = (
    "DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=80, major=8, "
    "regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, warp_size=32)"
)
_ALIGNED = "[{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]]}]"
_META = (
    "'mutated_arg_names': [], 'backend_hash': 'A7974629', 'assert_indirect_indexing': True, "
    "'autotune_local_cache': False, 'autotune_pointwise': True, 'autotune_remote_cache': None, "
    "'force_disable_caches': False, 'store_cubin': False, 'are_deterministic_algorithms_enabled': "
    "False"
)


def pointwise(name="triton_poi_fused_add_0", *, about=1024, added="1.0", more=""):
    """One of Inductor's own, for a graph with a dynamic size."""
    return f"""{_HEAD}{_DRIVER}
@triton_heuristics.pointwise(
    size_hints={{'x': {about}}}, 
    filename=__file__,
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}}, 'device': {_DEVICE}, 'constants': {{}}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': {_ALIGNED}}},
    inductor_meta={{'grid_type': 'Grid1D', 'kernel_name': '{name}', {more}{_META}}},
    min_elem_per_thread=0
)
@triton.jit
def {name}(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = tmp0 + {added}
    tl.store(out_ptr0 + (x0), tmp1, xmask)
"""  # noqa: E501, W291  # as Inductor writes it


def template(name="triton_tem_fused_flex_attention_0", *, score="s + 1"):
    """One of Inductor's templates, which do not say in which file they are."""
    return f"""{_HEAD}
@triton_heuristics.template(

    num_stages=3,
    num_warps=4,
    triton_meta={{'signature': {{'arg_Q': '*fp32', 'out_ptr0': '*fp32'}}, 'device': {_DEVICE}, 'constants': {{}}, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': {_ALIGNED}}},
    inductor_meta={{'kernel_name': '{name}', {_META}, 'grid_type': 'FixedGrid', 'fixed_grid': ['_grid_0', '_grid_1', '_grid_2'], 'extra_launcher_args': ['_grid_0', '_grid_1', '_grid_2'], 'config_args': {{'BLOCK_M': 64}}}},

)
@triton.jit
def {name}(arg_Q, out_ptr0):
    BLOCK_M : tl.constexpr = 64
    at = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tl.store(out_ptr0 + at, forward_inner(tl.load(arg_Q + at)))

@triton.jit
def forward_inner(s):
    return {score}
"""  # noqa: E501


def scale(constants="'BLOCK': 128", n="i32"):
    """One of user code, with a function that it calls, and a grid that the caller computes."""
    return f"""
{_HEAD}
@triton_heuristics.user_autotune(
    configs=[],
    inductor_meta={{'grid_type': 'FixedGrid', 'fixed_grid': ['_grid_0', '_grid_1', '_grid_2'], 'extra_launcher_args': ['_grid_0', '_grid_1', '_grid_2'], 'kernel_name': 'scale_kernel_0', {_META}}},
    triton_meta={{'signature': {{'x_ptr': '*fp32', 'out_ptr': '*fp32', 'factor': 'fp64', 'n': '{n}', 'BLOCK': 'constexpr'}}, 'device': {_DEVICE}, 'constants': {{{constants}}}, 'configs': {_ALIGNED}}},
    filename=__file__,
    custom_kernel=True,
)
@triton.jit
def scale_kernel(x_ptr, out_ptr, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, scaled(tl.load(x_ptr + at, mask=mask), factor), mask=mask)

@triton.jit
def scaled(x, f):
    return x * f
"""  # noqa: E501


def described(block="[64, 32]"):
    """One of user code that takes tensor descriptors, which Inductor makes in its wrapper."""
    return f"""
{_HEAD}
@triton_heuristics.user_autotune(
    configs=[],
    inductor_meta={{'grid_type': 'FixedGrid', 'fixed_grid': ['_grid_0', '_grid_1', '_grid_2'], 'extra_launcher_args': ['_grid_0', '_grid_1', '_grid_2'], 'kernel_name': 'described_kernel_0', {_META}}},
    triton_meta={{'signature': {{'x_desc': 'tensordesc<fp32{block}>', 'out_desc': 'tensordesc<fp32{block}>', 'M': 'constexpr', 'N': 'constexpr'}}, 'device': {_DEVICE}, 'constants': {{'M': 64, 'N': 32}}, 'configs': [{{}}]}},
    filename=__file__,
    custom_kernel=True,
)
@triton.jit
def described_kernel(x_desc, out_desc, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    out_desc.store([i, j], x_desc.load([i, j]) * 2)
"""  # noqa: E501


def tuned(blocks=(128, 512)):
    """One of user code with an autotuner, which Inductor has a grid per configuration of."""
    configs = [{"BLOCK": block, "num_warps": 2, "num_stages": 3} for block in blocks]
    grids = [
        {"config": c, "python": [f"({c['BLOCK'] - 1} + _n) // {c['BLOCK']}", "1", "1"]}
        for c in configs
    ]
    return f"""
{_HEAD}
@triton_heuristics.user_autotune(
    configs={configs!r},
    inductor_meta={{'grid_type': 'PrecomputedGrid', 'precomputed_grids': {grids!r}, 'extra_launcher_args': ['_n'], 'kernel_name': 'tuned_kernel_1', {_META}}},
    triton_meta={{'signature': {{'x_ptr': '*fp32', 'out_ptr': '*fp32', 'n': 'i32', 'BLOCK': 'constexpr'}}, 'device': {_DEVICE}, 'constants': {{}}, 'configs': {_ALIGNED}}},
    filename=__file__,
    custom_kernel=True,
)
@triton.jit
def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) + 1, mask=mask)
"""  # noqa: E501


def total():
    """A reduction of Inductor's, to one value: its size of 1 is compiled in."""
    return f"""{_HEAD}{_DRIVER}
@triton_heuristics.reduction(
    size_hints={{'x': 1, 'r0_': 8192}},
    reduction_hint=ReductionHint.INNER,
    filename=__file__,
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'constexpr', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'}}, 'device': {_DEVICE}, 'constants': {{'xnumel': 1}}, 'native_matmul': False, 'enable_fp_fusion': True, 'launch_pdl': False, 'disable_ftz': False, 'configs': {_ALIGNED}}},
    inductor_meta={{'grid_type': 'Grid1D', 'kernel_name': 'triton_red_fused_sum_2', 'num_load': 1, 'num_reduction': 1, {_META}}}
)
@triton.jit
def triton_red_fused_sum_2(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 1
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        tmp0 = tl.load(in_ptr0 + (r0_index), r0_mask, other=0.0)
        _tmp2 = _tmp2 + tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (tl.full([XBLOCK, 1], 0, tl.int32)), tmp2, None)
"""  # noqa: E501


def launching(tuner, names, at=-1):
    """Let an autotuner be as it is after a launch, with one of its configurations."""
    scope = {}
    exec(f"def launcher({', '.join(names)}, stream): pass", scope)
    scope["launcher"].config = tuner.configs[at]
    tuner.launchers = [scope["launcher"]]
    return tuner


# By the hash of their texts, for the interpreter.
FUNCTIONS = {}


def note(text):
    """Make the function of a text known to the interpreter."""
    printed = _compat.inductor_kernels.printed(text)
    FUNCTIONS[printed.source] = _compat.inductor_kernels.function(printed)
