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


def table(*rows, key=("n",), **changed):
    """The text of a table; each row is where it was measured, or all of it."""
    whole = [r if isinstance(r, dict) else {"at": r, "config": {"B": 1}, "us": 1.0} for r in rows]
    block = {"kernel": "k", "source": "0", "arch": "sm_90", "dtypes": [], "key": list(key)}
    return json.dumps({"format": 1, "kernels": [block | {"rows": whole} | changed]})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "it has no 'kernels'"),
        ('{"format": 2, "kernels": []}', "has format 2, but this opforge reads 1"),
        ('{"format": 1, "kernels": [{"kernel": "k"}]}', "kernels[0] cannot be read"),
        (table(arch="sm_90a"), "got 'sm_90a'"),
        (table({"at": [1], "config": {}, "us": float("nan")}), "rows[0].us is nan"),
        (table({"at": [1], "config": {}, "us": "1"}), "rows[0].us is '1', expected float"),
        (table({"at": [1], "config": {"B": [1]}, "us": 1}), "is not a number, a string or null"),
        (table([2**63]), "at[0] cannot be read: it is a number of more than 64 bits"),
        (table([]), "rows[0] has 0 values, but the key has 1"),
        (table([16], [32], [16]), "rows[2] is at [16], as an earlier row is"),
    ],
)
def test_a_file_that_is_not_a_table_is_refused(text, found):
    with pytest.raises(BadOption) as caught:
        parse(text, "t.json")
    assert "t.json" in str(caught.value)
    assert found in str(caught.value)
    assert len(str(caught.value)) < 800


def test_a_key_that_is_not_a_size_may_be_negative():
    assert len(parse(table([-1], [128]), "t.json")) == 2


def test_places_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(BadOption, match=r"nothing\.json cannot be read"):
        load(tmp_path / "nothing.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadOption, match="cannot be written"):
        save(TuningTable(), tmp_path / "file" / "t.json")
