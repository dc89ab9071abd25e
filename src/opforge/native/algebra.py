"""Terms in one form, so that equal sizes look equal: `n * m + 0` becomes `m * n`.

What can be decided from the declared ranges alone is decided here, and asks for no guard:
with `m` between 0 and 4096, `m < 0` is 0 and `min(m, 8192)` is `m`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

from .expr import Expr, Term, Var, is_float, make, text

Range = tuple[float, float]
# A sum of products: {(m, n): 1, (): 127} is m * n + 127.
_Sum = dict[tuple[Term, ...], int]

ANYTHING: Range = (-math.inf, math.inf)


@lru_cache(maxsize=65536)
def _key(term: Term) -> str:
    return text(term)


def _sum_of(term: Term) -> _Sum:
    if isinstance(term, Expr):
        if term.op == "+":
            total: _Sum = {}
            for arg in term.args:
                for product, factor in _sum_of(arg).items():
                    total[product] = total.get(product, 0) + factor
            return total
        if term.op == "*":
            return _product_of([_sum_of(a) for a in term.args])
        if term.op == "neg":
            return {p: -f for p, f in _sum_of(term.args[0]).items()}
    if isinstance(term, int):
        return {(): int(term)} if term else {}
    return {(term,): 1}


def _product_of(sums: list[_Sum]) -> _Sum:
    total: _Sum = {(): 1}
    for one in sums:
        found: _Sum = {}
        for left, a in total.items():
            for right, b in one.items():
                product = tuple(sorted((*left, *right), key=_key))
                found[product] = found.get(product, 0) + a * b
        total = found
    return total


def _term_of(total: _Sum) -> Term:
    parts: list[Term] = []
    for product, factor in sorted(
        total.items(), key=lambda item: (-len(item[0]), [_key(t) for t in item[0]])
    ):
        if not factor:
            continue
        factors: list[Term] = [*([factor] if factor != 1 or not product else []), *product]
        parts.append(factors[0] if len(factors) == 1 else Expr("*", tuple(factors)))
    if not parts:
        return 0
    return parts[0] if len(parts) == 1 else Expr("+", tuple(parts))


class Algebra:
    """Arithmetic over variables of known ranges."""

    def __init__(self, ranges: Mapping[str, Range]) -> None:
        self.ranges = dict(ranges)
        self._known: dict[Term, Range] = {}

    def add(self, a: Term, b: Term) -> Term:
        if is_float(a) or is_float(b):
            return make("+", a, b)
        return _term_of(_sum_of(Expr("+", (a, b))))

    def sub(self, a: Term, b: Term) -> Term:
        if is_float(a) or is_float(b):
            return make("+", a, make("neg", b))
        return self.add(a, self.mul(b, -1))

    def mul(self, a: Term, b: Term) -> Term:
        if is_float(a) or is_float(b):
            return make("*", a, b)
        return _term_of(_sum_of(Expr("*", (a, b))))

    def floordiv(self, a: Term, b: Term) -> Term:
        """Without common factors, and exact where the divisor is one of every product."""
        if not isinstance(b, int) or is_float(a):
            shared = () if is_float(a) or is_float(b) else self._shared(a, b)
            if not shared:
                return make("//", a, b)
            return self.floordiv(_without(a, shared), _without(b, shared))
        if b in {0, 1}:
            return a if b else make("//", a, b)
        total = _sum_of(a)
        whole = {p: f // b for p, f in total.items() if f % b == 0}
        rest = {p: f for p, f in total.items() if f % b}
        if not rest:
            return _term_of(whole)
        low, high = self.range(_term_of(rest))
        if b > 0 and low >= 0 and high < b:
            return _term_of(whole)
        # What the divisor divides comes out in front: 16 m + n by 16 is m and n by 16.
        return self.add(_term_of(whole), make("//", _term_of(rest), b))

    def mod(self, a: Term, b: Term) -> Term:
        if isinstance(b, int) and b > 0 and not is_float(a):
            rest = _term_of({p: f % b for p, f in _sum_of(a).items()})
            low, high = self.range(rest)
            return rest if low >= 0 and high < b else make("%", rest, b)
        if not (is_float(a) or is_float(b)) and _without(b, self._shared(a, b)) == 1:
            return 0
        return make("%", a, b)

    def compare(self, op: str, a: Term, b: Term) -> Term:
        """One of == != < <=, decided where the ranges decide it."""
        if is_float(a) or is_float(b):
            # A variable has an open range, so that none of this is said of what may be nan.
            most, least = self.range(a)[1], self.range(b)[0]
            if (op == "<" and most < least) or (op == "<=" and most <= least):
                return 1
            return make(op, a, b)
        low, high = self.range(self.sub(a, b))
        decided = {
            "==": 1 if low == high == 0 else 0 if low > 0 or high < 0 else None,
            "!=": 0 if low == high == 0 else 1 if low > 0 or high < 0 else None,
            "<": 1 if high < 0 else 0 if low >= 0 else None,
            "<=": 1 if high <= 0 else 0 if low > 0 else None,
        }[op]
        if decided is not None:
            return decided
        # Constants go right: `8 < n` reads better than `0 < n - 8`, and alike ones look alike.
        if op in {"==", "!="} and isinstance(a, int):
            a, b = b, a
        return make(op, a, b)

    def both(self, *conditions: Term) -> Term:
        open_ = list(dict.fromkeys(c for c in conditions if not isinstance(c, int)))
        if any(isinstance(c, int) and not c for c in conditions):
            return 0
        return _joined("and", open_, 1)

    def either(self, *conditions: Term) -> Term:
        open_ = list(dict.fromkeys(c for c in conditions if not isinstance(c, int)))
        if any(isinstance(c, int) and c for c in conditions):
            return 1
        return _joined("or", open_, 0)

    def smaller(self, op: str, a: Term, b: Term) -> Term:
        """`min` or `max`."""
        if not (is_float(a) or is_float(b)):
            low, high = self.range(self.sub(a, b))
            if high <= 0:
                return a if op == "min" else b
            if low >= 0:
                return b if op == "min" else a
        return make(op, *sorted((a, b), key=_key))

    def range(self, term: Term) -> Range:
        """The least and the largest a term can be, or less tight ones."""
        if isinstance(term, (int, float)):
            return float(term), float(term)
        if isinstance(term, Var):
            return self.ranges.get(term.name, ANYTHING)
        known = self._known.get(term)
        if known is None:
            known = self._known[term] = self._range(term)
        return known

    def _range(self, term: Expr) -> Range:
        find = _RANGES.get(term.op)
        ranges = [self.range(a) for a in term.args]
        return ANYTHING if find is None else find(ranges)

    def decide(self, condition: Term) -> int | None:
        """1 or 0 where the ranges decide a condition, else None."""
        if isinstance(condition, (int, float)):
            return int(bool(condition))
        if condition_is(condition, "==", "!=", "<", "<="):
            assert isinstance(condition, Expr)
            found = self.compare(condition.op, *condition.args)
            return found if isinstance(found, int) else None
        if condition_is(condition, "and"):
            assert isinstance(condition, Expr)
            return 0 if any(self.decide(c) == 0 for c in condition.args) else None
        return None

    def narrow(self, condition: Term) -> None:
        """Take a condition that holds from here on into account."""
        if condition_is(condition, "and"):
            assert isinstance(condition, Expr)
            for part in condition.args:
                self.narrow(part)
        if not isinstance(condition, Expr) or condition.op not in {"==", "<", "<="}:
            return
        a, b = _divided(*condition.args)
        slack = 1 if condition.op == "<" else 0
        if isinstance(a, Var) and isinstance(b, int) and not a.is_float:
            low, high = self.range(a)
            low = max(low, b) if condition.op == "==" else low
            self.ranges[a.name] = low, min(high, b - slack)
        elif isinstance(b, Var) and isinstance(a, int) and not b.is_float:
            low, high = self.range(b)
            self.ranges[b.name] = max(low, a + slack), high
        else:
            return
        self._known.clear()

    def is_multiple(self, term: Term, of: int) -> bool:
        """Whether a term is a multiple whatever its variables are."""
        return not is_float(term) and all(f % of == 0 for f in _sum_of(term).values())

    def _shared(self, a: Term, b: Term) -> tuple[Term, ...]:
        """Factors of every product of both, none of which can be 0."""
        products = [list(p) for p in (*_sum_of(a), *_sum_of(b))]
        if not products:
            return ()
        found: list[Term] = []
        for factor in tuple(products[0]):
            if self.range(factor)[0] >= 1 and all(factor in p for p in products):
                found.append(factor)
                for product in products:
                    product.remove(factor)
        return tuple(found)


def _without(term: Term, factors: tuple[Term, ...]) -> Term:
    found: _Sum = {}
    for product, factor in _sum_of(term).items():
        left = list(product)
        for one in factors:
            left.remove(one)
        found[tuple(left)] = factor
    return _term_of(found)


def _divided(a: Term, b: Term) -> tuple[Term, Term]:
    """`1 <= 8 * n` -> `1 <= n`, where a number bounds a multiple of a variable from below."""
    if isinstance(b, Expr) and b.op == "*" and len(b.args) == 2 and isinstance(a, int):
        factor, var = b.args
        if isinstance(factor, int) and factor > 0 and isinstance(var, Var):
            return -(-a // factor), var
    return a, b


def condition_is(term: Term, *ops: str) -> bool:
    return isinstance(term, Expr) and term.op in ops


def _joined(op: str, conditions: list[Term], empty: int) -> Term:
    if len(conditions) < 2:
        return conditions[0] if conditions else empty
    return Expr(op, tuple(conditions))


def _range_of_product(ranges: list[Range]) -> Range:
    total = (1.0, 1.0)
    for one in ranges:
        ends = [_times(x, y) for x in total for y in one]
        total = min(ends), max(ends)
    return total


def _range_of_quotient(ranges: list[Range]) -> Range:
    if ranges[1][0] < 1:
        return ANYTHING
    ends = [_over(x, y) for x in ranges[0] for y in ranges[1]]
    return min(ends), max(ends)


def _truth(_: list[Range]) -> Range:
    return 0.0, 1.0


_RANGES: dict[str, Callable[[list[Range]], Range]] = {
    "+": lambda rs: (sum(r[0] for r in rs), sum(r[1] for r in rs)),
    "*": _range_of_product,
    "neg": lambda rs: (-rs[0][1], -rs[0][0]),
    "//": _range_of_quotient,
    "%": lambda rs: (0.0, rs[1][1] - 1) if rs[1][0] >= 1 else ANYTHING,
    "min": lambda rs: (min(r[0] for r in rs), min(r[1] for r in rs)),
    "max": lambda rs: (max(r[0] for r in rs), max(r[1] for r in rs)),
    "where": lambda rs: (min(r[0] for r in rs[1:]), max(r[1] for r in rs[1:])),
    "float": lambda rs: rs[0],
    **dict.fromkeys(("==", "!=", "<", "<=", "and", "or", "not"), _truth),
}


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _over(a: float, b: float) -> float:
    if math.isinf(a):
        return a
    return (0.0 if a >= 0 else -1.0) if math.isinf(b) else float(a // b)
