"""Terms as C: 64-bit integers with overflow checks, and doubles.

(m * n + 127) // 128  ->  of_floordiv(of_add(of_mul(v->m, v->n, overflow), 127, overflow),
                                      128, overflow)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

from ..ir.expr import Expr, Term, Var, is_float

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# By operation: for integers, whose functions take `overflow` as well, and for doubles.
_INTEGER = {
    "+": "of_add",
    "*": "of_mul",
    "neg": "of_neg",
    "//": "of_floordiv",
    "%": "of_mod",
    "**": "of_pow",
    "abs": "of_abs",
    "<<": "of_shl",
    ">>": "of_shr",
}
_DOUBLE = {"//": "of_floordiv_float", "%": "of_mod_float", "**": "pow", "abs": "fabs"}
_DOUBLE |= {"min": "of_min_float", "max": "of_max_float"}
_MATH = {"sqrt", "exp", "log", "log2"}
_INFIX = {"==", "!=", "<", "<=", "&", "|", "^"}
_ROUNDING = {"int": "trunc", "floor": "floor", "ceil": "ceil", "round": "rint"}


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
        op, args = term.op, term.args
        if op in {"and", "or"}:
            return f"({(' && ' if op == 'and' else ' || ').join(self(a) for a in args)})"
        if op == "not":
            return f"(!{self(args[0])})"
        if op == "where":
            return self._choice(term)
        if op == "float":
            return f"({self.as_double(args[0])})"
        if op in _ROUNDING:
            return self._rounding(op, args[0])
        if op in _INFIX:
            left, right = (self.as_double if self._any_float(args) else self)(args[0]), args[1]
            written = self.as_double(right) if self._any_float(args) else self(right)
            return f"({left} {op} {written})"
        return self._function(term)

    def _function(self, term: Expr) -> str:
        op, args = term.op, term.args
        if op in _MATH:
            return f"{op}({self.as_double(args[0])})"
        if op == "/":
            return f"({self.as_double(args[0])} / {self.as_double(args[1])})"
        if not is_float(term):
            if op in {"min", "max"}:
                return self._chain(args, lambda a, b: f"of_{op}({a}, {b})", self)
            name = _INTEGER[op]
            if len(args) == 1:
                return f"{name}({self(args[0])}, overflow)"
            return self._chain(args, lambda a, b: f"{name}({a}, {b}, overflow)", self)
        if op in {"+", "*"}:
            return f"({f' {op} '.join(self.as_double(a) for a in args)})"
        if op == "neg":
            return f"(-{self.as_double(args[0])})"
        name = _DOUBLE[op]
        if len(args) == 1:
            return f"{name}({self.as_double(args[0])})"
        return self._chain(args, lambda a, b: f"{name}({a}, {b})", self.as_double)

    def _rounding(self, op: str, term: Term) -> str:
        if not is_float(term):
            return self(term)
        return f"of_int({_ROUNDING[op]}({self(term)}), overflow)"

    def _choice(self, term: Expr) -> str:
        condition, yes, no = term.args
        write = self.as_double if is_float(term) else self
        return f"({self(condition)} ? {write(yes)} : {write(no)})"

    @staticmethod
    def _chain(
        args: tuple[Term, ...], join: Callable[[str, str], str], write: Callable[[Term], str]
    ) -> str:
        return functools.reduce(join, (write(a) for a in args))

    @staticmethod
    def _any_float(args: tuple[Term, ...]) -> bool:
        return any(is_float(a) for a in args)
