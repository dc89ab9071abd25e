"""torch's arithmetic on a GPU, to the bit, for kernels that opforge writes.

Triton's own `exp` and `/` are faster and round otherwise.
"""

# Triton reads these functions' annotations, so they stay objects.

import triton
import triton.language as tl
from triton.language import target_info
from triton.language.extra import libdevice
from triton.language.target_info import is_hip


# AMD's libdevice lacks these two, and Triton looks up there all that a module has from libdevice.
@triton.jit
def mul_rn(a, b):
    return libdevice.mul_rn(a, b)


@triton.jit
def rcp_rn(x):
    return libdevice.rcp_rn(x)


@triton.jit
def positions(n, BLOCK: tl.constexpr):
    """This program's elements, in a type that holds all of them."""
    # An n of 1 is a constant, which has no type.
    wide = tl.full((), 0, tl.int32) + n
    if wide.dtype == tl.int64:
        return tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    else:
        # Unsigned, because the last block may reach beyond 2**31.
        return tl.program_id(0).to(tl.uint32) * BLOCK + tl.arange(0, BLOCK).to(tl.uint32)


@triton.jit
def alike(number, index):
    """A size in the type of an index."""
    return (tl.full((), 0, tl.int32) + number).to(index.dtype)


@triton.jit
def cast(x, dtype: tl.constexpr):
    if dtype == tl.float8e4nv:
        x = x.to(tl.float32)
        return tl.where(tl.abs(x) > 464.0, float("nan"), x).to(dtype)
    elif dtype == tl.float8e5:
        x = x.to(tl.float32)
        x = tl.where(tl.abs(x) >= 61440.0, x * float("inf"), x)
        return x.to(dtype)
    elif dtype == tl.uint8 and x.dtype.is_floating():
        return x.to(tl.int64).to(dtype)
    elif dtype == tl.float16 or dtype == tl.bfloat16:
        # From any other type, torch rounds to float32 first.
        return x.to(tl.float32).to(dtype)
    else:
        return x.to(dtype)


@triton.jit
def divide(a, b):
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def root(x):
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


@triton.jit
def sigmoid(x):
    return inverse(tl.full((), 1.0, x.dtype) + exp(minus(x)))


@triton.jit
def inverse(x):
    """1 / x, rounded as a division is, in half the time."""
    if is_hip():
        return divide(tl.full((), 1.0, x.dtype), x)
    elif x.dtype == tl.float32:
        return rcp_rn(x)
    else:
        return tl.full((), 1.0, x.dtype) / x


@triton.jit
def tanh(x):
    """libdevice's, to the bit, but without its branch, which has half of a warp wait for the rest.

    Numbers below 0.6 take a polynomial, others 1 - 2 / (exp(2 x) + 1).
    """
    if is_hip():
        return libdevice.tanh(x)
    elif x.dtype == tl.float32:
        size = tl.abs(x)
        far = tl.fma(_rcp_approx(_ex2_approx(size * 2.885390043258667) + 1.0), -2.0, 1.0)
        square = mul_rn(x, x)
        near = tl.fma(square, 0.01573968306183815, -0.05230396240949631)
        near = tl.fma(near, square, 0.13315297663211823)
        near = tl.fma(near, square, -0.33332768082618713)
        # Not a product: 0.0 makes -0.0 positive, and then the result for -0.0 is -0.0.
        near = tl.fma(near, square, 0.0)
        return tl.where(size >= 0.6000000238418579, copysign(far, x), tl.fma(near, x, x))
    else:
        return libdevice.tanh(x)


@triton.jit
def _ex2_approx(x):
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _rcp_approx(x):
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def silu(x):
    return divide(x, tl.full((), 1.0, x.dtype) + exp(minus(x)))


