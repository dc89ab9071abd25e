"""Values that satisfy conditions are found if there are any, and quickly."""

import itertools
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opforge.native.ir.expr import OPERATIONS, Expr, Var, evaluate, negated
from opforge.native.symbolic.algebra import Algebra
from opforge.native.symbolic.solve import VarRange, ranges_of, solve

m, n, k = Var("m"), Var("n"), Var("k")
SIZE = VarRange(0, math.inf)
SIZES = dict.fromkeys("mnk", SIZE)
START = {"m": 67, "n": 71, "k": 73}


def e(op, *args):
    return Expr(op, args)


@pytest.mark.parametrize(
    "conditions",
    [
        [e("==", m, e("*", 2, n))],
        [e("==", e("%", n, 48), 0), e("<", 100, n)],
        [e("==", e("%", n, 48), 17), e("<", n, 48)],
        [e("==", e("%", n, 3), 1), e("<", 73, n), e("<=", n, 78)],
        [e("==", e("*", m, n), 4096), e("<", m, n)],
        [e("<", e("*", m, n, k), 1), e("<", 5, m), e("<", 5, n)],
        [e("==", e("+", m, n), k), e("!=", m, n), e("<", 1000, k)],
        [e("==", e("//", e("+", n, 63), 64), 9)],
        [e("<", 2**33, e("*", m, n)), e("<=", m, 2**20)],
        [e("==", e("%", m, 16), 0), e("==", e("%", n, 16), 0), e("<", m, n), e("<", 4096, m)],
        [e("==", m, e("+", e("*", n, n), 3))],
        [e("==", e("min", m, 128), e("min", n, 128)), e("<", m, n)],
        [e("<", e("ceil", e("/", n, 128)), 3), e("<", 128, n)],
        [e("or", e("==", m, 5), e("==", m, 900)), e("<", 10, m)],
        [e("not", e("<", n, 3000)), e("==", e("%", n, 7), 3)],
        [e("and", *(e("==", e("%", e("*", 2, v), 16), 0) for v in (m, n, k))), e("<", n, m)],
    ],
    ids=lambda conditions: " and ".join(map(str, conditions)),
)
def test_solve_finds_values(conditions):
    found = solve(conditions, START, SIZES)
    assert found is not None
    assert all(evaluate(c, found) for c in conditions)


def test_declared_values_are_all_tried():
    domains = {"m": VarRange(1, 9, (1, 4, 9)), "n": VarRange(2, 8, (2, 3, 8)), "k": SIZE}
    found = solve([e("==", m, e("+", n, 1)), e("<", 4, m)], START | {"m": 1, "n": 2}, domains)
    assert found is not None
    assert (found["m"], found["n"]) == (9, 8)


def test_floats():
    domains = {"x": VarRange(-math.inf, math.inf, is_float=True)}
    x = Var("x", is_float=True)
    assert solve([e("<", 0.5, x)], {"x": 0.1}, domains)["x"] > 0.5
    assert solve([e("==", x, 0.0)], {"x": 0.1}, domains) == {"x": 0.0}
    assert solve([e("<", 3e38, e("abs", x))], {"x": 0.1}, domains) is not None


def test_impossible_conditions_are_given_up_soon():
    names = [Var(f"s{i}") for i in range(8)]
    tied = [e("<", a, b) for a, b in itertools.pairwise(names)]
    began = time.perf_counter()
    conditions = [*tied, e("<", e("*", *names), 5), e("<", 3, names[0])]
    assert solve(conditions, {v.name: 50 for v in names}, {v.name: SIZE for v in names}) is None
    assert time.perf_counter() - began < 2


def test_strides_follow_the_size_that_they_are_made_of():
    """A compact tensor whose rows are a multiple of 8, from one whose are not."""
    s0, s1, s2 = (Var(f"x.stride[{i}]") for i in range(3))
    stride = e("*", n, s2)
    compact = [
        e("or", e("==", m, 0), e("and", e("==", e("*", n, k), s0), e("==", s2, 1))),
        e("!=", e("*", m, n, k), 0), e("!=", k, 1), e("==", stride, s1), e("!=", m, 1),
        e("==", e("*", k, n, s2), s0),
    ]  # fmt: skip
    start = {**START, "x.stride[0]": 71 * 73, "x.stride[1]": 71, "x.stride[2]": 1}
    assert all(evaluate(c, start) for c in compact)
    conditions = [*compact, e("==", e("%", n, 8), 0)]
    found = solve(conditions, start, dict.fromkeys(start, SIZE))
    assert found is not None
    assert all(evaluate(c, found) for c in conditions)


