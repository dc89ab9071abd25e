"""Normal forms of terms, so that equal sizes look equal: `n * m + 0` becomes `m * n`.

Conditions that the declared ranges decide are decided here, without a guard: with `m` between 0 and
4096, `m < 0` is 0 and `min(m, 8192)` is `m`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeGuard

from ..ir.expr import (
    COMPARISONS,
    Expr,
    Term,
    Var,
    constants,
    is_float,
    is_stride,
    make,
    text,
    variables,
)

Range = tuple[float, float]
ANYTHING: Range = (-math.inf, math.inf)


class _Knowledge:
    """What is known of the variables at one point of a path, and what was found out from it.

    It does not change: a condition leads to another. The paths of an op begin alike, each is walked
    twice, and its cases for other dtypes ask the same, so that most questions find their answer
    here.
    """

    def __init__(
        self, ranges: dict[str, Range], multiples: dict[str, int], facts: dict[Term, Range]
    ) -> None:
        self.ranges = ranges
        # A known divisor of each variable.
        self.multiples = multiples
        # Known ranges of whole sums and products, each in the form of `core`.
        self.facts = facts
        # Whether the conditions so far contradict each other.
        self.impossible = False
        self.range_of: dict[Term, Range] = {}
        # By method and operands, its result.
        self.found: dict[tuple[str, Term, Term], Term] = {}
        self.decided: dict[Term, int | None] = {}
        self.under: dict[Term, _Knowledge] = {}

    def copy(self) -> _Knowledge:
        copied = _Knowledge(dict(self.ranges), dict(self.multiples), dict(self.facts))
        copied.impossible = self.impossible
        return copied


# So many declarations of sizes have their questions and answers kept.
@functools.lru_cache(maxsize=64)
def _beginning(
    ranges: tuple[tuple[str, Range], ...], multiples: tuple[tuple[str, int], ...]
) -> _Knowledge:
    return _Knowledge(dict(ranges), dict(multiples), {})


def _kept(method: _Binary) -> _Binary:
    """Keep what a method finds for two terms, as long as no more is known of their variables."""
    name = method.__name__

    @functools.wraps(method)
    def found(self: Algebra, a: Term, b: Term) -> Term:
        # Tables do not tell 2.0 from 2.
        if is_float(a) or is_float(b):
            return method(self, a, b)
        known, asked = self._known.found, (name, a, b)
        if asked not in known:
            known[asked] = method(self, a, b)
        return known[asked]

    return found


_Binary = Callable[["Algebra", Term, Term], Term]


class Algebra:
    """Arithmetic over variables of known ranges."""

    def __init__(
        self, ranges: Mapping[str, Range], multiples: Mapping[str, int] | None = None
    ) -> None:
        self._known = _beginning(tuple(ranges.items()), tuple((multiples or {}).items()))

    @property
    def ranges(self) -> Mapping[str, Range]:
        """Of each variable, under the conditions so far."""
        return self._known.ranges

    @property
    def impossible(self) -> bool:
        """Whether the conditions so far contradict each other."""
        return self._known.impossible

    def add(self, a: Term, b: Term) -> Term:
        if is_float(a) or is_float(b):
            return make("+", a, b)
        return added(a, b)

    def sub(self, a: Term, b: Term) -> Term:
        if is_float(a) or is_float(b):
            return make("+", a, make("neg", b))
        return self.add(a, self.mul(b, -1))

    def mul(self, a: Term, b: Term) -> Term:
        if is_float(a) or is_float(b):
            return make("*", a, b)
        found, total = multiplied(a, b)
        return found if len(total) != 1 else self._exact(found, total)

    def _exact(self, term: Term, total: Sum) -> Term:
        """`8 * (c * h // 8)` -> `c * h`, where 8 is known to divide it."""
        ((product, factor),) = total.items()
        for one in product:
            if is_op(one, "//") and isinstance(one.args[1], int):
                whole, divisor = one.args[0], one.args[1]
                if divisor and factor % divisor == 0 and self.is_multiple(whole, divisor):
                    rest = list(product)
                    rest.remove(one)
                    found = term_of({tuple(rest): factor // divisor})
                    return self.mul(found, whole)
        return term

    @_kept
    def floordiv(self, a: Term, b: Term) -> Term:
        """Cancels common factors; exact if the divisor divides every product."""
        if not isinstance(b, int) or is_float(a):
            shared = () if is_float(a) or is_float(b) else self._shared(a, b)
            if not shared:
                known = None if is_float(a) or is_float(b) else self._quotient(a, b)
                return make("//", a, b) if known is None else known
            return self.floordiv(without(a, shared), without(b, shared))
        if b in {0, 1}:
            return a if b else make("//", a, b)
        total = sum_of(a)
        whole = {p: f // b for p, f in total.items() if f % b == 0}
        rest = {p: f for p, f in total.items() if f % b}
        if not rest:
            return term_of(whole)
        low, high = self.range(term_of(rest))
        if b > 0 and low >= 0 and high < b:
            return term_of(whole)
        # Multiples of the divisor move out: (16 * m + n) // 16 is m + n // 16.
        return self.add(term_of(whole), make("//", term_of(rest), b))

    def _quotient(self, a: Term, b: Term) -> int | None:
        """`(2 * n - 1) // n` -> 1 for n >= 1: a quotient that is the same for all values."""
        divisor = sum_of(b)
        if len(divisor) != 1 or self.range(b)[0] < 1:
            return None
        ((product, factor),) = divisor.items()
        often = sum_of(a).get(product, 0) // factor
        for count in (often, often - 1):
            rest = self.sub(a, self.mul(b, count))
            if self.range(rest)[0] >= 0 and self.range(self.sub(rest, b))[1] < 0:
                return count
        return None

    @_kept
    def mod(self, a: Term, b: Term) -> Term:
        if isinstance(b, int) and b > 0 and not is_float(a):
            rest = term_of({p: f % b for p, f in sum_of(a).items()})
            low, high = self.range(rest)
            return rest if low >= 0 and high < b else make("%", rest, b)
        if not (is_float(a) or is_float(b)) and without(b, self._shared(a, b)) == 1:
            return 0
        return make("%", a, b)

    def compare(self, op: str, a: Term, b: Term) -> Term:
        """One of == != < <=, folded to 0 or 1 if the ranges decide it."""
        if is_float(a) or is_float(b):
            most, least = self.range(a)[1], self.range(b)[0]
            sure = (op == "<" and most < least) or (op == "<=" and most <= least)
            return 1 if sure and not (_may_be_nan(a) or _may_be_nan(b)) else make(op, a, b)
        known, asked = self._known.found, (op, a, b)
        if asked not in known:
            known[asked] = self._compare(op, a, b)
        return known[asked]

    def _compare(self, op: str, a: Term, b: Term) -> Term:
        a, b = self.with_known_values(a), self.with_known_values(b)
        low, high = self._difference(a, b)
        decided = {
            "==": 1 if low == high == 0 else 0 if low > 0 or high < 0 else None,
            "!=": 0 if low == high == 0 else 1 if low > 0 or high < 0 else None,
            "<": 1 if high < 0 else 0 if low >= 0 else None,
            "<=": 1 if high <= 0 else 0 if low > 0 else None,
        }[op]
        if decided is not None:
            return decided
        # Constants go to the right, and == and != have one order of operands.
        turned = isinstance(a, int) or (not isinstance(b, int) and key(a) > key(b))
        if op in {"==", "!="} and turned:
            a, b = b, a
        return make(op, a, b)

    def with_known_values(self, term: Term) -> Term:
        """A term in which variables with a single possible value are replaced by it."""
        fixed = {
            v: low
            for v in variables(term)
            for low, high in [self.range(v)]
            if low == high and isinstance(low, int) and not v.is_float
        }
        return self._replaced(term, fixed) if fixed else term

    def _replaced(self, term: Term, values: Mapping[Var, int]) -> Term:
        if isinstance(term, Var):
            return values.get(term, term)
        if not isinstance(term, Expr):
            return term
        args = [self._replaced(a, values) for a in term.args]
        if is_float(term) or any(is_float(a) for a in args) or term.op not in _REBUILT:
            return make(term.op, *args)
        found = args[0]
        for arg in args[1:]:
            found = getattr(self, _REBUILT[term.op])(found, arg)
        return found

    def _difference(self, a: Term, b: Term) -> Range:
        low, high = self._factored(self.sub(a, b))
        # A part of a size is never larger than it, which their ranges alone do not show.
        if self._is_part(a, b):
            high = min(high, 0)
        if self._is_part(b, a):
            low = max(low, 0)
        return low, high

    def _factored(self, term: Term) -> Range:
        """The range of a sum, also seen as the product of its common factors and the rest."""
        low, high = self.range(term)
        total = sum_of(term)
        shared = self._shared(term, term) if len(total) > 1 else ()
        if shared:
            rest = self.range(without(term, shared))
            ends = _range_of_product([*(self.range(s) for s in shared), rest])
            low, high = max(low, ends[0]), min(high, ends[1])
        return low, high

    def _is_part(self, a: Term, b: Term) -> bool:
        """Whether a is b // x, b % x, or min(b, ...)."""
        if not isinstance(a, Expr) or a.op not in {"//", "%", "min"} or b not in a.args:
            return False
        if a.op == "min":
            return True
        return a.args[0] == b and self.range(b)[0] >= 0 and self.range(a.args[1])[0] >= 1

    def positive(self, term: Term) -> Term:
        """`m * n` -> `max(m, 1) * max(n, 1)`, as torch makes strides of sizes.

        Callers' own strides, also as factors, stay what they are.
        """
        if isinstance(term, int) or any(is_stride(v) for v in variables(term)):
            return term
        total = sum_of(term)
        if len(total) != 1:
            return self.min_max("max", term, 1)
        ((product, found),) = total.items()
        told: Term = found
        for size in product:
            told = self.mul(told, self.min_max("max", size, 1))
        return told

    def both(self, *conditions: Term) -> Term:
        return _joined("and", conditions, decides=0)

    def either(self, *conditions: Term) -> Term:
        return _joined("or", conditions, decides=1)

    def min_max(self, op: str, a: Term, b: Term) -> Term:
        """`min` or `max`, folded to one of the two if the ranges decide it."""
        if is_float(a) or is_float(b):
            return make(op, *sorted((a, b), key=key))
        known, asked = self._known.found, (op, a, b)
        if asked not in known:
            low, high = self._difference(a, b)
            if high <= 0 or low >= 0:
                known[asked] = a if (high <= 0) == (op == "min") else b
            else:
                known[asked] = make(op, *sorted((a, b), key=key))
        return known[asked]

    def range(self, term: Term) -> Range:
        """Bounds of a term; they need not be tight."""
        if isinstance(term, (int, float)):
            return term, term
        if isinstance(term, Var):
            return self._known.ranges.get(term.name, ANYTHING)
        known = self._known.range_of.get(term)
        if known is None:
            known = self._known.range_of[term] = self._range(term)
        return known

    def _range(self, term: Expr) -> Range:
        find = _RANGES.get(term.op)
        if find is None or _may_be_nan(term):
            return ANYTHING
        low, high = find([self.range(a) for a in term.args])
        if self._known.facts and not is_float(term):
            middle, factor, constant = core(term)
            known = self._known.facts.get(middle)
            if known is not None:
                ends = [_times(factor, end) + constant for end in known]
                low, high = max(low, min(ends)), min(high, max(ends))
        return low, high

    def decide(self, condition: Term) -> int | None:
        """1 or 0 if the ranges decide a condition, else None."""
        if isinstance(condition, (int, float)):
            return int(bool(condition))
        if not isinstance(condition, Expr):
            return None
        known = self._known.decided
        if condition not in known:
            known[condition] = self._decide(condition)
        return known[condition]

    def _decide(self, condition: Expr) -> int | None:
        if condition.op in COMPARISONS:
            found = self.compare(condition.op, *condition.args)
            return found if isinstance(found, int) else None
        if condition.op not in {"and", "or", "not"}:
            return None
        parts = [self.decide(c) for c in condition.args]
        if condition.op == "not":
            return None if parts[0] is None else 1 - parts[0]
        # A single 0 decides an `and`, a single 1 an `or`.
        ends = 0 if condition.op == "and" else 1
        if ends in parts:
            return ends
        return None if None in parts else 1 - ends

    def narrow(self, condition: Term) -> None:
        """Assume a condition from here on."""
        if is_op(condition, "and"):
            for part in condition.args:
                self.narrow(part)
        if not isinstance(condition, Expr) or condition.op not in COMPARISONS:
            return
        before = self._known
        if condition not in before.under:
            before.under[condition] = self._narrowed(condition)
        self._known = before.under[condition]

    def _narrowed(self, condition: Expr) -> _Knowledge:
        a, b = condition.args
        if is_float(a) or is_float(b):
            return self._known
        narrowed = Algebra({})
        narrowed._known = self._known.copy()
        if condition.op == "==" and is_op(a, "%") and b == 0:
            narrowed._divides(a)
        middle, factor, constant = core(Expr("+", (a, Expr("neg", (b,)))))
        if factor:
            narrowed._bound(middle, self._within(condition.op, middle, factor, constant))
        return narrowed._known

    def _within(self, op: str, middle: Term, factor: int, constant: int) -> Range:
        """The range of `middle` for which `factor * middle + constant` is 0, below 0, ..."""
        low, high = self.range(middle)
        if op in {"==", "!="}:
            if constant % factor:
                return (low, high) if op == "!=" else (math.inf, -math.inf)
            value = -constant // factor
            if op == "==":
                return max(low, value), min(high, value)
            return (low + 1 if low == value else low), (high - 1 if high == value else high)
        limit = -constant - (op == "<")
        if factor > 0:
            return low, min(high, limit // factor)
        return max(low, -(limit // -factor)), high

    def _bound(self, middle: Term, found: Range) -> None:
        known = self._known
        known.impossible |= found[0] > found[1]
        if isinstance(middle, Var):
            known.ranges[middle.name] = found
        else:
            known.facts[middle] = found
        known.range_of.clear()
        # A product that is at least 1 has no factor of 0.
        if is_op(middle, "*") and found[0] >= 1:
            factors = {a: self.range(a) for a in middle.args}
            if all(low >= 0 for low, _ in factors.values()):
                for factor, (low, high) in factors.items():
                    if low < 1:
                        self._bound(factor, (1, high))

    def _divides(self, remainder: Expr) -> None:
        value, divisor = remainder.args
        if isinstance(value, Var) and isinstance(divisor, int) and divisor > 0:
            before = self._known.multiples.get(value.name, 1)
            self._known.multiples[value.name] = math.lcm(before, divisor)

    def is_multiple(self, term: Term, of: int) -> bool:
        """Whether a term is a multiple for all values of its variables."""
        if is_float(term):
            return False
        known = self._known.multiples
        return all(
            factor * math.prod(known.get(v.name, 1) for v in product if isinstance(v, Var)) % of
            == 0
            for product, factor in sum_of(term).items()
        )

    def _shared(self, a: Term, b: Term) -> tuple[Term, ...]:
        """Common factors of both terms that cannot be 0."""
        products = [list(p) for p in (*sum_of(a), *sum_of(b))]
        if not products:
            return ()
        found: list[Term] = []
        for factor in tuple(products[0]):
            if self.range(factor)[0] >= 1 and all(factor in p for p in products):
                found.append(factor)
                for product in products:
                    product.remove(factor)
        return tuple(found)


_REBUILT = {"+": "add", "*": "mul", "//": "floordiv", "%": "mod"}


@functools.lru_cache(maxsize=65536)
def _may_be_nan(term: Term) -> bool:
    """Whether a caller's floats or infinite constants can make it NaN."""
    if not is_float(term):
        return False
    unbounded = any(not math.isfinite(c) for c in constants(term))
    return unbounded or any(v.is_float for v in variables(term))


def is_op(term: Term, *ops: str) -> TypeGuard[Expr]:
    return isinstance(term, Expr) and term.op in ops


def _joined(op: str, conditions: tuple[Term, ...], *, decides: int) -> Term:
    """A constant that is as true as `decides` is the result; others do not count."""
    if any(isinstance(c, int) and bool(c) == decides for c in conditions):
        return decides
    left = tuple(dict.fromkeys(c for c in conditions if not isinstance(c, int)))
    if len(left) < 2:
        return left[0] if left else 1 - decides
    return Expr(op, left)


def _range_of_product(ranges: list[Range]) -> Range:
    total: Range = (1, 1)
    for one in ranges:
        ends = [_times(x, y) for x in total for y in one]
        total = min(ends), max(ends)
    return total


def _divided(divide: Callable[[float, float], float]) -> Callable[[list[Range]], Range]:
    """The range of a division by a positive divisor."""

    def find(ranges: list[Range]) -> Range:
        if ranges[1][0] < 1:
            return ANYTHING
        ends = [x if math.isinf(x) else divide(x, y) for x in ranges[0] for y in ranges[1]]
        return min(ends), max(ends)

    return find


def _growing(function: Callable[[float], float], least: float) -> Callable[[list[Range]], Range]:
    """The range of a function that is increasing from `least` on."""

    def find(ranges: list[Range]) -> Range:
        low, high = ranges[0]
        if low < least:
            return ANYTHING
        return tuple(x if math.isinf(x) else function(x) for x in (low, high))  # type: ignore[return-value]

    return find


_RANGES: dict[str, Callable[[list[Range]], Range]] = {
    "+": lambda rs: (sum(r[0] for r in rs), sum(r[1] for r in rs)),
    "*": _range_of_product,
    "neg": lambda rs: (-rs[0][1], -rs[0][0]),
    "//": _divided(lambda a, b: (0 if a >= 0 else -1) if math.isinf(b) else a // b),
    "/": _divided(lambda a, b: a / b),
    "%": lambda rs: (0, rs[1][1] - 1) if rs[1][0] >= 1 else ANYTHING,
    "min": lambda rs: (min(r[0] for r in rs), min(r[1] for r in rs)),
    "max": lambda rs: (max(r[0] for r in rs), max(r[1] for r in rs)),
    "where": lambda rs: (min(r[0] for r in rs[1:]), max(r[1] for r in rs[1:])),
    "abs": lambda rs: (max(0, rs[0][0], -rs[0][1]), max(-rs[0][0], rs[0][1])),
    "float": lambda rs: rs[0],
    "int": _growing(math.trunc, -math.inf),
    "floor": _growing(math.floor, -math.inf),
    "ceil": _growing(math.ceil, -math.inf),
    "round": _growing(round, -math.inf),
    "sqrt": _growing(math.sqrt, 0),
    "log2": _growing(math.log2, 1),
    "log": _growing(math.log, 1),
    "<<": lambda rs: (0, math.inf) if rs[0][0] >= 0 else ANYTHING,
    ">>": lambda rs: (0, rs[0][1]) if rs[0][0] >= 0 else ANYTHING,
    "&": lambda rs: (0, min(r[1] for r in rs)) if all(r[0] >= 0 for r in rs) else ANYTHING,
    **dict.fromkeys(("==", "!=", "<", "<=", "and", "or", "not"), lambda _: (0, 1)),
}


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


# Terms as sums of products, the form in which equal sizes look equal. Nothing here depends on what
# is known of the variables, and what was found of a term is kept, since the paths of an op compute
# with the same few. {(m, n): 1, (): 127} is m * n + 127; no one may change it, as it is shared.
Sum = dict[tuple[Term, ...], int]

_KEPT = 65536


@lru_cache(maxsize=_KEPT)
def key(term: Term) -> str:
    """Terms are in the order of their texts."""
    return text(term)


@lru_cache(maxsize=_KEPT)
def sum_of(term: Term) -> Sum:
    if isinstance(term, Expr):
        if term.op == "+":
            return _added([sum_of(a) for a in term.args])
        if term.op == "*":
            return _product_of([sum_of(a) for a in term.args])
        if term.op == "neg":
            return {p: -f for p, f in sum_of(term.args[0]).items()}
    if isinstance(term, int):
        return {(): int(term)} if term else {}
    return {(term,): 1}


@lru_cache(maxsize=_KEPT)
def added(a: Term, b: Term) -> Term:
    """The sum of two terms that are not floats."""
    return term_of(_added([sum_of(a), sum_of(b)]))


@lru_cache(maxsize=_KEPT)
def multiplied(a: Term, b: Term) -> tuple[Term, Sum]:
    """The product of two terms that are not floats, also as a sum."""
    total = _product_of([sum_of(a), sum_of(b)])
    return term_of(total), total


def _added(sums: list[Sum]) -> Sum:
    total: Sum = {}
    for one in sums:
        for product, factor in one.items():
            total[product] = total.get(product, 0) + factor
    return total


def _product_of(sums: list[Sum]) -> Sum:
    total: Sum = {(): 1}
    for one in sums:
        found: Sum = {}
        for left, a in total.items():
            for right, b in one.items():
                product = tuple(sorted((*left, *right), key=key))
                found[product] = found.get(product, 0) + a * b
        total = found
    return total


def _order(product: tuple[Term, ...]) -> tuple[int, list[str]]:
    return -len(product), [key(term) for term in product]


def term_of(total: Sum) -> Term:
    parts: list[Term] = []
    for product in sorted(total, key=_order):
        factor = total[product]
        if not factor:
            continue
        factors: list[Term] = [*([factor] if factor != 1 or not product else []), *product]
        parts.append(factors[0] if len(factors) == 1 else Expr("*", tuple(factors)))
    if not parts:
        return 0
    return parts[0] if len(parts) == 1 else Expr("+", tuple(parts))


def without(term: Term, factors: tuple[Term, ...]) -> Term:
    """A term divided by factors that all of its products have."""
    found: Sum = {}
    for product, factor in sum_of(term).items():
        left = list(product)
        for one in factors:
            left.remove(one)
        found[tuple(left)] = factor
    return term_of(found)


@lru_cache(maxsize=_KEPT)
def core(term: Term) -> tuple[Term, int, int]:
    """`-8 * m + 8 * n + 3` -> (`m - n`, -8, 3): a sum without its constant and common factor."""
    total = {p: f for p, f in sum_of(term).items() if f}
    constant = total.pop((), 0)
    if not total:
        return 0, 0, constant
    factor = math.gcd(*total.values()) * (1 if total[min(total, key=_order)] > 0 else -1)
    return term_of({p: f // factor for p, f in total.items()}), factor, constant
