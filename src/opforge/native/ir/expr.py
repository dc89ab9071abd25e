"""Arithmetic on sizes, as a trace leaves it: evaluated in Python, written out as C.

`cdiv(m * n, 128)` of a trace over `x: "m n"` is

    Expr("//", Expr("+", Expr("*", Var("m"), Var("n")), 127), 128)

Integers are 64 bits wide and divide as Python's do; truth is an integer 0 or 1.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...records import BadField, shown

Number = int | float


@dataclass(frozen=True)
class Var:
    """A value that a call brings: a size, a stride, a scalar, or an attribute of the device.

    Named as a reader would: "m" for a named size, "x.shape[0]", "x.stride[1]", "x.data_ptr()",
    "alpha", "device.multi_processor_count".
    """

    name: str
    is_float: bool = False

    def __str__(self) -> str:
        return self.name


_ADDRESS = ".data_ptr()"


def address_of(parameter: str) -> str:
    """The variable for a tensor's address."""
    return parameter + _ADDRESS


def addressed(variable: str) -> str | None:
    """The parameter whose address a variable is; None if it is something else."""
    return variable.removesuffix(_ADDRESS) if variable.endswith(_ADDRESS) else None


def is_stride(variable: Var) -> bool:
    """Whether a variable is a stride that a caller chooses: `x.stride[0]`."""
    return ".stride[" in variable.name


@dataclass(frozen=True, eq=False)
class Expr:
    """An operation; constants stand as plain numbers among its operands.

    A trace looks terms up in tables all the time, so each keeps its hash, which otherwise goes
    through all of its parts.
    """

    op: str
    args: tuple[Term, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.args)))

    @functools.cached_property
    def _is_float(self) -> bool:
        return _makes_float(self)

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expr) or hash(self) != hash(other) or self.op != other.op:
            return False
        # 2 and 2.0 are equal in Python, but `n // 2` and `n // 2.0` are not the same in C.
        return self.args == other.args and [*map(type, self.args)] == [*map(type, other.args)]

    def __reduce__(self) -> tuple[type[Expr], tuple[str, tuple[Term, ...]]]:
        # Strings have other hashes in another process.
        return Expr, (self.op, self.args)

    def __str__(self) -> str:
        return text(self)


Term = Expr | Var | int | float


def make(op: str, *args: Term) -> Term:
    """An operation, computed at once where it has only constants."""
    if all(isinstance(a, (int, float)) for a in args):
        return OPERATIONS[op](*args)
    return Expr(op, args)


# Every operation there is, and what it means.
OPERATIONS: dict[str, Callable[..., Number]] = {
    "+": lambda *values: sum(values),
    "*": lambda *values: functools.reduce(operator.mul, values),
    "min": min,
    "max": max,
    "and": lambda *values: int(all(values)),
    "or": lambda *values: int(any(values)),
    "neg": operator.neg,
    "abs": abs,
    "not": lambda a: int(not a),
    "float": float,
    "int": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "//": operator.floordiv,
    "%": operator.mod,
    "/": operator.truediv,
    "**": operator.pow,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "where": lambda condition, yes, no: yes if condition else no,
}
COMPARISONS = frozenset({"==", "!=", "<", "<="})
_TRUTHS = COMPARISONS | {"and", "or", "not"}
_FLOATS = frozenset({"/", "float", "sqrt", "exp", "log", "log2"})


def is_float(term: Term) -> bool:
    """Whether a term is a double in C, not an int64_t."""
    if isinstance(term, Var):
        return term.is_float
    return term._is_float if isinstance(term, Expr) else isinstance(term, float)  # noqa: SLF001


def _makes_float(term: Expr) -> bool:
    if term.op in _FLOATS:
        return True
    if term.op in _TRUTHS or term.op in {"int", "floor", "ceil", "round"}:
        return False
    operands = term.args[1:] if term.op == "where" else term.args
    # A negative power of an integer is a fraction.
    if term.op == "**" and isinstance(term.args[1], int) and term.args[1] < 0:
        return True
    return any(is_float(a) for a in operands)


def evaluate(
    term: Term,
    values: Mapping[str, Any],
    operations: Mapping[str, Callable[..., Any]] = OPERATIONS,
) -> Any:
    """The value of a term, given its variables by name; `operations` for values of other types."""
    if isinstance(term, Var):
        return values[term.name]
    if not isinstance(term, Expr):
        return term
    return operations[term.op](*(evaluate(a, values, operations) for a in term.args))


def parts(term: Term) -> Iterator[Term]:
    """A term and everything in it, with repetitions."""
    yield term
    if isinstance(term, Expr):
        for arg in term.args:
            yield from parts(arg)


def variables(term: Term) -> Iterator[Var]:
    """Every variable of a term, with repetitions."""
    return (part for part in parts(term) if isinstance(part, Var))