conditions = st.lists(
    st.tuples(
        st.sampled_from(["==", "!=", "<", "<="]),
        st.sampled_from([m, n, e("*", m, n), e("+", m, n), e("//", m, 4), e("%", n, 3)]),
        st.sampled_from([m, n, 0, 1, 2, 3, 7, e("*", 2, n)]),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(conditions)
def test_narrowing_excludes_no_possible_value(drawn):
    terms = [e(op, a, b) for op, a, b, _ in drawn]
    terms = [negated(t) if flip else t for t, (*_, flip) in zip(terms, drawn, strict=True)]
    domains = {"m": VarRange(0, 12), "n": VarRange(0, 12)}
    algebra = Algebra(ranges_of(domains))
    decided = []
    for term in terms:
        decided.append(algebra.decide(term))
        algebra.narrow(term)
    answers = [{"m": a, "n": b} for a in range(13) for b in range(13)]
    right = [v for v in answers if all(evaluate(t, v) for t in terms)]
    if right:
        assert 0 not in decided
        assert not algebra.impossible
        assert solve(terms, {"m": 6, "n": 6}, domains) is not None
    for values in right:
        for name in "mn":
            low, high = algebra.range(Var(name))
            assert low <= values[name] <= high
    for index, known in enumerate(decided):
        if known == 1:
            before = terms[:index]
            assert all(
                evaluate(terms[index], v) for v in answers if all(evaluate(t, v) for t in before)
            )


joined = st.recursive(
    st.tuples(
        st.sampled_from(["==", "!=", "<", "<="]),
        st.sampled_from([m, n, k, e("*", m, n), e("+", m, 1), e("where", e("==", m, 1), n, 0)]),
        st.sampled_from([m, n, k, 0, 1, 4]),
    ).map(lambda drawn: e(*drawn)),
    lambda terms: st.tuples(st.sampled_from(["and", "or", "not"]), terms, terms).map(
        lambda drawn: e("not", drawn[1]) if drawn[0] == "not" else e(*drawn)
    ),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(joined, min_size=1, max_size=4))
def test_cases_lose_no_possible_value(terms):
    domains = dict.fromkeys("mnk", VarRange(0, 5))
    found = solve(terms, dict.fromkeys("mnk", 3), domains)
    answers = [dict(zip("mnk", v, strict=True)) for v in itertools.product(range(6), repeat=3)]
    right = [values for values in answers if all(evaluate(t, values) for t in terms)]
    assert found in right if right else found is None


def test_ranges_with_no_end():
    algebra = Algebra({"m": (0, math.inf), "n": (-math.inf, math.inf)})
    x = Var("x", is_float=True)
    for term in [e("*", m, 0), e("*", m, n), e("+", m, e("neg", m)), e("*", n, n), e("%", n, m)]:
        low, high = algebra.range(term)
        assert low <= high
    assert algebra.range(e("*", m, n)) == (-math.inf, math.inf)
    # A result computed from a passed float may be nan, for which no comparison holds.
    for term in [e("*", 0.0, x), e("+", x, math.inf), e("/", 1.0, x)]:
        for op in ("<", "<=", "=="):
            assert isinstance(algebra.compare(op, term, 1.0), Expr)
            assert isinstance(algebra.compare(op, x, math.inf), Expr)
    assert algebra.compare("<", 2**53, 2**53 + 1) == 1
    large = Algebra({"m": (0, 2**53 + 1)})
    assert isinstance(large.compare("<=", m, 2**53), Expr)


def test_every_operation_can_be_searched():
    given = {"+": (m, 1), "*": (m, 2), "where": (e("<", m, 5), 1, 2)}
    for op in OPERATIONS:
        unary = op in {"neg", "abs", "not", "float", "int", "floor", "ceil", "round", "sqrt", "exp",
                       "log", "log2"}  # fmt: skip
        term = Expr(op, given.get(op, (m,) if unary else (m, 3)))
        solve([e("<", term, 10**9)], START, SIZES)
