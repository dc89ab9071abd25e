"""Heat maps, plots and bars as geometry."""

from opforge.report.charts import MOST_LINES, bars, duration, heat_maps, plot
from opforge.report.model import Timed
from opforge.tuning.table import TunedKernel, TuningRow, as_config


def tuned(key, *rows):
    kernel = TunedKernel("gemm", "s", "sm_90", ("float16",), key)
    return kernel, [TuningRow(at, as_config({"BLOCK": 64}), us) for at, us in rows]


def test_the_axes_are_what_varies_most_and_a_map_is_made_for_each_of_the_rest():
    key = ("m", "mode", "n")
    rows = [((m, mode, n), float(m * n)) for m in (1, 16, 256) for n in (8, 64) for mode in "ab"]
    first, second = heat_maps(*tuned(key, *rows))
    assert (first.fixed, second.fixed) == ("mode=a", "mode=b")
    assert (first.x_name, first.y_name) == ("m", "n")
    assert [tick.text for tick in first.columns] == ["1", "16", "256"]
    assert [tick.text for tick in first.rows] == ["8", "64"]
    assert len(first.cells) == 6


def test_heat_is_logarithmic_over_all_maps_of_a_kernel():
    rows = [((1, "a"), 1.0), ((2, "a"), 10.0), ((1, "b"), 10.0), ((2, "b"), 100.0)]
    (only,) = heat_maps(*tuned(("n", "mode"), *rows))
    assert sorted(cell.heat for cell in only.cells) == [0.0, 50.0, 50.0, 100.0]
    assert {cell.text for cell in only.cells} == {"1 us", "10 us", "100 us"}
    assert only.cells[0].title == "BLOCK=64"


def test_a_missing_size_leaves_its_cell_empty():
    (only,) = heat_maps(*tuned(("m", "n"), ((1, 8), 1.0), ((2, 8), 2.0), ((1, 9), 3.0)))
    assert (len(only.columns), len(only.rows), len(only.cells)) == (2, 2, 3)


def test_one_row_is_a_map_of_one_cell():
    (only,) = heat_maps(*tuned(("n",), ((4096,), 0.0)))
    assert [cell.heat for cell in only.cells] == [0.0]
    assert only.fixed == "n=4096"


def test_true_and_one_are_two_columns():
    (only,) = heat_maps(*tuned(("flag",), ((True,), 1.0), ((1,), 2.0)))
    assert [tick.text for tick in only.columns] == ["1", "True"]


def test_a_plot_has_a_line_for_each_of_the_other_values():
    rows = [((m, n), float(m * n)) for m in (1, 16, 256) for n in (8, 64)]
    drawn = plot(*tuned(("m", "n"), *rows))
    assert drawn.x_name == "m"
    assert [line.label for line in drawn.lines] == ["n=8", "n=64"]
    (x0, y0, said), *_, (x2, y2, _) = drawn.lines[0].points
    assert said == "m=1, n=8: 8 us"
    # To the right and upwards, within the frame.
    assert drawn.frame.left < x0 < x2 < drawn.frame.right
    assert drawn.frame.top < y2 < y0 < drawn.frame.bottom


def test_ticks_stand_within_the_frame_and_large_sizes_are_written_out():
    drawn = plot(*tuned(("n",), ((1024,), 3.0), ((16777216,), 4000.0)))
    assert [tick.text for tick in drawn.x_ticks] == ["1024", "16777216"]
    assert [tick.text for tick in drawn.y_ticks] == ["10 us", "100 us", "1 ms"]
    assert all(drawn.frame.top <= tick.at <= drawn.frame.bottom for tick in drawn.y_ticks)


def test_times_that_are_all_the_same_are_drawn():
    drawn = plot(*tuned(("n",), ((1,), 7.0), ((2,), 7.0)))
    assert len(drawn.y_ticks) >= 2


def test_there_is_no_plot_of_words_or_of_one_size():
    assert plot(*tuned(("mode",), (("a",), 1.0), (("b",), 2.0))) is None
    assert plot(*tuned(("n",), ((1,), 1.0))) is None
    assert plot(*tuned(("n",), ((1,), 0.0), ((2,), 0.0))) is None


def test_more_lines_than_can_be_read_are_counted():
    rows = [((m, n), 1.0 + m) for m in range(1, 20) for n in range(MOST_LINES + 3)]
    drawn = plot(*tuned(("m", "n"), *rows))
    assert (len(drawn.lines), drawn.left_out) == (MOST_LINES, 3)


def test_bars_compare_the_times_of_one_operator():
    times = [
        Timed("silu", {"op": 10.0, "torch": 20.0}, "bf16"),
        Timed("gemm", {"op": 400.0, "torch": 300.0}, "bf16"),
        Timed("silu", {"op": 5.0}, "fp32"),
    ]
    first, second = bars(times)
    assert (first.title, second.title) == ("bf16", "fp32")
    assert first.series == ("op", "torch")
    widths = [bar.width for bar in first.bars]
    assert widths[0] == widths[1] / 2
    assert widths[2] == widths[1]
    assert [bar.text for bar in first.bars] == ["10 us", "20 us", "400 us", "300 us"]


def test_durations_have_three_digits_and_a_unit():
    assert [duration(us) for us in (0.5, 12.345, 1234.5, 2e6)] == [
        "0.5 us", "12.3 us", "1.23 ms", "2 s",
    ]  # fmt: skip
