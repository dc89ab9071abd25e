"""torch's pointwise functions as values: in which dtype each computes, and what.

A rule has the name of an aten operator: `add` is that of `aten.add.Tensor` and `aten.add_.Scalar`.
Values come to a rule in the dtype that torch computes in, which is float32 for half precision, and
what it returns is rounded to the result's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .values import NAMES, Applied, Number, Value, cast

# How torch promotes: by the names of its own enum.
DEFAULT, FLOAT, BOOL = "DEFAULT", "INT_TO_FLOAT", "ALWAYS_BOOL"
FLOATS, INTEGERS, BOOLS = "floats", "integers", "bools"
# uint16, uint32 and uint64, and 8-bit floats: CUDA torch has next to no kernels for them.
WIDE_UNSIGNED, TINY_FLOATS = "wide unsigned", "8-bit floats"


_NUMBERS, _BITS = (FLOATS, INTEGERS), (INTEGERS, BOOLS)
_ALL = (FLOATS, INTEGERS, BOOLS, WIDE_UNSIGNED, TINY_FLOATS)
_CHOSEN = (FLOATS, INTEGERS, BOOLS, TINY_FLOATS)


@dataclass(frozen=True)
class Rule:
    """`make` takes as many values as there are operands, and the call's other arguments."""

    promotion: str
    operands: int
    make: Callable[..., Value | None]
    # Whether operands come in their common dtype, not in the one to compute in.
    is_exact: bool = False
    # The operands that decide the dtype; the others come as they are. None is all of them.
    decides: tuple[int, ...] | None = None
    # Whether a new result is compact, whatever strides the operands have.
    is_compact: bool = False
    # The operands that torch converts with a check, if they are numbers; it wraps others around.
    checked: tuple[int, ...] = ()
    # The operands that are the low and the high ends of a range.
    ends: tuple[int | None, ...] = ()
    # The kinds of dtypes that torch has the call for; it raises for others.
    takes: tuple[str, ...] = (FLOATS, INTEGERS, BOOLS)
    # Whether it also raises for an operand of bools that is promoted to something else.
    refuses_bools: bool = False

    @property
    def deciding(self) -> Sequence[int]:
        return range(self.operands) if self.decides is None else self.decides


_COMMON = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
}  # fmt: skip


