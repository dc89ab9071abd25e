"""Functions of public packages with inputs of three sizes, and what eager torch makes of these.

The functions and their declarations are those of benchmarks/native_coverage.py.
"""

import importlib.util

import torch
from torch.nn import functional

from opforge.native.frontend.declaration import TensorSpec
from opforge.native.ir.dtypes import ALIASES, DTYPES
from support.processes import ROOT

# By the name of a size; odd ones, and 1. Where others are declared, these come in turn.
SIZES = {
    "r": (5, 1, 37), "h": (127, 1000, 33), "g": (3, 8, 1), "v": (11, 50, 101),
    "m": (33, 1, 64), "k": (17, 64, 65), "n": (5, 1, 12), "z": (1, 3, 2), "b": (1, 2, 3),
    "t": (65, 1, 130), "c": (64, 64, 64), "d": (64, 128, 64), "e": (64, 64, 64),
}  # fmt: skip
TRIES = 3


def loaded():
    """benchmarks/native_coverage.py."""
    file = ROOT / "benchmarks" / "native_coverage.py"
    spec = importlib.util.spec_from_file_location("native_coverage", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sizes(forward, number):
    declared = forward.specs.get("dims", {})
    found = {}
    for name, usual in SIZES.items():
        bound = declared.get(name)
        if isinstance(bound, list) and usual[number] not in bound:
            found[name] = bound[number % len(bound)]
        else:
            found[name] = bound if isinstance(bound, int) else usual[number]
    return found


def inputs(forward, number):
    """Tensors of one of three sizes, by name."""
    generator = torch.Generator().manual_seed(number)
    given = {}
    for name, spec in forward.specs.items():
        if not isinstance(spec, TensorSpec):
            continue
        wanted = getattr(torch, DTYPES[ALIASES.get(spec.dtype, spec.dtype)].torch)
        given[name] = _tensor(shape_of(spec, sizes(forward, number)), wanted, generator)
    if "i" in given:
        high = given["w"].shape[0] if "w" in given else given["x"].shape[1]
        given["i"] %= high
    for name, change in PREPARED.get(forward.module, {}).items():
        given[name] = change(given)
    return given


def shape_of(spec, known):
    return [int(part) if part.isdigit() else known[part] for part in str(spec.dims).split()]


def _tensor(shape, dtype, generator):
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(0, 1 << 20, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def _probabilities(name, *, logs=False):
    function = torch.log_softmax if logs else torch.softmax
    return lambda given: function(given[name].float(), -1).half()


# What a function needs its inputs to be.
PREPARED = {
    "liger_kernel.ops.kl_div": {"x": _probabilities("x", logs=True), "t": _probabilities("t")},
    "liger_kernel.ops.tvd": {"x": _probabilities("x"), "t": _probabilities("t")},
    # Half precision overflows in the cubes' squares.
    "liger_kernel.ops.poly_norm": {"x": lambda given: given["x"].clamp(-2, 2)},
    # A GPU divides by powers of two exactly, so that results are rounded as torch rounds them.
    "conch.ops.quantization.int8": {"s": lambda given: torch.full_like(given["s"], 2**-5)},
    "conch.ops.quantization.fp8": {"s": lambda given: torch.full_like(given["s"], 2**-5)},
}


def _rms(x, w, eps=1e-6):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def _rstd(x, eps):
    return torch.rsqrt(x.float().pow(2).mean(-1) + eps)


def _layer(x, w, b):
    return functional.layer_norm(x.float(), x.shape[-1:], w.float(), b.float(), 1e-5)


def _poly(x, w, b):
    x, w = x.float(), w.float()
    parts = [x.pow(n) * torch.rsqrt(x.pow(2 * n).mean(-1, keepdim=True) + 1e-6) for n in (3, 2, 1)]
    return sum(one * part for one, part in zip(w, parts, strict=True)) + b


def _kl(x, t):
    # The package bounds the logarithm.
    t = t.float()
    return t * (t.clamp(1e-10).log() - x.float())


def _halves(x, cos, sin):
    one, other = x.float().chunk(2, -1)
    cos, sin = cos[:, None].float(), sin[:, None].float()
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


def _chunks(g):
    parts = [part.cumsum(1) for part in g.split(64, 1)]
    return torch.cat(parts, 1)


def _group(x, w, b, count):
    return functional.group_norm(x.float(), count, w.float(), b.float())


def _rms_backward(g, x, w, s):
    g, x, w = g.float(), x.float(), w.float()
    scaled, rows = g * w, s[:, None]
    dx = rows * scaled - rows.pow(3) * x * (scaled * x).mean(-1, keepdim=True)
    return dx, (g * x * rows).sum(0)


def _halves_of(x):
    width = x.shape[-1] // 2
    return x[..., :width].float(), x[..., width : 2 * width].float()


def _silu_and_mul(x):
    gate, up = _halves_of(x)
    return functional.silu(gate) * up


def _gelu_and_mul(x):
    gate, up = _halves_of(x)
    return functional.gelu(gate, approximate="tanh") * up


def _blocks(x, height):
    """A matrix as blocks of `height` rows and 128 columns."""
    rows, columns = x.shape
    return x.float().view(rows // height, height, columns // 128, 128)


def _quantized(x, height):
    blocks = _blocks(x, height)
    scales = blocks.abs().amax((1, 3), keepdim=True) / 448
    found = (blocks / scales).view(x.shape).to(torch.float8_e4m3fn)
    return found, scales.view(x.shape[0] // height, -1)


def _dequantized(x, s):
    return (_blocks(x, 128) * s[:, None, :, None]).view(x.shape)


def _tvd(x, t, scale):
    grads = torch.where(x > t, 0.5, -0.5) * scale
    return 0.5 * (x.float() - t.float()).abs() * scale, grads


# By the call; the names of the tensors are those of the declaration.
EAGER = {
    "f.rms_norm_forward(x, w, 1e-6, 0.0, 'llama', None)[0:3:2]": lambda x, w: (
        _rms(x, w),
        _rstd(x, 1e-6),
    ),
    "f.swiglu_forward(a, b)[2]": lambda a, b: functional.silu(a.float()) * b,
    "f.geglu_forward(a, b)[2]": lambda a, b: functional.gelu(a.float(), approximate="tanh") * b,
    "f.layer_norm_forward(x, w, b, 1e-5)[0]": _layer,
    "f._softmax_forward(x)[0]": lambda x: x.float().softmax(-1),
    "f.kldiv_forward_triton(x, t, False, 'none', 1e-10)": _kl,
    "f.tv_distance_forward_triton(x, t, None, 'none', -100, False)": lambda x, t: _tvd(x, t, 1),
    "f.liger_dyt_fwd(x, a, g, b)": lambda x, a, g, b: torch.tanh(a.float() * x) * g + b,
    "f.group_norm_forward(x, 64, 8, w, b, 1e-5)[0]": lambda x, w, b: _group(x, w, b, 8),
    "f.fused_add_rms_norm_forward(x, r, w, 1e-6, 0.0, 'llama')[0:2]": lambda x, r, w: (
        _rms(x + r, w),
        x + r,
    ),
    "f.relu_squared_forward(x)": lambda x: x.float().relu().pow(2),
    "f.poly_norm_forward(x, w, b, 1e-6)[0]": _poly,
    "f.silu(x)": functional.silu,
    "f.abs(x)": torch.abs,
    "f.relu(x)": torch.relu,
    "f.gelu(x)": functional.gelu,
    "f.add(x, y)": torch.add,
    "f.mul(x, y)": torch.mul,
    "f.rms_norm_forward(x, [4096], w)[0]": lambda x, w: _rms(x, w, 1e-5),
    "f.layer_norm(x, [4096], w, b)": lambda x, w, b: (
        _layer(x, w, b),
        x.float().mean(-1),
        torch.rsqrt(x.float().var(-1, correction=0) + 1e-5),
    ),
    "f.softmax(x, -1)": lambda x: x.softmax(-1),
    "f.log_softmax(x, -1)": lambda x: x.log_softmax(-1),
    "f.mm(a, b)": torch.mm,
    "f.bmm(a, b)": torch.bmm,
    "f.addmm(c, a, b)": lambda a, b, c: torch.addmm(c, a, b),
    "f.sum(x)": torch.sum,
    "f.sum_dim(x, [1])": lambda x: x.sum(1),
    "f.mean_dim(x, [1])": lambda x: x.mean(1),
    "f.argmax(x, 1)": lambda x: x.argmax(1),
    "f.amax(x, [1])": lambda x: x.amax(1),
    "f.cumsum(x, 1)": lambda x: x.float().cumsum(1),
    "f.embedding(w, i)": lambda w, i: functional.embedding(i, w),
    "f.group_norm(x, w, b, 4, 64, 256, 8)": lambda x, w, b: (
        _group(x, w, b, 8),
        x.float().view(4, 8, -1).mean(-1),
        torch.rsqrt(x.float().view(4, 8, -1).var(-1, correction=0) + 1e-5),
    ),
    "f.triu(x)": torch.triu,
    "f.where_self(c, x, y)": torch.where,
    "f.l2norm_fwd(x)": lambda x: (
        functional.normalize(x.float(), dim=-1),
        torch.rsqrt(x.float().pow(2).sum(-1) + 1e-6),
    ),
    "f.layer_norm_fwd(x, w, b, 1e-5)[0]": _layer,
    "f.layer_norm_gated_fwd(x, g, w, b, eps=1e-5)[0]": lambda x, g, w, b: (
        _layer(x, w, b) * functional.silu(g.float())
    ),
    "f.sigmoid_fwd(x)": torch.sigmoid,
    "f.swish_fwd(x)": functional.silu,
    "f.swiglu_fwd(x, y)": lambda x, y: functional.silu(x.float()) * y,
    "f.chunk_local_cumsum(g, 64)": _chunks,
    "f.softmax_fwd(x)": lambda x: x.float().softmax(-1),
    "f.rotary_embedding_fwdbwd(x, cos, sin)": _halves,
    "f.kldiv_forward_triton(x, t, False, 'batchmean', 1e-10)": lambda x, t: (
        _kl(x, t).sum() / x.shape[0]
    ),
    "f.kldiv_forward_triton(x, t, False, 'mean', 1e-10)": lambda x, t: _kl(x, t).mean(),
    "f.tv_distance_forward_triton(x, t, None, 'batchmean', -100, False)": lambda x, t: (
        _tvd(x, t, 1 / x.shape[0])[0].sum(),
        _tvd(x, t, 1 / x.shape[0])[1],
    ),
    "f.rms_norm_backward(g, x, w, s, 0.0, 'llama', 4096, 8, False, False)": _rms_backward,
    "f.var_mean(x, [1])": lambda x: torch.var_mean(x.float(), 1),
    "f.std(x, [1])": lambda x: x.float().std(1),
    "f.mse_loss(x, y)": lambda x, y: functional.mse_loss(x.float(), y.float()),
    "f.cat([x, y], 1)": lambda x, y: torch.cat([x, y], 1),
    "f.stack([x, y], 1)": lambda x, y: torch.stack([x, y], 1),
    "f.gather(x, 1, i)": lambda x, i: x.gather(1, i),
    "f.index_select(x, 1, i)": lambda x, i: x.index_select(1, i),
    "f.repeat(x, [2, 3])": lambda x: x.repeat(2, 3),
    "f.flip(x, [0])": lambda x: x.flip(0),
    "f.logsumexp_fwd(x)": lambda x: x.float().logsumexp(-1),
    "f.rms_norm(x, w, 1e-6)": _rms,
    "f.silu_and_mul(x)": _silu_and_mul,
    "f.gelu_tanh_and_mul(x)": _gelu_and_mul,
    "f.scaled_int8_quant(x, s)[0]": lambda x, s: (x.float() / s).clamp(-128, 127).to(torch.int8),
    "f.scaled_fp8_quant(x, s)[0]": lambda x, s: (x.float() / s).to(torch.float8_e4m3fn),
    "f.fp8_blockwise_act_quant(x, 128)": lambda x: _quantized(x, 1),
    "f.fp8_blockwise_weight_quant(x, 128)": lambda x: _quantized(x, 128),
    "f.fp8_blockwise_weight_dequant(x, s, 128)": _dequantized,
}


# What Triton's interpreter stumbles over.
NOT_INTERPRETED = {
    "f.gelu(x)",  # a scalar function whose globals it does not find
    "f.argmax(x, 1)",  # `.value` of a dtype
}


def expected(forward, given):
    """Eager torch's results, as a tuple."""
    found = EAGER[forward.call](*given.values())
    return found if isinstance(found, tuple) else (found,)


def differs(found, wanted):
    """What is wrong with a result, or nothing."""
    wanted = wanted.to(found.device)
    if found.shape != wanted.shape:
        return f"shape {tuple(found.shape)} for {tuple(wanted.shape)}"
    near = {torch.float16: 1e-2, torch.bfloat16: 5e-2}.get(found.dtype, 1e-3)
    wanted = wanted.to(found.dtype)
    if found.dtype is torch.float8_e4m3fn:
        # One step apart at most; torch compares no such numbers.
        found, wanted, near = found.float(), wanted.float(), 0.13
    try:
        torch.testing.assert_close(found, wanted, rtol=near, atol=near, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""
