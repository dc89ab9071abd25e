"""What `opforge.served()` returns, as JSON for `opforge report`."""

import json

import pytest

from opforge.errors import BadOption
from opforge.serving.report import Served, from_content

SERVED = Served({"m:add": 5, "m:mul": 2}, {"m:add": 1}, {("m:odd", "it was edited"): 3})


def test_the_json_has_every_count_and_is_read_again():
    content = json.loads(SERVED.to_json())
    assert content["launches"] == {"m:add": 5, "m:mul": 2}
    assert content["handed_over"] == [{"kernel": "m:odd", "reason": "it was edited", "launches": 3}]
    assert from_content(content, "counts.json") == SERVED


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"launches": {"m:add": "5"}}, "launches.m:add is '5', expected int"),
        ({"general": {"m:add": -1}}, "general[0] is -1, expected 0 to 9223372036854775807"),
        ({"handed_over": [{"kernel": "m:odd"}]}, "handed_over[0].reason is missing"),
        ({"handed_over": {}}, "handed_over is {}, expected list"),
    ],
)
def test_a_wrong_field_is_named(change, found):
    with pytest.raises(BadOption) as raised:
        from_content({**json.loads(SERVED.to_json()), **change}, "counts.json")
    assert str(raised.value) == (
        f"counts.json cannot be read\n  found: {found}\n"
        "  fix: write it again, with `opforge.served().to_json()` at the end of the program"
    )


def test_another_format_is_refused():
    with pytest.raises(BadOption, match=r"counts\.json has format 2, but this opforge reads 1"):
        from_content({"served_format": 2}, "counts.json")
