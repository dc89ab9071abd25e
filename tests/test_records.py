"""What is read from JSON has the types of the record, or the error names the field."""

import pytest

from opforge.native.ir.cases import CASE, Case, Guard, Path
from opforge.native.ir.expr import Var
from opforge.native.ir.interface import OP, ChoiceParam, Op
from opforge.records import BadField, shown


def test_a_field_of_another_type_is_named():
    content = CASE.write(Case((), paths=(Path((Guard(Var("n"), "a.py:1"),)),)))
    content["paths"][0]["guards"][0]["location"] = 3
    with pytest.raises(BadField, match=r"^paths\[0\]\.guards\[0\]\.location is 3, expected str$"):
        CASE.read(content)


def test_a_bool_is_not_a_number():
    content = CASE.write(Case(())) | {"implementation": True}
    with pytest.raises(BadField, match=r"^implementation is True, expected int$"):
        CASE.read(content)


def test_an_object_that_is_none_of_the_records_is_named():
    op = Op("f", "", "", (ChoiceParam("mode", ("A",), ("1",)),), ())
    content = OP.write(op)
    del content["params"][0]["labels"]
    with pytest.raises(BadField, match=r"^params\[0\] is .* name, labels, values$"):
        OP.read(content)


def test_what_was_read_is_shown_in_a_few_lines():
    wide = {f"key{i}": ["x" * 1000] * 1000 for i in range(1000)}
    deep = [wide]
    for _ in range(100_000):
        deep = [deep]
    assert shown([1, "a"]) == "[1, 'a']"
    assert max(len(shown(wide)), len(shown(deep))) <= 403
