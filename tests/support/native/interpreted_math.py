"""What Triton's interpreter lacks of libdevice. Imported while Triton interprets."""

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from support.standin.driver import Trapped


def _cast(self, source, kind):
    """Triton 3.7's interpreter cuts a float off where a GPU rounds it to bfloat16."""
    if source.dtype.scalar is tl.float32 and kind.scalar is tl.bfloat16:
        rounded = torch.from_numpy(source.data).bfloat16().view(torch.uint16).numpy()
        return interpreter.TensorHandle(rounded, kind.scalar)
    return _CAST(self, source, kind)


def _convert(self, source, kind, rounding):
    """Triton 3.7's interpreter loses the carry where a float is rounded up to a power of two."""
    if source.dtype.scalar in {tl.float16, tl.float32} and kind.scalar is tl.float8e4nv:
        # A GPU keeps within the largest number.
        clamped = torch.from_numpy(source.data).float().clamp(-448, 448)
        rounded = clamped.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        return interpreter.TensorHandle(rounded, kind.scalar)
    return _CONVERT(self, source, kind, rounding)


_CAST = interpreter.InterpreterBuilder.cast_impl
_CONVERT = interpreter.InterpreterBuilder.create_fp_to_fp
interpreter.InterpreterBuilder.cast_impl = _cast
interpreter.InterpreterBuilder.create_fp_to_fp = _convert


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def exp2(x):
    return tl.exp2(x)


@triton.jit
def expm1(x):
    return tl.exp(x) - 1.0


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def log2(x):
    return tl.log2(x)


@triton.jit
def log10(x):
    return tl.log(x) * 0.4342944819032518


@triton.jit
def log1p(x):
    return tl.log(x + 1.0)


@triton.jit
def sin(x):
    return tl.sin(x)


@triton.jit
def cos(x):
    return tl.cos(x)


@triton.jit
def erf(x):
    return tl.erf(x)


@triton.jit
def tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def rsqrt(x):
    return tl.rsqrt(x)


@triton.jit
def floor(x):
    return tl.floor(x)


@triton.jit
def ceil(x):
    return tl.ceil(x)


@triton.jit
def fmod(a, b):
    return a % b


@triton.jit
def power(a, b):
    size = tl.exp(b * tl.log(tl.abs(a)))
    odd = (b - 2.0 * tl.floor(b * 0.5)) == 1.0
    whole = tl.where(odd, -size, size)
    signed = tl.where(b == tl.floor(b), whole, float("nan"))
    found = tl.where(a < 0, signed, size)
    return tl.where((b == 0.0).to(tl.int1), 1.0, found)


@triton.jit
def nearest(x):
    down = tl.floor(x)
    is_odd = down - 2.0 * tl.floor(down * 0.5) != 0.0
    above = x - down
    return tl.where((above > 0.5) | ((above == 0.5) & is_odd), down + 1.0, down)


@triton.jit
def mul_rn(a, b):
    return a * b


@triton.jit
def copysign(a, b):
    is_negative = (b < 0) | ((b == 0) & (1.0 / b < 0))
    return tl.where(is_negative, tl.abs(a) * -1.0, tl.abs(a))


def in_range(at, size):
    """No kernel's, because the interpreter ignores assertions."""
    inside = (at >= 0) & (at < size)
    if not inside.handle.data.all():
        raise Trapped(f"index out of range: {at}, size {size}")
    return at


@triton.jit
def rcp_rn(x):
    return 1.0 / x
