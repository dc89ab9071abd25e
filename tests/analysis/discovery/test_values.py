"""Candidates that are united."""

from opforge.analysis.discovery.values import ANY, NONE, NOTHING, UNKNOWN, Known, Unknown, union

LOST = Unknown("known only when it runs")


def test_none_beside_an_unknown_value_is_dropped():
    assert union(NONE, ANY) is ANY
    assert union(ANY, NONE) is ANY
    text = Known("text")
    assert union(NONE, (text,), ANY) == (text, UNKNOWN)


def test_none_beside_anything_else_is_kept():
    assert union(NONE, NOTHING) is NONE
    assert union(NONE, (LOST,)) == (*NONE, LOST)
