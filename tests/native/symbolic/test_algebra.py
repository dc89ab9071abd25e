"""Terms in one form, and what ranges decide."""

import math

from hypothesis import given
from hypothesis import strategies as st

from opforge.native.ir.expr import Expr, Var, evaluate, text
from opforge.native.symbolic.algebra import Algebra

m, n, k = Var("m"), Var("n"), Var("k")
ANY = Algebra(dict.fromkeys("mnk", (0, math.inf)))
POSITIVE = Algebra(dict.fromkeys("mnk", (1, math.inf)))
SMALL = Algebra({"m": (0, 15), "n": (1, 8), "k": (0, math.inf)})


def test_sums_and_products_have_one_form():
    assert ANY.add(ANY.mul(n, m), 0) == ANY.mul(m, n) == Expr("*", (m, n))
    assert ANY.sub(ANY.mul(2, m), m) == m
    assert ANY.sub(m, m) == 0
    assert text(ANY.mul(ANY.add(m, 1), ANY.add(n, 2))) == "m * n + 2 * m + n + 2"


def test_division_takes_out_what_divides():
    assert ANY.floordiv(ANY.mul(32, m), 16) == ANY.mul(2, m)
    assert text(ANY.floordiv(ANY.add(ANY.mul(16, m), n), 16)) == "m + n // 16"
    assert ANY.floordiv(ANY.mul(m, n), n) == Expr("//", (Expr("*", (m, n)), n))
    assert POSITIVE.floordiv(ANY.mul(m, n), n) == m
    product = ANY.mul(ANY.mul(m, n), k)
    assert POSITIVE.floordiv(product, ANY.mul(8, n)) == Expr("//", (Expr("*", (k, m)), 8))


def test_a_divisor_cancels_in_its_own_multiples():
    blocks = POSITIVE.floordiv(POSITIVE.add(n, 255), 256)
    twice = POSITIVE.sub(POSITIVE.mul(2, blocks), 1)
    assert POSITIVE.floordiv(twice, blocks) == 1
    assert POSITIVE.floordiv(POSITIVE.mul(3, blocks), blocks) == 3
    assert isinstance(ANY.floordiv(ANY.sub(ANY.mul(2, n), 1), n), Expr)


def test_remainders_that_are_known():
    assert ANY.mod(ANY.mul(48, m), 16) == 0
    assert SMALL.mod(m, 16) == m
    assert text(ANY.mod(ANY.add(ANY.mul(16, m), n), 16)) == "n % 16"
    assert POSITIVE.mod(ANY.mul(m, n), n) == 0


def test_what_one_path_assumes_no_other_knows():
    ranges = {"m": (0, math.inf), "n": (0, math.inf)}
    one, other, third = Algebra(ranges), Algebra(ranges), Algebra(ranges)
    multiple = Expr("==", (Expr("%", (m, 16)), 0))
    assert one.compare("<", m, 65) == other.compare("<", m, 65) == Expr("<", (m, 65))
    one.narrow(Expr("<", (m, 65)))
    other.narrow(Expr("<=", (65, m)))
    assert one.compare("<", m, 65) == 1
    assert other.compare("<", m, 65) == 0
    assert third.compare("<", m, 65) == Expr("<", (m, 65))
    third.narrow(Expr("<", (m, 65)))
    third.narrow(multiple)
    assert third.is_multiple(m, 16)
    assert not one.is_multiple(m, 16)
    one.narrow(Expr("<", (64, m)))
    assert one.impossible
    assert not third.impossible


def test_a_whole_float_does_not_get_the_answer_of_an_integer():
    assert ANY.compare("==", m, 2) == Expr("==", (m, 2))
    assert ANY.compare("==", m, 2.0) == Expr("==", (m, 2.0))
    assert ANY.min_max("min", m, 2) == Expr("min", (2, m))
    assert ANY.min_max("min", m, 2.0) == Expr("min", (2.0, m))
    assert ANY.floordiv(n, 2) == Expr("//", (n, 2))
    assert ANY.floordiv(n, 2.0) == Expr("//", (n, 2.0))


terms = st.recursive(
    st.sampled_from([m, n, k]) | st.integers(-3, 20),
    lambda inner: st.tuples(
        st.sampled_from(["add", "sub", "mul", "floordiv", "mod", "min", "max"]), inner, inner
    ),
    max_leaves=6,
)
OPS = {"add": "+", "mul": "*", "floordiv": "//", "mod": "%", "min": "min", "max": "max"}


def build(tree, algebra):
    """The same tree, simplified and as it is; None if it may divide by 0."""
    if not isinstance(tree, tuple):
        return tree, tree
    op, *operands = tree
    (a, raw_a), (b, raw_b) = (build(t, algebra) for t in operands)
    if op in {"floordiv", "mod"} and not (isinstance(b, int) and b > 0):
        b = raw_b = 7
    if op in {"min", "max"}:
        return algebra.min_max(op, a, b), Expr(op, (raw_a, raw_b))
    if op == "sub":
        return algebra.sub(a, b), Expr("+", (raw_a, Expr("neg", (raw_b,))))
    return getattr(algebra, op)(a, b), Expr(OPS[op], (raw_a, raw_b))


@given(terms, st.integers(0, 15), st.integers(1, 8), st.integers(0, 40))
def test_simplifying_keeps_the_value_and_the_range_holds_it(tree, m_, n_, k_):
    values = {"m": m_, "n": n_, "k": k_}
    simple, raw = build(tree, SMALL)
    found = evaluate(raw, values)
    assert evaluate(simple, values) == found
    low, high = SMALL.range(simple)
    assert low <= found <= high
