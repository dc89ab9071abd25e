"""A report as JSON, and back."""

import json

import pytest

from opforge.errors import BadOption
from opforge.report.model import from_content
from opforge.report.read import read_all


@pytest.fixture
def content(dist, files):
    (report,) = read_all([str(dist), *files.values()])
    return json.loads(json.dumps(report.to_content()))


def test_a_report_comes_back_as_it_was(dist, files, content):
    (report,) = read_all([str(dist), *files.values()])
    assert from_content(content, "it") == report


def test_a_report_says_what_wrote_it(content):
    assert content["opforge_report"] == 1
    assert content["opforge"]


def test_nothing_launched_is_not_the_same_as_nobody_looked(dist):
    (report,) = read_all([str(dist)])
    assert report.to_content()["launched"] is None
    assert report.to_content()["checked"] is None


def test_another_format_is_refused(content):
    with pytest.raises(BadOption, match=r"old\.json has format 9, but this opforge reads 1"):
        from_content({**content, "opforge_report": 9}, "old.json")


def test_a_wrong_field_is_named(content):
    content["builds"][0]["variants"][1]["images"][0]["spills"] = -3
    with pytest.raises(BadOption) as raised:
        from_content(content, "old.json")
    assert "found: builds[0].variants[1].images[0].spills is -3, expected 0 to" in str(raised.value)
    assert "fix: write it again with `opforge report FOLDER -o report.json`" in str(raised.value)
