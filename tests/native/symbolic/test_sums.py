"""Sums of products, and what is taken out of them."""

from opforge.native.ir.expr import Expr, Var, text
from opforge.native.symbolic.algebra import added, core, multiplied, sum_of, term_of, without

m, n = Var("m"), Var("n")
PRODUCT = Expr("*", (m, n))


def test_a_term_is_a_sum_of_products():
    assert sum_of(Expr("+", (Expr("*", (n, m)), 127))) == {(m, n): 1, (): 127}
    assert sum_of(Expr("neg", (Expr("+", (m, 2)),))) == {(m,): -1, (): -2}
    assert sum_of(0) == {}


def test_a_sum_is_one_term_whatever_its_order():
    assert term_of({(): 3, (m,): 2, (n,): 0, (m, n): 1}) == Expr(
        "+", (PRODUCT, Expr("*", (2, m)), 3)
    )
    assert term_of({(m,): 0}) == 0


def test_sums_and_products_of_terms():
    assert added(added(m, n), Expr("*", (-1, m))) == n
    assert multiplied(n, m) == (PRODUCT, {(m, n): 1})


def test_common_factors_are_taken_out():
    assert text(without(added(PRODUCT, Expr("*", (8, n))), (n,))) == "m + 8"
    whole = added(added(Expr("*", (-8, m)), Expr("*", (8, n))), 3)
    found, factor, constant = core(whole)
    assert (text(found), factor, constant) == ("m - n", -8, 3)


def test_nobody_changes_what_is_kept():
    before = dict(sum_of(PRODUCT))
    added(PRODUCT, 1)
    core(added(PRODUCT, 1))
    assert sum_of(PRODUCT) == before
