"""Tables on disk: what is written is read again, and what is not a table says so."""

import json

import pytest

from opforge.errors import BadOption
from opforge.tuning.table import TunedKernel, TuningRow, TuningTable, as_config, load, parse, save

KERNEL = TunedKernel("gemm", "5e1f", "sm_90", ("float16", "float16"), ("m", "mode"))


def row(*at, us=1.0, **config):
    return TuningRow(at, as_config(config), us)


def test_a_table_comes_back_as_it_was(tmp_path):
    table = TuningTable()
    fast = TuningRow((16, "fast"), as_config({"BLOCK": 64, "num_warps": 4}), 12.3456, "NVIDIA H200")
    table.add(KERNEL, fast)
    table.add(KERNEL, row(256, None, BLOCK=128))
    save(table, tmp_path / "new" / "t.json")
    again = load(tmp_path / "new" / "t.json")
    assert again == table
    assert again.find(KERNEL, (16, "fast")).us == 12.346
    assert again.find(KERNEL, (16, "fast")).device == "NVIDIA H200"


def test_the_text_does_not_depend_on_the_order_of_measuring():
    rows = [row(256, "a", B=2), row(16, "a", B=1), row(16, "b", B=1)]
    texts = set()
    for order in (rows, rows[::-1]):
        table = TuningTable()
        for one in order:
            table.add(KERNEL, one)
        texts.add(table.to_json())
    (text,) = texts
    assert [r["at"] for r in json.loads(text)["kernels"][0]["rows"]] == [
        [16, "a"], [16, "b"], [256, "a"],
    ]  # fmt: skip
    # One line per row, for reviewers.
    assert sum('"at":' in line for line in text.splitlines()) == 3


def test_one_and_true_are_two_keys():
    table = TuningTable()
    table.add(KERNEL, row(1, True, B=1))
    table.add(KERNEL, row(1, 1, B=2))
    assert len(table) == 2
    assert dict(table.find(KERNEL, (1, True)).config) == {"B": 1}


def test_later_rows_win():
    table, other = TuningTable(), TuningTable()
    table.add(KERNEL, row(16, "a", B=1))
    other.add(KERNEL, row(16, "a", B=2))
    table.update(other)
    assert dict(table.find(KERNEL, (16, "a")).config) == {"B": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "t.json is not JSON: "),
        ("[]", "t.json is not a tuning table: it has no 'kernels'"),
        ('{"format": 2, "kernels": []}', "t.json has format 2, but this opforge reads 1"),
        ('{"format": 1, "kernels": 5}', "t.json is not a tuning table: 'kernels' is not a list"),
        ('{"format": 1, "kernels": [{"kernel": "k"}]}', "t.json: kernels[0] cannot be read"),
        (
            (
                '{"format": 1, "kernels": [{"kernel": "k", "source": "s", "arch": "sm_90a", '
                '"dtypes": [], "key": [], "rows": []}]}'
            ),
            "the arch must look like 'sm_90' or 'gfx942', got 'sm_90a'",
        ),
        (
            (
                '{"format": 1, "kernels": [{"kernel": "k", "source": "s", "arch": "sm_90", '
                '"dtypes": [], "key": [], "rows": [{"at": [], "config": {}, "us": NaN}]}]}'
            ),
            "rows[0].us is nan, expected 0 to",
        ),
        (
            (
                '{"format": 1, "kernels": [{"kernel": "k", "source": "s", "arch": "sm_90", '
                '"dtypes": [], "key": [], "rows": [{"at": [], "config": {"B": [1]}, "us": 1}]}]}'
            ),
            "[1] is not a number, a string or null",
        ),
        (
            (
                '{"format": 1, "kernels": [{"kernel": "k", "source": "s", "arch": "sm_90", '
                '"dtypes": [], "key": ["n"], "rows": [{"at": [], "config": {}, "us": 1}]}]}'
            ),
            "rows[0] has 0 values, but the key has 1",
        ),
        (
            (
                '{"format": 1, "kernels": [{"kernel": "k", "source": "s", "arch": "sm_90", '
                '"dtypes": [], "key": [], "rows": [{"at": [], "config": {}, "us": "1"}]}]}'
            ),
            "rows[0].us is '1', expected float",
        ),
    ],
)
def test_a_file_that_is_not_a_table_is_refused(text, said):
    with pytest.raises(BadOption) as caught:
        parse(text, "t.json")
    assert said in str(caught.value)
    assert "opforge tune" in str(caught.value)


def table(key, *at):
    rows = [{"at": list(one), "config": {}, "us": 1.0} for one in at]
    block = {"kernel": "k", "source": "0", "arch": "sm_90", "dtypes": [], "key": key}
    return json.dumps({"format": 1, "kernels": [block | {"rows": rows}]})


PRODUCT = ["m", "n", "k", "A_COLUMNS", "B_COLUMNS"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            table(["n"], [16], [32], [16]),
            r"rows[2] is at [16], as an earlier row is: remove one of them",
        ),
        (
            table(PRODUCT, [16, 8, 8, False, True], [-16, 8, 8, False, True]),
            "rows[1] has -16 as m, expected a size of 1 or more",
        ),
        (
            table(PRODUCT, [16, 8.5, 8, False, True]),
            "rows[0] has 8.5 as n, expected a size of 1 or more",
        ),
        (
            table(PRODUCT, [16, 8, True, False, True]),
            "rows[0] has True as k, expected a size of 1 or more",
        ),
        (
            table(PRODUCT, [16, 8, 8, 0, True]),
            "rows[0] has 0 as A_COLUMNS, expected true or false",
        ),
    ],
)
def test_a_row_that_no_measurement_gives_is_refused_by_its_number(text, said):
    with pytest.raises(BadOption) as caught:
        parse(text, "t.json")
    assert "t.json: kernels[0] cannot be read" in str(caught.value)
    assert said in str(caught.value)


def test_a_key_that_is_not_a_size_may_be_negative():
    assert len(parse(table(["window"], [-1], [128]), "t.json")) == 2


def _row(**changed):
    row = {"at": [1], "config": {"BLOCK": 16}, "us": 1.0} | changed
    block = {"kernel": "k", "source": "0", "arch": "sm_90", "dtypes": [], "key": ["n"]}
    return json.dumps({"format": 1, "kernels": [block | {"rows": [row]}]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        (_row(us=10**400), r"rows\[0\]\.us is a number that no float can hold"),
        (_row(us=float("inf")), r"rows\[0\]\.us is inf, expected 0 to 10{15}"),
        (_row(us=float("nan")), r"rows\[0\]\.us is nan, expected 0 to 10{15}"),
        (_row(at=[2**63]), r"at\[0\] cannot be read: it is a number of more than 64 bits"),
        (_row(config={"BLOCK": -(10**30)}), "BLOCK cannot be read: it is a number of more than"),
    ],
)
def test_a_table_that_is_too_deep_or_too_large_is_refused(text, said):
    with pytest.raises(BadOption, match=said):
        parse(text, "forged.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"kernels": [], "format": %s}' % ("[" * 900 + "]" * 900),
        _row(at=[[["x" * 500] * 9] * 9]),
        _row().replace("sm_90", "sm" * 5000),
    ],
)
def test_what_is_wrong_with_a_table_is_told_in_a_few_lines(text):
    with pytest.raises(BadOption) as caught:
        parse(text, "forged.json")
    assert len(str(caught.value)) < 800


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadOption, match=r"nothing\.json cannot be read"):
        load(tmp_path / "nothing.json")


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadOption, match="cannot be written"):
        save(TuningTable(), tmp_path / "file" / "t.json")
