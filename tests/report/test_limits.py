"""`--fail-on`: its grammar, and what is beyond a limit."""

from dataclasses import replace

import pytest

from opforge.errors import BadOption
from opforge.report.changes import compare
from opforge.report.limits import METRICS, judge, parse_limits
from opforge.report.model import LIBRARY, SERVED, Build, Launched, Report
from opforge.report.read import read_all
from support.native import hand_made
from support.standin.library import write


def beyond(sources, text):
    *older, report = read_all([*map(str, sources)])
    changes = compare(older[0], report) if older else None
    return [one.beyond for one in judge(report, changes, parse_limits(text))]


def test_what_spills_is_listed(dist, spilling):
    assert beyond([dist], "spills>0") == [()]
    (found,) = beyond([spilling], "spills > 0")
    assert len(found) == 8
    assert ("add_kernel(*fp32, *fp32, *fp32, i64, BLOCK=128) sm_90a", "12") in found


def test_numbers_may_have_units_of_bytes(dist):
    (build,) = read_all([str(dist)])[0].builds
    size = build.bytes
    assert beyond([dist], f"bytes>{size - 1}, bytes>{size}B") == [
        (("demo_ops", f"{size} bytes"),), (),
    ]  # fmt: skip
    assert [one.number for one in parse_limits("bytes>20MB,bytes>1.5KiB,shared>48kb")] == [
        20e6, 1536, 48e3,
    ]  # fmt: skip


def test_every_comparison_is_known(dist):
    assert beyond([dist], "registers>40,registers>=41,registers<40,registers!=40") == [()] * 4
    assert [len(found) for found in beyond([dist], "registers<=40,registers==40")] == [16, 16]


def test_gaps_are_all_counted_and_listed(dist, files):
    (found,) = beyond([dist, files["served"]], "uncovered>0")
    assert ("ops:odd_kernel", "it was edited") in found
    assert len(found) == 5
    # Four paths and three launches.
    assert beyond([dist, files["served"]], "uncovered>7,uncovered>=7") == [(), found]


def test_rows_of_a_check_that_failed_are_listed(files):
    assert beyond([files["check"]], "failed>0") == [
        (("demo::add, autograd", "the gradient of x is 0"),)
    ]


def test_an_older_build_allows_limits_on_what_has_changed(dist, spilling):
    found, grown, gaps = beyond([dist, spilling], "new_spills>0,grown_bytes>0,new_uncovered>0")
    assert len(found) == 8
    assert {said for _, said in found} == {"0 -> 12"}
    assert (grown, gaps) == ((), ())
    assert beyond([spilling, dist], "new_spills>0") == [()]


def test_an_image_without_a_record_is_beyond_every_limit(tmp_path):
    folder = write(hand_made.library(), tmp_path / "dist")
    (found,) = beyond([folder], "spills>0")
    assert len(found) == 12
    assert {said for _, said in found} == {"not known: its image has no record of it"}
    assert beyond([folder], "shared>0") == [()]


@pytest.mark.parametrize(
    ("sources", "text", "needs"),
    [
        (("check",), "spills>0", "opforge build"),
        (("dist",), "failed>0", "opforge check --json"),
        (("dist",), "general>0", "opforge serve --counts counts.json"),
        (("check",), "uncovered>0", "opforge serve --counts counts.json"),
        (("dist",), "new_spills>0", "opforge report OLD NEW"),
    ],
)
def test_a_metric_without_data_is_an_error_and_not_a_pass(dist, files, sources, text, needs):
    given = {"dist": str(dist), **files}
    with pytest.raises(BadOption) as raised:
        beyond([given[name] for name in sources], text)
    assert f"does not tell {text[:-2]}" in str(raised.value)
    assert needs in raised.value.fix


@pytest.mark.parametrize("text", ["uncovered>0", "general>0"])
@pytest.mark.parametrize("launched", [(), (Launched("mod:scale"),)])
def test_counts_without_a_launch_are_an_error_and_not_a_pass(dist, text, launched):
    (report,) = read_all([str(dist)])
    with pytest.raises(BadOption, match="no launch was counted"):
        judge(replace(report, launched=launched), None, parse_limits(text))


@pytest.mark.parametrize("text", ["grown_bytes>0", "new_spills>0", "new_uncovered>0"])
def test_builds_that_are_not_alike_are_refused(text):
    old, new = (
        Report(name, (Build(kind, name, ("sm_90",), 1, {}, (), (), ()),))
        for name, kind in (("dist", LIBRARY), ("kernels", SERVED))
    )
    with pytest.raises(BadOption, match=f"{text}: kernels cannot be compared with dist"):
        judge(new, compare(old, new), parse_limits(text), old)


def test_an_unknown_metric_gets_the_list():
    with pytest.raises(BadOption, match="there is no metric 'spill'") as raised:
        parse_limits("spill>0")
    assert all(name in raised.value.fix for name in METRICS)


@pytest.mark.parametrize(
    "text", ["spills", "spills>", "spills>many", ">0", "spills=0", "", "bytes>-1"]
)
def test_what_is_not_a_limit_is_refused(text):
    with pytest.raises(BadOption, match="is not a limit"):
        parse_limits(text)


def test_units_are_for_bytes_and_known():
    with pytest.raises(BadOption, match="spills has no unit"):
        parse_limits("spills>3MB")
    with pytest.raises(BadOption, match="'TB' is not a unit"):
        parse_limits("bytes>1TB")
