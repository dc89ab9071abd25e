"""The symbolic sizes and scalars of a trace: torch.SymInt over terms.

Each also has a concrete value, so a body can branch on it; the outcome becomes a guard of the path.
Torch accepts any node with the methods below, so its own ShapeEnv, which would guard on contiguity
and overlap for its own reasons, is not needed.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx.experimental.sym_node  # gives SymInt and SymFloat their operators

from ...errors import UnsupportedBody
from ..ir.cases import Guard
from ..ir.expr import Expr, Number, Term, Var, evaluate, is_float, make, negated, variables
from .algebra import Algebra, Range


class NotConstant(Exception):
    """A size that is used as a constant has too many possible values."""

    def __init__(
        self, term: Term, location: str, ranges: Mapping[str, Range], *, bucket: bool = False
    ) -> None:
        super().__init__(f"{term} is used as a constant")
        self.term, self.location, self.bucket = term, location, bucket
        # Of its variables, on the path that was taken.
        self.ranges = ranges
        # What to write instead, where that would do.
        self.instead = ""
        # What it would be a constant of, where that is not what Python or a constexpr wants.
        self.purpose = ""
        # What else was in the way of a library, up to here.
        self.also: list[str] = []


class TooManyBranches(NotConstant):
    """A path that branches on sizes so often that it must be a loop over them."""

    def __init__(
        self, term: Term, location: str, ranges: Mapping[str, Range], values: Mapping[str, Number]
    ) -> None:
        super().__init__(term, location, ranges)
        # Of the path that was taken.
        self.values = values


class Symbols:
    """The variables of one trace, their values, and the guards on them."""

    def __init__(
        self,
        values: Mapping[str, Number],
        ranges: Mapping[str, Range],
        locate: Callable[[], str] = lambda: "",
        counts: Mapping[str, int] | None = None,
        multiples: Mapping[str, int] | None = None,
    ) -> None:
        self.values = values
        # By scalar, the dtype that it was declared with.
        self.declared: Mapping[str, str] = {}
        # The number of values of each variable whose values were declared one by one.
        self.counts = counts or {}
        self.algebra = Algebra(ranges, multiples)
        self.guards: list[Guard] = []
        self._asked: dict[Term, int] = {}
        # Variables without an upper bound, and how often each line branched on some of them.
        self._open = {name for name, (_, high) in ranges.items() if high == math.inf}
        self._branches: Counter[tuple[str, frozenset[str]]] = Counter()
        self.locate = locate
        # From here on, using a symbol is an error.
        self.has_ended = False

    def integer(self, term: Term) -> Any:
        """A SymInt, or an int if the term is constant."""
        return term if isinstance(term, int) else torch.SymInt(Node(self, term, int))

    def stride(self, stride: Any) -> Any:
        """A stride of dense memory as torch tells it, which is at least 1."""
        term = term_of(stride)
        told = self.algebra.positive(term)
        return stride if told == term else torch.SymInt(Stride(self, told, term))

    def real(self, term: Term) -> Any:
        return torch.SymFloat(Node(self, term, float))

    def ask(self, term: Term) -> bool:
        """Whether a condition holds on this path; it becomes a guard unless it is known."""
        if isinstance(term, (int, float)):
            return bool(term)
        known = self._asked.get(term)
        if known is None:
            known = self.algebra.decide(term)
        if known is None:
            location = self.locate()
            self._refuse_loop(term, location)
            known = self._asked[term] = int(bool(self.value(term)))
            condition = term if known else negated(term)
            self._asked[condition] = 1
            self.guards.append(Guard(condition, location))
            self.algebra.narrow(condition)
        return bool(known)

    def _refuse_loop(self, term: Term, location: str) -> None:
        """Counts, because a loop over a size without a bound would be followed for ever."""
        unbounded = frozenset(v.name for v in variables(term) if v.name in self._open)
        self._branches[location, unbounded] += 1
        is_loop = unbounded and (
            self._branches[location, unbounded] > MOST_AT_A_LINE
            or _divided(term) > MOST_DIVIDED
            or _size(term) > LARGEST
        )
        if is_loop or len(self.guards) >= MOST_ON_A_PATH:
            ranges = {
                v.name: (0, math.inf) if v.name in unbounded else self.algebra.range(v)
                for v in variables(term)
            }
            raise TooManyBranches(term, location, ranges, self.values)

    def value(self, term: Term) -> Number:
        number: Number = evaluate(term, self.values)
        return number

    def specialize(self, term: Term) -> Number:
        """Make a term a constant on this path; it must have few possible values."""
        if isinstance(term, (int, float)):
            return term
        found = self.value(term)
        if is_float(term):
            if self._count(term) > MANY:
                raise self.not_constant(term)
            # Two ways to compute a float may differ, so its variables are specialized instead.
            for variable in dict.fromkeys(variables(term)):
                self.specialize(variable)
            return found
        low, high = self.algebra.range(term)
        condition = self.algebra.compare("==", term, found)
        # A guard already fixes it on this path.
        if isinstance(condition, int) or self._asked.get(condition) == 1:
            return found
        if high - low > MANY and self._count(term) > MANY:
            raise self.not_constant(term)
        self.ask(condition)
        return found

    def not_constant(self, term: Term, *, bucket: bool = False) -> NotConstant:
        ranges = {v.name: self.algebra.range(v) for v in variables(term)}
        return NotConstant(term, self.locate(), ranges, bucket=bucket)

    def _count(self, term: Term) -> float:
        """How many values a term can have, at most."""
        return math.prod(self._values_of(v) for v in set(variables(term)))

    def _values_of(self, variable: Var) -> float:
        if variable.is_float:
            return math.inf
        low, high = self.algebra.range(variable)
        return min(self.counts.get(variable.name, math.inf), high - low + 1)

    def next_power_of_2(self, term: Term) -> Any:
        """Triton's function, with one guard per power of two.

        An unbounded size defers the guard: `min(next_power_of_2(n), 1024)` is bounded.
        """
        if self.algebra.range(term)[1] == math.inf:
            return torch.SymInt(Power(self, term))
        return self.bucket(term)

    def bucket(self, term: Term) -> int:
        found = int(self.value(term))
        power = 1 << (found - 1).bit_length() if found > 0 else 0
        if self.algebra.range(term)[1] == math.inf:
            raise self.not_constant(term, bucket=True)
        # One condition, so that its negation leads to the next bucket.
        above = self.algebra.compare("<", power // 2, term) if power else 1
        self.ask(self.algebra.both(above, self.algebra.compare("<=", term, power)))
        return power


# A constant with up to this many values gets a variant for each; others must be declared.
MANY = 64


# Branches of one path: of one line on the same sizes without a bound, and of all lines.
MOST_AT_A_LINE = 64
MOST_ON_A_PATH = 256
# Divisions of a quotient. Only loops divide more often, and every one makes tracing slower: 40 of
# them took 19 s, 24 take 4 s.
MOST_DIVIDED = 24


# Parts of a term. `q = q * q + n` doubles them in every round of a loop, and with them the time.
LARGEST = 256


@functools.lru_cache(maxsize=4096)
def _divided(term: Term) -> int:
    """How many divisions are inside each other: 2 in `(n // 8 + 7) // 8`."""
    if not isinstance(term, Expr):
        return 0
    return max(map(_divided, term.args), default=0) + (term.op in {"//", "%"})


@functools.lru_cache(maxsize=4096)
def _size(term: Term) -> int:
    """How many parts a term has, counted until they are too many."""
    found, left = 0, [term]
    while left and found <= LARGEST:
        found += 1
        last = left.pop()
        left += last.args if isinstance(last, Expr) else ()
    return found


_Binary = Callable[["Node", "Node"], "Node"]
_Unary = Callable[..., "Node"]


def _algebraic(name: str, *op: str, kind: type | None = None) -> _Binary:
    """What the method `name` of `Algebra` makes of both terms."""

    def run(self: Node, other: Node) -> Node:
        found = getattr(self.symbols.algebra, name)(*op, self.term, other.term)
        return self._make(found, kind or self._common(other))

    return run


def _division(name: str, otherwise: str) -> _Binary:
    """As in Python, a divisor of 0 raises; beyond that, `m * n // n` is known to be `m`."""
    plain = _algebraic(name)

    def run(self: Node, other: Node) -> Node:
        symbols, divisor = self.symbols, other.term
        if not is_float(divisor) and not symbols.ask(symbols.algebra.compare("!=", divisor, 0)):
            raise ZeroDivisionError(otherwise)
        return plain(self, other)

    return run


def _comparison(op: str, *, turned: bool = False) -> _Binary:
    compare = _algebraic("compare", op, kind=bool)
    return (lambda self, other: compare(other, self)) if turned else compare


def _operation(op: str, kind: type) -> _Binary:
    return lambda self, other: self._make(make(op, self.term, other.term), kind)


def _rounding(op: str) -> _Unary:
    # `round` gets the number of digits, None.
    return lambda self, *_: self if self.kind is int else self._make(make(op, self.term), int)


def _function(op: str) -> _Unary:
    return lambda self: self._make(make(op, self.sym_float().term), float)


class Node:
    """The node behind a SymInt, SymFloat or SymBool."""

    def __init__(self, symbols: Symbols, term: Term, kind: type) -> None:
        self.symbols, self._term, self.kind = symbols, term, kind
        # The value that it has as the key of a table, which may outlive the trace.
        self._hashed: int | None = None

    @property
    def term(self) -> Term:
        return self._outlived() if self.symbols.has_ended else self._term

    def _outlived(self) -> Term:
        if self._hashed is not None:
            return self._hashed
        raise UnsupportedBody(
            f"{self} belongs to a trace that has ended",
            found=f"used at {self.symbols.locate()}",
            fix="compute it in every call; a C function keeps nothing between calls, be it in a "
            "global, an attribute or a table",
            cause="outlived",
        )

    # Torch reads these on its own nodes.
    constant = None
    expr = property(lambda self: self.term)
    pytype = property(lambda self: self.kind)

    def is_int(self) -> bool:
        return self.kind is int

    def is_float(self) -> bool:
        return self.kind is float

    def is_bool(self) -> bool:
        return self.kind is bool

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        # Torch unwraps only int and bool constants.
        return self.kind is not float and isinstance(self.term, (int, float))

    def is_nested_int(self) -> bool:
        # Caches hash sizes, and torch hashes a SymInt only if this is true; its value is hashed.
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        return caller is not None and caller.f_code.co_name == "__hash__"

    def nested_int(self) -> int:
        self._hashed = int(self.symbols.specialize(self.term))
        return self._hashed

    def has_hint(self) -> bool:
        return True

    @property
    def hint(self) -> Number:
        return self.symbols.value(self.term)

    def require_hint(self, _fallback: Any = None) -> Number:
        return self.hint

    def maybe_as_int(self) -> int | None:
        return self.term if isinstance(self.term, int) else None

    def maybe_as_float(self) -> None:
        return None

    maybe_as_bool = maybe_as_float

    def wrap_int(self, value: int) -> Node:
        return Node(self.symbols, value, int)

    def wrap_float(self, value: float) -> Node:
        return Node(self.symbols, value, float)

    def wrap_bool(self, value: bool) -> Node:  # noqa: FBT001  # torch's signature
        return Node(self.symbols, int(value), bool)

    def clone(self) -> Node:
        return self

    def __str__(self) -> str:
        # Printing is not using, whether or not the trace has ended.
        return self._text()

    def _text(self) -> str:
        return f"{self._term}"

    __repr__ = _graph_repr = __str__

    # Torch gives these its own file and line.

    def guard_int(self, *_: Any) -> int:
        return int(self.symbols.specialize(self.term))

    def guard_float(self, *_: Any) -> float:
        return float(self.symbols.specialize(self.term))

    def guard_bool(self, *_: Any) -> bool:
        return self.symbols.ask(self.term)

    int_ = guard_int
    bool_ = expect_true = guard_size_oblivious = guard_bool

    def guard_or_false(self, _file: Any, _line: Any) -> bool:
        """Torch calls this where it can do without an answer: true only if it is certain."""
        return isinstance(self.term, int) and bool(self.term)

    def guard_or_true(self, _file: Any, _line: Any) -> bool:
        return not (isinstance(self.term, int) and not self.term)

    statically_known_true = guard_or_false

    def _make(self, term: Term, kind: type) -> Node:
        return Node(self.symbols, term, kind)

    def _common(self, other: Node) -> type:
        return float if float in {self.kind, other.kind} else int

    add, sub, mul = map(_algebraic, ("add", "sub", "mul"))

    floordiv = int_floordiv = _division("floordiv", "integer division by zero")
    mod = _division("mod", "integer modulo by zero")
    truediv = float_truediv = int_truediv = _operation("/", float)

    def pow_by_natural(self, other: Node) -> Node:
        exponent = other.term
        if isinstance(exponent, int) and 0 <= exponent <= 4:
            found: Term = 1
            for _ in range(exponent):
                found = self.symbols.algebra.mul(found, self.term)
            return self._make(found, int)
        return self._make(make("**", self.term, exponent), int)

    def float_pow(self, other: Node) -> Node:
        return self._make(make("**", self.sym_float().term, other.term), float)

    pow = float_pow
    lshift, rshift = _operation("<<", int), _operation(">>", int)
    bitwise_and, bitwise_or = _operation("&", int), _operation("|", int)
    bitwise_xor = _operation("^", int)

    eq, ne, lt, le = map(_comparison, ("==", "!=", "<", "<="))
    gt, ge = _comparison("<", turned=True), _comparison("<=", turned=True)
    sym_min, sym_max = _algebraic("min_max", "min"), _algebraic("min_max", "max")
    and_ = sym_and = _algebraic("both", kind=bool)
    or_ = sym_or = _algebraic("either", kind=bool)

    def sym_not(self) -> Node:
        return self._make(negated(self.term), bool)

    def sym_ite(self, yes: Node, no: Node) -> Node:
        return self._make(make("where", self.term, yes.term, no.term), yes._common(no))

    def neg(self) -> Node:
        if self.kind is float:
            return self._make(make("neg", self.term), float)
        return self._make(self.symbols.algebra.mul(self.term, -1), self.kind)

    def pos(self) -> Node:
        return self

    def abs(self) -> Node:
        return self._make(make("abs", self.term), self.kind)

    def sym_float(self) -> Node:
        return self if self.kind is float else self._make(make("float", self.term), float)

    sym_int = trunc = _rounding("int")
    floor, ceil, round = map(_rounding, ("floor", "ceil", "round"))
    sym_sqrt, sym_log2, sym_log, sym_exp = map(_function, ("sqrt", "log2", "log", "exp"))

    def is_integer(self) -> Node:
        return self._make(make("==", self.term, make("floor", self.term)), bool)


def _sided(name: str) -> _Binary:
    """A comparison with a number; `<` and `>=` are about one less than the number."""
    plain: _Binary = getattr(Node, name)

    def run(self: Node, other: Node) -> Node:
        assert isinstance(self, Power)
        limit = None if isinstance(other, Power) else other.term
        if self.is_known or not isinstance(limit, int):
            return plain(self, other)
        found = self.at_most(limit - (name in {"lt", "ge"}))
        return found if name in {"lt", "le"} else found.sym_not()

    return run


class Power(Node):
    """The next power of two of a size, with guards only when its value is needed.

    A comparison with a number only asks which side the size is on.
    """

    def __init__(self, symbols: Symbols, size: Term) -> None:
        super().__init__(symbols, size, int)
        self.size = size
        self._power: Term | None = None

    @property
    def term(self) -> Term:
        if self.symbols.has_ended:
            return self._outlived()
        if self._power is None:
            self._power = self.symbols.bucket(self.size)
        return self._power

    @property
    def is_known(self) -> bool:
        return self._power is not None

    def _text(self) -> str:
        return f"next_power_of_2({self.size})" if self._power is None else f"{self._power}"

    def is_constant(self) -> bool:
        return False

    def maybe_as_int(self) -> int | None:
        return None

    def at_most(self, limit: int) -> Node:
        """Whether the power is at most `limit`: the size is at most the largest power below it."""
        largest = 1 << (limit.bit_length() - 1) if limit > 0 else limit
        return self._make(self.symbols.algebra.compare("<=", self.size, largest), bool)

    lt, le, gt, ge = map(_sided, ("lt", "le", "gt", "ge"))


class Stride(Node):
    """A stride that torch tells as 1 where memory without elements would make it 0.

    The layout of a tensor, and a kernel that reads no element of it, are as well off with the 0,
    `dense`, which is the simpler term.
    """

    def __init__(self, symbols: Symbols, told: Term, dense: Term) -> None:
        super().__init__(symbols, told, int)
        self.dense = dense


# Torch calls it `str`, which would shadow the type inside the class.
setattr(Node, "str", Node.__str__)  # noqa: B010


def term_of(value: Any) -> Term:
    """A number, symbolic or not, as a term."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        node = value.node
        # C++ wraps plain numbers in torch's own nodes.
        return node.term if isinstance(node, Node) else node.maybe_as_int()
    if isinstance(value, bool):
        return int(value)
    number: Number = value
    return number


def dense(stride: Any) -> Any:
    """A stride that a body got from a tensor, as it is in the tensor."""
    node = stride.node if type(stride) is torch.SymInt else None
    return node.symbols.integer(node.dense) if isinstance(node, Stride) else stride


def times(a: Any, b: Any) -> Any:
    """`a * b` for sizes, without torch's way from a SymInt to its node, which takes longer."""
    node = a.node if type(a) is torch.SymInt else b.node if type(b) is torch.SymInt else None
    if not isinstance(node, Node):
        return a * b
    one, other = map(_unwrapped, (a, b))
    if not (is_symbolic(one) or is_symbolic(other)):
        return one * other
    symbols = node.symbols
    return torch.SymInt(Node(symbols, symbols.algebra.mul(term_of(one), term_of(other)), int))


def _unwrapped(size: Any) -> Any:
    """Torch computes with the plain number where a size is constant."""
    if type(size) is not torch.SymInt or not size.node.is_constant():
        return size
    return size.node.maybe_as_int()


def is_symbolic(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