@triton.jit
def largest(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smallest(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def times(a, b):
    """A product that the compiler does not make one operation with a sum."""
    if is_hip():
        # Compiled without such operations.
        return a * b
    elif a.dtype == tl.float32 or a.dtype == tl.float64:
        return mul_rn(a, b)
    else:
        return a * b


@triton.jit
def minus(x):
    if x.dtype.is_floating():
        # Not 0 - x, which has no -0.0.
        return x * -1.0
    else:
        return -x


@triton.jit
def as_if(x, dtype: tl.constexpr):
    """Rounded to a dtype, in the one that it has."""
    if dtype == x.dtype:
        return x
    else:
        return cast(x, dtype).to(x.dtype)


@triton.jit
def whole_quotient(quotient, rest, b, true, dtype: tl.constexpr):
    """torch's floor of a quotient, from (a - a % b) / b; `dtype` is the result's."""
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1.0, quotient)
    down = as_if(tl.floor(quotient), dtype)
    down = tl.where(quotient - down > 0.5, as_if(down + 1.0, dtype), down)
    return tl.where(quotient == 0, copysign(quotient * 0.0, true), down)


@triton.jit
def in_range(at, size):
    """An index, where a kernel stops the GPU's work if it is outside, as torch's does."""
    tl.inline_asm_elementwise(
        _trap(),
        _trap_operands(),
        [((at < 0) | (at >= size)).to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    return at


@triton.constexpr_function
def _trap():
    """Assembly that stops at a number other than 0.

    AMD's is what torch's `abort` becomes there: a print, as `tl.device_assert` has it, costs time
    where nothing is printed, too.
    """
    if not is_hip():
        return "{ .reg .pred p; setp.ne.s32 p, $1, 0; @p trap; mov.u32 $0, 0; }"
    mask = "vcc" if target_info.current_target().warp_size == 64 else "vcc_lo"
    end = ".Lin_range_${:uid}"
    jump = f"v_cmp_ne_u32 {mask}, 0, $1\ns_cbranch_vccz {end}"
    return f"{jump}\ns_trap 2\n{end}:\nv_mov_b32 $0, 0"


@triton.constexpr_function
def _trap_operands():
    return "=v,v,~{vcc}" if is_hip() else "=r,r"


@triton.jit
def from_end(at, size):
    """An index as Python counts: -1 is the last."""
    return in_range(tl.where(at < 0, at + size, at), size)


@triton.jit
def wide(n):
    return tl.full((), 0, tl.int64) + n


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def both(a, b):
    return a & b


@triton.jit
def exceeds(a, b):
    """Whether an element replaces the largest so far: nothing is larger than NaN."""
    return (a > b) | ((a != a) & (b == b))


@triton.jit
def falls_below(a, b):
    return (a < b) | ((a != a) & (b == b))


@triton.jit
def first_largest(a, i, b, j):
    takes = (i < 0) | ((j >= 0) & (exceeds(b, a) | (~exceeds(a, b) & (j < i))))
    return tl.where(takes, b, a), tl.where(takes, j, i)


@triton.jit
def first_smallest(a, i, b, j):
    takes = (i < 0) | ((j >= 0) & (falls_below(b, a) | (~falls_below(a, b) & (j < i))))
    return tl.where(takes, b, a), tl.where(takes, j, i)


@triton.jit
def scaled(x, most):
    """exp(x - most), where equal infinities are at no distance."""
    return tl.where(x == most, 1.0, exp(x - most))


@triton.jit
def sums_of_exps(m, s, n, t):
    most = largest(m, n)
    return most, s * scaled(m, most) + t * scaled(n, most)


@triton.jit
def moments(mean, m2, count, mean_b, m2_b, count_b):
    both = count + count_b
    share = tl.where(both == 0, 0.0, divide(count_b, both))
    delta = mean_b - mean
    return mean + delta * share, m2 + m2_b + delta * delta * count * share, both


@triton.jit
def floor_divide(a, b, dtype: tl.constexpr):
    if a.dtype.is_floating():
        rest = as_if(fmod(a, b), dtype)
        true = divide(a, b)
        found = whole_quotient(divide(a - rest, b), rest, b, true, dtype)
        return tl.where(b == 0, true, found)
    elif a.dtype.is_int_unsigned():
        return a // b
    else:
        found = a // b
        return tl.where((a % b != 0) & ((a < 0) != (b < 0)), found - 1, found)


@triton.jit
def floor_divide_number(a, b, dtype: tl.constexpr):
    """By a number, of which torch takes the reciprocal."""
    if a.dtype.is_floating():
        share = inverse(b)
        rest = fmod(a, b)
        quotient = times(a - rest, share)
        found = whole_quotient(quotient, rest, b, times(a, share), dtype)
        return tl.where(b == 0, divide(a, b), found)
    else:
        return floor_divide(a, b, a.dtype)


@triton.jit
def remainder(a, b):
    if a.dtype.is_floating():
        found = fmod(a, b)
    else:
        found = a % b
    if a.dtype.is_int_unsigned():
        return found
    else:
        return tl.where((found != 0) & ((b < 0) != (found < 0)), found + b, found)


@triton.jit
def truncated(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def is_infinite(x):
    return tl.abs(x) == float("inf")


@triton.jit
def integer_power(base, exponent):
    """By squaring, as torch; a negative exponent leaves only 1 and -1."""
    left = tl.where(exponent < 0, 0, exponent)
    found = tl.full(base.shape, 1, base.dtype)
    factor = base
    for _ in range(64):
        found = tl.where((left & 1) != 0, found * factor, found)
        factor = factor * factor
        left = left >> 1
    if base.dtype.is_int_unsigned():
        # Triton 3.9 does not compare such with -1.
        return found
    else:
        odd = (exponent & 1) != 0
        negative = tl.where(base == 1, 1, tl.where(base == -1, tl.where(odd, -1, 1), 0))
        return tl.where(exponent < 0, negative.to(base.dtype), found)


exp, log, sin, cos, erf = libdevice.exp, libdevice.log, libdevice.sin, libdevice.cos, libdevice.erf
exp2, log2, log10, log1p = libdevice.exp2, libdevice.log2, libdevice.log10, libdevice.log1p
expm1, rsqrt, fmod = libdevice.expm1, libdevice.rsqrt, libdevice.fmod
# Triton 3.6 has no rint for AMD GPUs.
floor, ceil, nearest, power = libdevice.floor, libdevice.ceil, libdevice.nearbyint, libdevice.pow
copysign = libdevice.copysign