def constants(term: Term) -> Iterator[Number]:
    return (part for part in parts(term) if isinstance(part, (int, float)))


_OPPOSITE = {"==": "!=", "!=": "==", "<": "<=", "<=": "<"}


def negated(term: Term) -> Term:
    """`a < b` -> `b <= a`; anything else gets a `not`."""
    if isinstance(term, Expr):
        if term.op == "not":
            return term.args[0]
        if term.op in {"==", "!="}:
            return Expr(_OPPOSITE[term.op], term.args)
        # With floats, not (a < b) also holds for nan, which b <= a does not.
        if term.op in {"<", "<="} and not any(map(is_float, term.args)):
            return Expr(_OPPOSITE[term.op], term.args[::-1])
    return make("not", term)


# How tightly operators bind in Python; functions bind tightest.
_BINDING = {
    "or": 1, "and": 2, "not": 3, "==": 4, "!=": 4, "<": 4, "<=": 4, "|": 5, "^": 6, "&": 7,
    "<<": 8, ">>": 8, "+": 9, "*": 10, "//": 10, "%": 10, "/": 10, "neg": 11, "**": 12,
}  # fmt: skip


def text(term: Term, outer: int = 0) -> str:
    """As Python writes it, in an operation that binds as `outer`: `(m * n + 127) // 128`."""
    if not isinstance(term, Expr):
        signed = isinstance(term, (int, float)) and term < 0 and outer > _BINDING["neg"]
        return f"({term})" if signed else str(term)
    if term.op == "*" and term.args[0] == -1 and not is_float(term) and len(term.args) == 2:
        term = Expr("neg", term.args[1:])
    own = _BINDING.get(term.op)
    if own is None:
        return f"{term.op}({', '.join(text(a) for a in term.args)})"
    if term.op in {"neg", "not"}:
        sign = "-" if term.op == "neg" else "not "
        written = sign + text(term.args[0], own)
    elif term.op == "+":
        written = _sum(term)
    else:
        first, *rest = term.args
        # The right operand of // binds tighter: a // (b // c). So does the left one of **, which
        # binds from the right, and of a comparison, because a < b < c is two of them.
        left = own + 1 if term.op == "**" or term.op in COMPARISONS else own
        written = f" {term.op} ".join([text(first, left), *(text(a, own + 1) for a in rest)])
    return f"({written})" if own < outer else written


def _sum(term: Expr) -> str:
    """`n - n // 2` for what a trace leaves as `n + -1 * (n // 2)`."""
    own = _BINDING["+"]
    parts = [(part, _subtracted(part)) for part in term.args]
    # Doubles stay in the order in which they are added.
    if not is_float(term):
        parts.sort(key=lambda part: part[1] is not None)
    (first, _), *rest = parts
    written = [
        f"+ {text(part, own + 1)}" if less is None else f"- {text(less, own + 1)}"
        for part, less in rest
    ]
    return " ".join([text(first, own), *written])


def _subtracted(term: Term) -> Term | None:
    """The term without its minus: 3 for -3, `2 * n` for `-2 * n`; None if it has none."""
    if not isinstance(term, Expr):
        return -term if isinstance(term, (int, float)) and term < 0 else None
    if term.op == "neg":
        return term.args[0]
    factor, *others = term.args
    if term.op != "*" or not isinstance(factor, int) or factor >= 0:
        return None
    kept = others if factor == -1 else [-factor, *others]
    return kept[0] if len(kept) == 1 else Expr("*", tuple(kept))


def text_of_all(conditions: Sequence[Term]) -> str:
    """`(m == 1 or n == 1) and k != 0`."""
    outer = _BINDING["and"] if len(conditions) > 1 else 0
    return " and ".join(text(condition, outer) for condition in conditions)


def to_json(term: Term) -> Any:
    """`m * 2` -> `["*", "m", 2]`; a float variable is `["var", "alpha", "float"]`."""
    if isinstance(term, Var):
        return ["var", term.name, "float"] if term.is_float else term.name
    if isinstance(term, Expr):
        return [term.op, *(to_json(a) for a in term.args)]
    if isinstance(term, float) and not math.isfinite(term):
        return ["const", str(term)]
    return term


def from_json(value: Any) -> Term:
    """Raises `BadField` for what `to_json` does not write."""
    if isinstance(value, str):
        return Var(value)
    if isinstance(value, (int, float)):
        return value
    try:
        op, *args = value
        if op == "var":
            return Var(args[0], is_float=True)
        return float(args[0]) if op == "const" else Expr(op, tuple(map(from_json, args)))
    except (LookupError, TypeError, ValueError):
        raise BadField(f"is {shown(value)}, expected a term") from None
