"""Integers in the widths that Triton gives them: in another one, arithmetic gives other results."""

import pytest
import torch

import opforge
from opforge.errors import NotServed, OpforgeWarning
from opforge.serving.build import build
from opforge.serving.plan import _mixes, plan
from support.served_folders import interpret
from support.served_kernels import mixed, recorded

SEED = 123456789


def wrapped(seed, bits):
    """What Triton's kernel stores, with `seed` in as many bits."""
    value = (seed * 1103515245 + 12345) % 2**bits
    return (value - 2**bits if value >= 2 ** (bits - 1) else value) >> 16


def out():
    return torch.zeros(1, dtype=torch.int64)


def built(folder, *pairs):
    recording = recorded(
        *(lambda x, pair=pair: mixed[(1,)](x.to(torch.int64), *pair) for pair in pairs)
    )
    return build(recording, folder, archs=["sm_80"]).folder


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return built(tmp_path_factory.mktemp("narrow") / "kernels", (17, SEED))


def test_one_wide_integer_leaves_the_others_narrow(device, tmp_path):
    folder = built(tmp_path / "kernels", (17, SEED), (2**31, SEED))
    interpret(device, folder, mixed)
    opforge.serve(folder, strict=True)
    for n in (17, 2**31, 2**31 + 1):
        result = out()
        mixed[(1,)](result, n, SEED)
        assert result.item() == wrapped(SEED, 32)


def test_a_width_that_was_not_recorded_is_not_served(device, narrow, jit):
    interpret(device, narrow, mixed)
    opforge.serve(narrow, strict=True)
    with pytest.raises(NotServed, match=r"n is 2147483648, an integer of 64 bits \(i64\), for wh"):
        mixed[(1,)](out(), 2**31, SEED)
    opforge.serve(narrow)
    with pytest.warns(OpforgeWarning, match=r"n is 2147483648, an integer of 64 bits \(i64\)"):
        mixed[(1,)](out(), 2**31, SEED)
    # Another warning would be an error.
    for n in range(2**31, 2**31 + 100):
        mixed[(1,)](out(), n, SEED)
    assert len(jit) == 101
    ((_, reason),) = opforge.served().handed_over
    assert reason == "n is an integer of 64 bits (i64), for which nothing was built"


def test_what_was_recorded_unsigned_is_served_in_the_width_of_each_value(device, tmp_path):
    folder = built(tmp_path / "kernels", (17, 2**63 + 5))
    interpret(device, folder, mixed)
    opforge.serve(folder, strict=True)
    for seed, bits in ((SEED, 32), (2**61 + 2**32 + 1, 64)):
        result = out()
        mixed[(1,)](result, 17, seed)
        assert result.item() == wrapped(seed, bits)


def mixes(recording):
    made = plan(recording)
    ((instance,),) = [function.instances for function in made.functions]
    return {v.types[1:] for v in instance.variants if v.kernel in made.spare}


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(17, 5)], {("i32", "i32")}),
        ([(2**40, 5)], {("i32", "i32"), ("i64", "i32")}),
        (
            [(2**40, 5), (5, 2**40)],
            {("i32", "i32"), ("i64", "i32"), ("i32", "i64"), ("i64", "i64")},
        ),
        ([(5, 2**63)], {("i32", "i32"), ("i32", "i64"), ("i32", "u64")}),
    ],
)
def test_general_variants_have_the_widths_that_may_occur(pairs, expected):
    launches = [lambda x, pair=pair: mixed[(1,)](x.to(torch.int64), *pair) for pair in pairs]
    assert mixes(recorded(*launches)) == expected


def test_many_wide_integers_have_the_mixes_that_were_seen_and_one_wide_each():
    wide = ("i64",) * 5
    made = _mixes([wide, ("i32", "i64", "i32", "i32", "i32")])
    one_wide = [tuple("i64" if i == j else "i32" for i in range(5)) for j in range(5)]
    assert set(made) == {wide, ("i32",) * 5, *one_wide}
    assert len(made) == 7