def kind_of(dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return BOOLS
    if dtype not in _COMMON:
        return TINY_FLOATS if dtype.is_floating_point else WIDE_UNSIGNED
    return FLOATS if dtype.is_floating_point else INTEGERS


def refuse_kind(name: str, dtype: torch.dtype, *kinds: str) -> None:
    """Raise as torch does for a dtype that a call does not have."""
    if kind_of(dtype) not in kinds:
        raise NotImplementedError(f"{name} is not implemented for {dtype}")


def apply(text: str, *args: Value, dtype: torch.dtype | None = None) -> Value:
    return Applied(dtype or args[0].dtype, text, args)


def _by_kind(text: str, *, ints: str = "", bools: str = "") -> Callable[..., Value]:
    """One expression; `ints` and `bools` are those for integers and bools."""

    def make(*values: Value) -> Value:
        dtype = values[0].dtype
        own = bools if dtype is torch.bool else "" if dtype.is_floating_point else ints
        return apply(own or text, *values)

    return make


def _text(
    text: str,
    operands: int = 1,
    promotion: str = DEFAULT,
    *,
    ints: str = "",
    bools: str = "",
    **more: Any,
) -> Rule:
    """A rule that is one expression."""
    return Rule(promotion, operands, _by_kind(text, ints=ints, bools=bools), **more)


def _compare(sign: str) -> Rule:
    def make(a: Value, b: Value) -> Value:
        return apply(f"{{0}} {sign} {{1}}", _single(a), _single(b), dtype=torch.bool)

    takes = _ALL if sign in {"==", "!="} else (*_NUMBERS, BOOLS)
    return Rule(BOOL, 2, make, is_exact=True, takes=takes)


def _single(x: Value) -> Value:
    """Smaller floats as float32, which holds the same number."""
    is_small = x.dtype.is_floating_point and x.dtype.itemsize < 4
    return cast(x, torch.float32) if is_small else x


def _logical(text: str, operands: int) -> Rule:
    def make(*values: Value) -> Value:
        return apply(text, *(cast(v, torch.bool) for v in values), dtype=torch.bool)

    return Rule(BOOL, operands, make, is_exact=True)


def number(like: Value, value: Any) -> Number:
    return Number(like.dtype, value)


def _add(a: Value, b: Value, *, alpha: Any = 1) -> Value:
    _refuse_truth(a, alpha)
    if a.dtype is torch.bool:
        if isinstance(alpha, (float, torch.SymFloat)):
            raise RuntimeError("alpha of bools must not be a floating point number")
        return apply("{0} | {1} & {2}", a, b, number(b, alpha))
    if _is(alpha, 1):
        return apply("{0} + {1}", a, b)
    if a.dtype.is_floating_point:
        return apply("tl.fma({0}, {1}, {2})", b, number(b, alpha), a)
    return apply("{0} + {1} * {2}", a, number(a, alpha), b)


def _sub(a: Value, b: Value, *, alpha: Any = 1) -> Value:
    _refuse_truth(a, alpha)
    return apply("{0} - {1}", a, b) if _is(alpha, 1) else _add(a, b, alpha=-alpha)


def _refuse_truth(a: Value, alpha: Any) -> None:
    if isinstance(alpha, bool) and a.dtype is not torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results")


def _div(a: Value, b: Value) -> Value:
    if isinstance(b, Number):
        # torch multiplies by the reciprocal of a number.
        return apply("times({0}, inverse({1}))", a, b)
    return apply("divide({0}, {1})", a, b)


def _div_trunc(a: Value, b: Value, *, rounding_mode: str) -> Value:
    if not a.dtype.is_floating_point:
        return apply("{0} // {1}", a, b)
    wide = number(_single(a), b.number) if isinstance(b, Number) else _single(b)
    rounded = cast(_div(_single(a), wide), a.dtype)
    return cast(apply("truncated({0})", _single(rounded)), a.dtype)


def _floor_divide(a: Value, b: Value) -> Value:
    dtype = a.dtype
    if isinstance(b, Number):
        wide = _single(a)
        text = f"floor_divide_number({{0}}, {{1}}, {NAMES[dtype]})"
        return cast(apply(text, wide, number(wide, b.number)), dtype)
    text = f"floor_divide({{0}}, {{1}}, {NAMES[dtype]})"
    return cast(apply(text, _single(a), _single(b)), dtype)


def _pow(a: Value, b: Value) -> Value:
    if not a.dtype.is_floating_point:
        exponent = b.args[0] if isinstance(b, Applied) and b.text == "{0}" else b
        if isinstance(exponent, Number) and exponent.number < 0:
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        return apply("integer_power({0}, {1})", a, b)
    dtype, base = a.dtype, _single(a)
    one = number(base, 1.0)
    if isinstance(b, Number) and _plain(b.number):
        # torch has shorter ways for these exponents, and rounds each step of them.
        if b.number in {2.0, 3.0, -2.0}:
            found = cast(apply("times({0}, {0})", base), dtype)
            if b.number == 3.0:
                found = apply("times({0}, {1})", _single(found), base)
            if b.number == -2.0:
                found = apply("divide({0}, {1})", one, _single(found))
            return cast(found, dtype)
        short = {0.5: "root({0})", -0.5: "rsqrt({0})", -1.0: "divide({1}, {0})"}.get(b.number)
        if short is not None:
            return cast(apply(short, base, one), dtype)
    return cast(apply("power({0}, {1})", base, _single(b)), dtype)


def _where(condition: Value, a: Value, b: Value) -> Value:
    return apply("tl.where({0}, {1}, {2})", condition, a, b, dtype=a.dtype)


_maximum = _by_kind("largest({0}, {1})", bools="{0} | {1}")
_minimum = _by_kind("smallest({0}, {1})", bools="{0} & {1}")


def _clamp(x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    if low is not None:
        x = _maximum(x, low)
    return x if high is None else _minimum(x, high)


def _abs(x: Value) -> Value:
    unsigned = x.dtype in {torch.uint8, torch.bool}
    return x if unsigned else apply("tl.abs({0})", x)


def _gelu(x: Value, *, approximate: str = "none") -> Value:
    half, one = number(x, 0.5), number(x, 1.0)
    if approximate == "none":
        inner = apply("erf({0} * {1})", x, number(x, math.sqrt(0.5)))
    else:
        cube = apply("{0} * {0} * {0}", x)
        grown = apply("tl.fma({0}, {1}, {2})", number(x, 0.044715), cube, x)
        factor = number(x, math.sqrt(2.0) * (2.0 / math.sqrt(math.pi)) * 0.5)
        inner = apply("tanh({0} * {1})", factor, grown)
    return apply("{0} * {1} * ({2} + {3})", x, half, one, inner)


def _leaky_relu(x: Value, negative_slope: Any = 0.01) -> Value:
    return apply("tl.where({0} > 0, {0}, {0} * {1})", x, number(x, negative_slope))


def _softplus(x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    scaled = apply("{0} * {1}", x, number(x, beta))
    smooth = apply("divide(log1p(exp({0})), {1})", scaled, number(x, beta))
    return apply("tl.where({0} > {1}, {2}, {3})", scaled, number(x, threshold), x, smooth)


def _addcmul(x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    if not x.dtype.is_floating_point:
        return apply("{0} + {1} * {2} * {3}", x, number(x, value), a, b)
    if _is(value, 1):
        return apply("tl.fma({0}, {1}, {2})", a, b, x)
    return apply("tl.fma({0}, {1} * {2}, {3})", number(x, value), a, b, x)


def _addcdiv(x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    return apply("tl.fma({0}, divide({1}, {2}), {3})", number(x, value), a, b, x)


def _round(x: Value, *, decimals: int = 0) -> Value | None:
    if decimals:
        return None
    return apply("nearest({0})", x) if x.dtype.is_floating_point else x


def _whole(text: str) -> Rule:
    """A rule that leaves integers as they are."""
    return Rule(
        DEFAULT, 1, lambda x: apply(text, x) if x.dtype.is_floating_point else x, takes=_NUMBERS
    )


def _bitwise_not(x: Value) -> Value:
    if x.dtype is torch.bool:
        return apply("{0} == 0", x)
    # All bits of a signed type are -1, of an unsigned one the largest number.
    ones = torch.iinfo(x.dtype).max if x.dtype is torch.uint8 else -1
    return apply("{0} ^ {1}", x, number(x, ones))


def _shift(text: str) -> Rule:
    def make(a: Value, b: Value) -> Value:
        bits = 8 * a.dtype.itemsize
        # Shifted further than this, only the sign is left, which unsigned types lack.
        beyond = f"{{0}} >> {bits - 1}" if a.dtype.is_signed else "0"
        return apply(text.replace("BITS", str(bits)).replace("BEYOND", beyond), a, b)

    return Rule(DEFAULT, 2, make, takes=(INTEGERS,))


def _told(text: str, x: Value) -> Value:
    """A test that holds for no integer."""
    if not x.dtype.is_floating_point:
        return Number(torch.bool, False)
    return apply(text, _single(x), dtype=torch.bool)


def _is(value: Any, wanted: float) -> bool:
    return _plain(value) and value == wanted


def _plain(value: Any) -> bool:
    return isinstance(value, (int, float))


RULES: dict[str, Rule] = {
    "add": Rule(DEFAULT, 2, _add),
    "sub": Rule(DEFAULT, 2, _sub, takes=_NUMBERS, refuses_bools=True),
    "rsub": Rule(
        DEFAULT, 2, lambda a, b, alpha=1: _sub(b, a, alpha=alpha), takes=_NUMBERS,
        refuses_bools=True,
    ),
    "mul": _text("times({0}, {1})", 2, bools="{0} & {1}"),
    "div": Rule(FLOAT, 2, _div),
    "div_trunc": Rule(DEFAULT, 2, _div_trunc, is_exact=True, takes=_NUMBERS),
    "div_floor": Rule(
        DEFAULT, 2, lambda a, b, **_: _floor_divide(a, b), is_exact=True, takes=_NUMBERS
    ),
    "floor_divide": Rule(DEFAULT, 2, _floor_divide, is_exact=True, takes=_NUMBERS),
    "remainder": _text("remainder({0}, {1})", 2, takes=_NUMBERS),
    "fmod": _text("fmod({0}, {1})", 2, ints="{0} % {1}", takes=_NUMBERS),
    "pow": Rule(DEFAULT, 2, _pow, is_exact=True, checked=(1,)),
    "maximum": Rule(DEFAULT, 2, _maximum),
    "minimum": Rule(DEFAULT, 2, _minimum),
    "eq": _compare("=="), "ne": _compare("!="),
    "lt": _compare("<"), "le": _compare("<="),
    "gt": _compare(">"), "ge": _compare(">="),
    "logical_and": _logical("{0} & {1}", 2),
    "logical_or": _logical("{0} | {1}", 2),
    "logical_xor": _logical("{0} ^ {1}", 2),
    "logical_not": _logical("{0} == 0", 1),
    "bitwise_and": _text("{0} & {1}", 2, takes=_BITS),
    "bitwise_or": _text("{0} | {1}", 2, takes=_BITS),
    "bitwise_xor": _text("{0} ^ {1}", 2, takes=_BITS),
    "bitwise_not": Rule(DEFAULT, 1, _bitwise_not, takes=_BITS),
    **dict.fromkeys(
        ("bitwise_left_shift", "__lshift__"),
        _shift("tl.where(({1} < 0) | ({1} >= BITS), 0, {0} << {1})"),
    ),
    **dict.fromkeys(
        ("bitwise_right_shift", "__rshift__"),
        _shift("tl.where(({1} < 0) | ({1} >= BITS), BEYOND, {0} >> {1})"),
    ),
    "isnan": Rule(BOOL, 1, lambda x: _told("{0} != {0}", x), is_exact=True, takes=_ALL),
    "isinf": Rule(BOOL, 1, lambda x: _told("is_infinite({0})", x), is_exact=True),
    "where": Rule(DEFAULT, 3, _where, is_exact=True, decides=(1, 2), checked=(1, 2), takes=_CHOSEN),
    "masked_fill": Rule(
        DEFAULT, 3, lambda x, mask, value: _where(mask, cast(value, x.dtype), x), is_exact=True,
        decides=(0,), is_compact=True, checked=(2,),
    ),
    "clamp": Rule(DEFAULT, 3, _clamp, checked=(1, 2), ends=(1, 2), takes=_NUMBERS),
    "clamp_min": Rule(DEFAULT, 2, _maximum, checked=(1,), ends=(1, None), takes=_NUMBERS),
    "clamp_max": Rule(DEFAULT, 2, _minimum, checked=(1,), ends=(None, 1), takes=_NUMBERS),
    "addcmul": Rule(DEFAULT, 3, _addcmul, takes=_NUMBERS),
    "addcdiv": Rule(FLOAT, 3, _addcdiv),
    "abs": Rule(DEFAULT, 1, _abs),
    "neg": _text("minus({0})"),
    "sign": Rule(DEFAULT, 1, lambda x: x if x.dtype is torch.bool else apply("sign({0})", x)),
    "relu": Rule(DEFAULT, 1, lambda x: _maximum(x, number(x, 0)), takes=_NUMBERS),
    "leaky_relu": Rule(DEFAULT, 1, _leaky_relu, takes=(FLOATS,)),
    "gelu": Rule(DEFAULT, 1, _gelu, takes=(FLOATS,)),
    "silu": _text("silu({0})", takes=(FLOATS,)),
    "softplus": Rule(DEFAULT, 1, _softplus, takes=(FLOATS,)),
    "floor": _whole("floor({0})"), "ceil": _whole("ceil({0})"),
    "trunc": _whole("truncated({0})"), "round": Rule(DEFAULT, 1, _round, takes=_NUMBERS),
    **{
        name: _text(f"{called}({{0}})", promotion=FLOAT)
        for name, called in {
            "sqrt": "root",
            **{n: n for n in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "rsqrt")},
            **{n: n for n in ("sin", "cos", "erf", "tanh", "sigmoid")},
        }.items()
    },
    "reciprocal": _text("inverse({0})", promotion=FLOAT),
}  # fmt: skip
