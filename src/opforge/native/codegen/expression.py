"""Terms as C: 64-bit integers with overflow checks, and doubles.

(m * n + 127) // 128  ->  of_floordiv(of_add(of_mul(v->m, v->n, overflow), 127, overflow),
                                      128, overflow)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from ..ir.expr import Expr, Term, Var, is_float

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Functions by operation: of integers, which take `overflow` as well, and of doubles.
_INTEGER = {
    "+": "of_add", "*": "of_mul", "neg": "of_neg", "//": "of_floordiv", "%": "of_mod",
    "**": "of_pow", "abs": "of_abs", "<<": "of_shl", ">>": "of_shr",
}  # fmt: skip
_EXTREMES = {"min": "of_min", "max": "of_max"}
_DOUBLE = {
    "//": "of_floordiv_float", "%": "of_mod_float", "**": "pow", "abs": "fabs",
    "min": "of_min_float", "max": "of_max_float",
    "sqrt": "sqrt", "exp": "exp", "log": "log", "log2": "log2",
}  # fmt: skip
_ROUNDING = {"int": "trunc", "floor": "floor", "ceil": "ceil", "round": "rint"}
# Operators between their operands, and those that are so for doubles alone.
_INFIX = {"==", "!=", "<", "<=", "&", "|", "^"}
_SIGNS = {"and": "&&", "or": "||", "/": "/"} | {sign: sign for sign in _INFIX}
_DOUBLE_SIGNS = {"+": "+", "*": "*"}


def integer(value: int) -> str:
    """A constant, with 64 bits if it needs them."""
    if not INT64_MIN <= value <= INT64_MAX:
        raise OverflowError(f"{value} does not fit into 64 bits")
    if value == INT64_MIN:
        return "INT64_MIN"
    return str(value) if abs(value) < 2**31 else f"INT64_C({value})"


def double(value: float) -> str:
    if math.isnan(value):
        return "(double)NAN"
    if math.isinf(value):
        return "HUGE_VAL" if value > 0 else "(-HUGE_VAL)"
    # A sign in front of a sign would be C's --.
    return f"({value!r})" if math.copysign(1.0, value) < 0 else repr(value)


class Writer:
    """Writes terms for one operator; `fields` names the field of `Values` for each variable."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields

    def __call__(self, term: Term) -> str:
        if isinstance(term, Var):
            return f"v->{self._fields[term.name]}"
        if isinstance(term, Expr):
            return self._operation(term)
        return double(term) if isinstance(term, float) else integer(int(term))

    def as_double(self, term: Term) -> str:
        if isinstance(term, int):
            return double(float(term))
        return self(term) if is_float(term) else f"(double){self(term)}"

    def condition(self, term: Term) -> str:
        """For an `if`, without the parentheses that a comparison brings."""
        written = self(term)
        return written[1:-1] if isinstance(term, Expr) and term.op in _INFIX else written

    def _operation(self, term: Expr) -> str:
        op, args, real = term.op, term.args, is_float(term)
        if op == "where":
            yes, no = map(self.as_double if real else self, args[1:])
            return f"({self(args[0])} ? {yes} : {no})"
        if op == "float":
            return f"({self.as_double(args[0])})"
        if op in _ROUNDING:
            value = self(args[0])
            return f"of_int({_ROUNDING[op]}({value}), overflow)" if is_float(args[0]) else value
        doubles = real or (op in _INFIX and any(map(is_float, args)))
        written = [self.as_double(a) if doubles else self(a) for a in args]
        sign = _SIGNS.get(op) or (_DOUBLE_SIGNS.get(op) if real else None)
        if sign:
            return f"({f' {sign} '.join(written)})"
        if op == "not" or (op == "neg" and real):
            return f"({'!' if op == 'not' else '-'}{written[0]})"
        if real:
            return _call(_DOUBLE[op], written)
        if op in _EXTREMES:
            return _call(_EXTREMES[op], written)
        return _call(_INTEGER[op], written, ", overflow")


def _call(name: str, args: list[str], last: str = "") -> str:
    """`name(a)`, or `name(name(a, b), c)`, each with the last argument."""
    if len(args) == 1:
        return f"{name}({args[0]}{last})"
    return functools.reduce(lambda a, b: f"{name}({a}, {b}{last})", args)
