"""Dims text, ranks, shapes and bounds, on their own."""

import re

import pytest

from opforge.errors import BadDeclaration
from opforge.native.frontend.dims import parse, read_bounds, read_ranks, shared_lengths
from opforge.native.ir.cases import Bound


def raising(message):
    return pytest.raises(BadDeclaration, match=re.escape(message))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m, k", 'separate dimensions with spaces, not commas: "m k"'),
        ("...hidden", 'put spaces around "...": "... hidden"'),
        ("m 2*k", "'2*k' is not a dimension"),
        ("... *s", "... and *s in one tensor"),
        (64, "dims is a string"),
        *((f"m {word}", repr(word)) for word in ("-1", "**s", "1.5", "größe", "4m")),
    ],
)
def test_an_invalid_dims_text_is_refused_with_a_valid_one(text, message):
    with raising(message):
        parse(text)


def test_ranks_that_are_a_set_are_sorted_and_no_rank_counts_twice():
    assert read_ranks(("...",), {2, 1}) == (1, 2)
    assert read_ranks(("...",), (2, 1, 2)) == (2, 1)


@pytest.mark.parametrize(
    ("text", "ranks", "message"),
    [
        ("m k", (2, 3), 'ranks are for "..."'),
        ("... k", None, '"..." without ranks'),
        ("... m k", (1, 2), "rank 1 is too low"),
        ("...", (9,), "rank 9 is above 8"),
        ("a b c d e f g h i", None, "rank 9 is above 8"),
        ("...", (), "ranks are whole numbers"),
        ("...", "12", "ranks are whole numbers"),
        ("...", True, "ranks are whole numbers"),
    ],
)
def test_ranks_that_do_not_fit_the_dims_are_refused(text, ranks, message):
    with raising(message):
        read_ranks(parse(text), ranks)


def lengths_of(**tensors):
    return shared_lengths(
        (name, parse(text), read_ranks(parse(text), ranks))
        for name, (text, ranks) in tensors.items()
    )


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"x": ("*s", (1, 2)), "y": ("*s", (2, 3))},
            "parameter 'y': *s stands for 2 or 3 dimensions here and for 1 or 2 in 'x'",
        ),
        ({"x": ("*s h", None)}, "parameter 'x': no parameter with *s has ranks"),
        ({"x": ("*s", 8), "y": ("*s k", None)}, "parameter 'y': rank 9 is above 8"),
    ],
)
def test_ranks_of_a_shared_shape_that_disagree_or_are_missing_are_refused(tensors, message):
    with raising(message):
        lengths_of(**tensors)


def test_numbers_that_are_passed_may_be_bounded_and_negative():
    assert read_bounds({"n": (-4, 4)}, [], ["n"]) == ({}, {"n": Bound("n", -4, 4)})
    assert read_bounds({"n": -1}, [], ["n"]) == ({}, {"n": Bound("n", -1, -1, (-1,))})


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ((9, 8), "the range is empty"),
        ((1, 2, 3), "a range has two ends, not 3"),
        ((1,), "a range has two ends, not 1"),
        ((1, 2.5), "it is not a bound"),
        ((None, 4), "it is not a bound"),
        ((None,), "it is not a bound"),
        (True, "it is not a bound"),
        ([], "it is not a bound"),
        ([64, "x"], "it is not a bound"),
        (None, "it is not a bound"),
        ((-1, 8), "a size is not negative"),
        (-1, "a size is not negative"),
        ([64, -1], "a size is not negative"),
        ((0, 2**63), "64 bits"),
        (2**63, "64 bits"),
    ],
)
def test_a_bound_that_no_size_satisfies_is_refused(given, what):
    with raising(what):
        read_bounds({"k": given}, ["k"], [])


def test_the_largest_numbers_of_64_bits_are_bounds():
    fixed, bounds = read_bounds({"k": (0, 2**63 - 1), "n": -(2**63)}, ["k"], ["n"])
    assert fixed == {}
    assert [(b.low, b.high) for b in bounds.values()] == [(0, 2**63 - 1), (-(2**63), -(2**63))]


@pytest.mark.parametrize(
    ("dims", "sizes", "message"),
    [
        ([1], ["k"], "dims= maps size names to bounds"),
        ({"hidden_": (1, 2)}, ["rows", "hidden"], "did you mean 'hidden'?"),
        ({"k": 1}, [], "no parameter names a size"),
    ],
)
def test_bounds_of_no_name_are_refused(dims, sizes, message):
    with raising(message):
        read_bounds(dims, sizes, [])
