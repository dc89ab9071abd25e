"""The nearest row: exact ones first, ratios between, questions only where they matter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opforge.tuning.choose import nearest
from opforge.tuning.table import TuningRow, as_config


def row(*at, config=None):
    return TuningRow(at, as_config({"B": config if config is not None else str(at)}), 1.0)


@pytest.mark.parametrize(
    ("value", "chosen"),
    [(0, 16), (1, 16), (16, 16), (64, 16), (65, 256), (256, 256), (1024, 256), (1025, 4096),
     (10**9, 4096)],
)  # fmt: skip
def test_the_border_is_the_geometric_mean(value, chosen):
    rows = [row(n) for n in (16, 256, 4096)]
    assert nearest(rows, (value,)).at == (chosen,)


def test_texts_and_bools_must_be_equal():
    rows = [row(16, "a"), row(16, True), row(16, None)]
    assert nearest(rows, (5, "a")).at == (16, "a")
    assert nearest(rows, (5, True)).at == (16, True)
    assert nearest(rows, (5, 1)) is None
    assert nearest(rows, (5, "b")) is None


@given(
    st.sets(st.tuples(st.integers(0, 9999), st.integers(0, 9999)), min_size=1, max_size=12),
    st.data(),
)
def test_the_measured_configuration_is_used(points, data):
    rows = [row(*at) for at in points]
    at = data.draw(st.sampled_from(sorted(points)))
    assert nearest(rows, at).at == at
