"""The page as a file: whole, escaped, and without anything from elsewhere. See test_browser.py."""

import html
import re
from dataclasses import replace

import pytest

from opforge.report.command import Outcome, make
from opforge.report.model import Report
from opforge.report.read import read_all


def render(report):
    return Outcome(report).to_html()


@pytest.fixture(scope="module")
def report(spilling, files):
    return read_all([str(spilling), *files.values()])[0]


@pytest.fixture(scope="module")
def page(report):
    return render(report)


def cells(page, table):
    """The texts of a table's rows."""
    body = re.search(rf'id="{table}".*?<tbody>(.*?)</tbody>', page, re.DOTALL)[1]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [
        [html.unescape(c) for c in re.findall(r"<td[^>]*>(.*?)</td>", r, re.DOTALL)] for r in rows
    ]


def test_nothing_is_fetched_from_elsewhere(page):
    assert "http:" not in page
    assert "https:" not in page
    assert "@import" not in page
    assert re.findall(r'(?:src|href)="([^#"]*)"', page) == ["data:,"]


def test_a_page_has_every_section_and_links_to_it(page):
    named = dict(re.findall(r'<a href="#([\w-]+)">([^<]+)</a>', page))
    assert list(named.values()) == [
        "Not covered", "demo_ops", "Launched", "Tuning", "Measured times", "Check",
    ]  # fmt: skip
    assert all(f'id="{name}"' in page for name in named)


def test_variants_have_registers_spills_shared_memory_and_bytes_per_architecture(page):
    rows = cells(page, "images-1")
    assert len(rows) == 16
    (row,) = [row for row in rows if row[1] == "*fp32, *fp32, *fp32, i64" and row[4] == "sm_90a"]
    assert row[:4] == ["add_kernel", "*fp32, *fp32, *fp32, i64", "BLOCK=128", "add"]
    assert row[5:9] == ["4", "48", "12", "1,024"]


def test_what_is_not_known_is_not_shown_as_zero(report):
    (build,) = report.builds
    (first, *_) = build.variants
    blank = replace(first, images=tuple(replace(i, registers=0, spills=0) for i in first.images))
    page = render(Report("it", (replace(build, variants=(blank,)),)))
    assert [row[6:8] for row in cells(page, "images-1")] == [["?", "?"]] * 2


def test_gaps_launches_and_checks_are_shown(page):
    assert ["ops:odd_kernel", "it was edited", "3"] in cells(page, "uncovered")
    assert cells(page, "launched")[0][:4] == ["ops:add_kernel", "120", "7", "0"]
    assert cells(page, "check")[1] == [
        "demo::add",
        "autograd",
        "fail",
        "the gradient of x is 0\nnote: in float64",
        "return it",
        "1.5 s",
    ]


def test_counts_without_a_launch_say_so(dist):
    (report,) = read_all([str(dist)])
    counted = replace(report, launched=())
    page = html.unescape(render(counted))
    assert "No launch was counted" in page
    assert '<li class="warn"><b>0</b> launches</li>' in page
    assert "by general variants" not in page


def test_tuning_and_times_are_drawn_and_listed(page):
    assert len(re.findall(r'id="tuning-1-map-\d"', page)) == 2
    assert cells(page, "tuning-1-map-1")[0] == ["1024", "2.16 us", "4.62 us", "43.9 us"]
    assert len(re.findall("<polyline", page)) == 4
    row = r"\s*".join(f"<td[^>]*>{text}</td>" for text in ("16", "1024", "exact", "2.16 us"))
    assert re.search(row, page)
    # A bar of each time, by the longest of its operator.
    assert cells(page, "measured")[0] == ["add", "bf16", "op", "20 us", "NVIDIA H200"]
    assert re.findall(r"bar\" style=\"--share: (\d+)%", page) == ["80", "100", "80", "100"]


def test_what_was_read_is_text_and_never_markup(report):
    assert "a &lt;note&gt;" in render(report)
    evil = replace(report.builds[0], name="</script><script>alert(1)</script>")
    page = render(replace(report, builds=(evil,)))
    assert "<script>alert" not in page
    assert page.count("<script>") == 1


def test_limits_and_changes_come_first(dist, spilling):
    page = make([str(dist), str(spilling)], "spills>0,bytes>1GB").to_html()
    assert page.index('id="limits"') < page.index('id="changes"') < page.index('id="build-1"')
    failed, kept = cells(page, "limits")
    assert failed[:2] == ["spills>0", "failed"]
    assert failed[2].endswith("and 5 more")
    assert kept == ["bytes>1GB", "ok", ""]
    spilled = next(row for row in cells(page, "changes") if row[0] == "spills")
    assert spilled[2:] == ["0", "12", "worse"]
    assert f"compared with {dist}" in page
