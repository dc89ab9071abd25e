"""Heat maps and plots: what they show. See test_browser.py for how they look."""

import re

from opforge.report.page import duration, heat_maps, plot
from opforge.tuning.table import TunedKernel, TuningRow, as_config


def tuned(key, *rows):
    kernel = TunedKernel("gemm", "s", "sm_90", ("float16",), key)
    return kernel, [TuningRow(at, as_config({"BLOCK": 64}), us) for at, us in rows]


def texts(drawing, css):
    return re.findall(rf'<text class="{css}"[^>]*>([^<]*)<', drawing.svg)


def heats(table):
    return [cell.share for row in table.rows for cell in row if cell.css == "heat"]


def test_the_axes_are_what_varies_most_and_a_map_is_made_for_each_of_the_rest():
    key = ("m", "mode", "n")
    rows = [((m, mode, n), float(m * n)) for m in (1, 16, 256) for n in (8, 64) for mode in "ab"]
    first, second = heat_maps("tuning-1", *tuned(key, *rows))
    assert (first.title, second.title) == ("mode=a", "mode=b")
    assert [name for name, _ in first.columns] == ["n", "m=1", "m=16", "m=256"]
    assert [row[0].text for row in first.rows] == ["8", "64"]
    assert len(heats(first)) == 6


def test_heat_is_logarithmic_over_all_maps_of_a_kernel():
    rows = [((1, "a"), 1.0), ((2, "a"), 10.0), ((1, "b"), 10.0), ((2, "b"), 100.0)]
    (only,) = heat_maps("tuning-1", *tuned(("n", "mode"), *rows))
    assert sorted(heats(only)) == [0.0, 50.0, 50.0, 100.0]
    assert only.rows[1][2].title == "BLOCK=64"


def test_a_plot_has_a_line_for_each_of_the_other_values():
    rows = [((m, n), float(m * n)) for m in (1, 16, 256) for n in (8, 64)]
    drawn = plot(*tuned(("m", "n"), *rows))
    assert drawn.legend == ("n=8", "n=64")
    assert texts(drawn, "axis mid") == ["m"]
    assert "<title>m=1, n=8: 8 us</title>" in drawn.svg
    first, _second = re.findall(r'<polyline points="([^"]*)"', drawn.svg)
    (x0, y0), *_, (x2, y2) = (map(float, point.split(",")) for point in first.split())
    # To the right and upwards.
    assert x0 < x2
    assert y2 < y0


def test_there_is_no_plot_of_words_or_of_one_size():
    assert plot(*tuned(("mode",), (("a",), 1.0), (("b",), 2.0))) is None
    assert plot(*tuned(("n",), ((1,), 1.0))) is None
    assert plot(*tuned(("n",), ((1,), 0.0), ((2,), 0.0))) is None
    # Times that are all the same are drawn.
    assert plot(*tuned(("n",), ((1,), 7.0), ((2,), 7.0)))


def test_more_lines_than_can_be_read_are_counted():
    rows = [((m, n), 1.0 + m) for m in range(1, 20) for n in range(15)]
    drawn = plot(*tuned(("m", "n"), *rows))
    assert (drawn.svg.count("<polyline"), drawn.about) == (12, "3 more lines are in the table.")


def test_durations_have_three_digits_and_a_unit():
    assert [duration(us) for us in (0.5, 12.345, 1234.5, 2e6)] == [
        "0.5 us", "12.3 us", "1.23 ms", "2 s",
    ]  # fmt: skip
