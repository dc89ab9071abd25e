"""`opforge tune`: what is measured, what is kept, and what is refused.

Kernels run through Triton's interpreter in a process of its own; times come from a clock that
gives each configuration what the test wants.
"""

import json

import pytest

from opforge.errors import BadOption, NeedsGpu
from opforge.measuring.measure import parse, tune
from opforge.native.ir.cases import Launch
from opforge.native.plan import plan
from opforge.native.tracing.launches import by_table
from opforge.tuning.table import load
from support import launching, tuned_ops
from support.processes import run_python

SCRIPT = """
from support import tuned_ops
from opforge.measuring.measure import tune

calls = []

def clock(call, quantiles):
    call()
    n, block = calls[-1]
    # Small sizes are fastest in small blocks.
    us = abs(block - (64 if n < 1000 else 256)) + 1
    return [us / 1e3] * 3

bench = type(tuned_ops.scale_kernel)._bench
def _bench(self, *args, config, **meta):
    calls.append((self.nargs["n"], config.kwargs["BLOCK"]))
    return bench(self, *args, config=config, **meta)
type(tuned_ops.scale_kernel)._bench = _bench

done = tune(
    [tuned_ops.scale, tuned_ops.copy],
    {path!r}, sizes={sizes!r}, arch="sm_90", clock=clock, again={again!r},
)
print(done.measured, done.known, len(calls), "; ".join(done.notes))
"""


def measured(path, sizes, *, again=False):
    script = SCRIPT.format(path=str(path), sizes=sizes, again=again)
    return run_python(script, TRITON_INTERPRET="1").splitlines()[-1]


@pytest.fixture
def ops():
    return tuned_ops


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tuning") / "tuning.json"
    # Two dtypes, two sizes, three configurations.
    said = measured(path, {"n": [100, 5000]})
    assert said == "4 0 12 tuned_ops::copy has no autotuned kernel"
    return path


def test_every_configuration_is_measured_and_the_best_kept(path):
    blocks = json.loads(path.read_text())["kernels"]
    assert [(b["dtypes"], b["key"], b["arch"]) for b in blocks] == [
        (["float16", "float16"], ["n"], "sm_90"),
        (["float32", "float32"], ["n"], "sm_90"),
    ]
    for block in blocks:
        assert [(r["at"], r["config"]["BLOCK"], r["us"]) for r in block["rows"]] == [
            ([100], 64, 1.0), ([5000], 256, 1.0),
        ]  # fmt: skip


def test_sizes_in_the_table_are_not_measured_again(path, tmp_path):
    copied = tmp_path / "t.json"
    copied.write_text(path.read_text())
    assert measured(copied, {"n": [100, 5000, 9000]}).startswith("2 4 6 ")
    assert measured(copied, {"n": [100]}, again=True).startswith("2 0 6 ")


def test_the_table_serves_a_build(path, ops):
    made = plan([ops.scale], (90,), choose=by_table(path))
    assert made.notes == []
    found = {
        dict(step.constants)["BLOCK"]
        for case in made.ops[0].cases
        for p in case.paths
        for step in p.steps
        if isinstance(step, Launch)
    }
    assert found == {"64", "256"}


def test_configurations_that_are_close_are_measured_in_turns(tmp_path):
    script = SCRIPT.format(path=str(tmp_path / "t.json"), sizes={"n": [5000]}, again=False)
    # 256 seems the fastest at first, and is not.
    script = script.replace(
        "    us = abs(block - (64 if n < 1000 else 256)) + 1\n",
        "    again = calls.count((n, block)) > 1\n"
        "    us = {64: 105, 128: 200, 256: 106 if again else 100}[block]\n",
    )
    said = run_python(script, TRITON_INTERPRET="1").splitlines()[-1]
    # Per dtype: three at first, and then two of them three times.
    assert said.startswith("2 0 18 ")
    rows = [row for rows in load(tmp_path / "t.json").rows.values() for row in rows.values()]
    assert {(dict(row.config)["BLOCK"], row.us) for row in rows} == {(64, 105.0)}


def test_sizes_as_people_write_them():
    assert parse(["m=1, 16", "n=4096", "m=32"]) == {"m": [1, 16, 32], "n": [4096]}
    for wrong in ("m", "m=", "=4", "m=a", "m=1,,2"):
        with pytest.raises(BadOption, match="cannot be read"):
            parse([wrong])
    for wrong in ("m=-1", "m=0,16"):
        with pytest.raises(BadOption, match="below 1, where there is nothing to measure"):
            parse([wrong])


@launching.no_gpu
def test_without_a_gpu(ops, tmp_path):
    with pytest.raises(NeedsGpu) as caught:
        tune([ops.scale], tmp_path / "t.json", sizes={"n": [1]})
    assert "torch finds none here" in str(caught.value)
    assert not (tmp_path / "t.json").exists()


@pytest.fixture
def with_gpu(monkeypatch):
    """As far as the checks before measuring go."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "NVIDIA H100")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no sizes to measure were given for n"),
        ({"n": [1], "m": [2]}, "no operator has a size m"),
        ({"n": [2**21]}, "n = 2097152 was not declared"),
    ],
)
@pytest.mark.usefixtures("with_gpu")
def test_sizes_that_are_missing_or_wrong(ops, tmp_path, given, said):
    with pytest.raises(BadOption) as caught:
        tune([ops.scale], tmp_path / "t.json", sizes=given)
    assert said in str(caught.value)


@pytest.mark.usefixtures("with_gpu")
def test_another_gpu_is_refused(ops, tmp_path):
    with pytest.raises(NeedsGpu, match=r"the GPU here is sm_90 \(NVIDIA H100\).*for sm_80"):
        tune([ops.scale], tmp_path / "t.json", sizes={"n": [1]}, arch="sm_80")


def test_the_interpreter_is_not_measured(tmp_path):
    script = SCRIPT.format(path=str(tmp_path / "t.json"), sizes={"n": [1]}, again=False)
    with pytest.raises(AssertionError, match="timings in Triton's interpreter mean nothing"):
        run_python(script.replace("clock=clock, ", ""), TRITON_INTERPRET="1")
    assert not (tmp_path / "t.json").exists()


def test_an_interrupt_leaves_what_was_measured(tmp_path):
    path = tmp_path / "t.json"
    script = SCRIPT.format(path=str(path), sizes={"n": [100, 5000]}, again=False)
    script = script.replace(
        "    us = abs", "    if n > 1000:\n        raise KeyboardInterrupt\n    us = abs"
    )
    with pytest.raises(AssertionError, match="KeyboardInterrupt"):
        run_python(script, TRITON_INTERPRET="1")
    assert [len(rows) for rows in load(path).rows.values()] == [1]
    assert measured(path, {"n": [100, 5000]}).startswith("3 1 9 ")
