"""What Triton's interpreter lacks of libdevice. Imported while Triton interprets."""

import triton
import triton.language as tl

from opforge._compat import interpreter
from support.standin.driver import Trapped

interpreter.mend()


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
