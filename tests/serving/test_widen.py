"""`--widen`: which values a text means, and what it must name."""

import pytest

from opforge.errors import BadOption
from opforge.serving.widen import parse_widening
from support.served_kernels import combine, recorded


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k:BLOCK=64..512", (64, 128, 256, 512)),
        ("k:BLOCK=60..300", (64, 128, 256)),
        ("k:BLOCK=48,96", (48, 96)),
        ("pack.ops.k:BLOCK=7", (7,)),
    ],
)
def test_values_are_powers_of_two_or_those_listed(text, values):
    assert parse_widening(text).values == values


@pytest.mark.parametrize("text", ["k", "k:BLOCK", "k:BLOCK=", "k:B=9..4", "k:B=1..x", "k:B=1,,2"])
def test_what_cannot_be_read_is_told_with_an_example(text):
    with pytest.raises(BadOption) as caught:
        parse_widening(text)
    assert f"--widen {text!r} cannot be read" in str(caught.value)
    assert 'fix: write --widen "softmax_kernel:BLOCK=1024..32768"' in str(caught.value)


def test_it_must_name_a_recorded_kernel_and_a_constant_of_it():
    recording = recorded(lambda x: combine[(1,)](x, x, x, 7, BLOCK=64))
    parse_widening("combine:BLOCK=64").refuse_unused(recording)
    with pytest.raises(BadOption) as caught:
        parse_widening("combin:BLOCK=64").refuse_unused(recording)
    assert "--widen 'combin:BLOCK=64' names no recorded kernel" in str(caught.value)
    assert "found: combine" in str(caught.value)
    with pytest.raises(BadOption) as caught:
        parse_widening("combine:BLCK=64").refuse_unused(recording)
    assert "names no constant of combine\n  found: ACT, BLOCK" in str(caught.value)
