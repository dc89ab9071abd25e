"""The JIT with a table: autotuners ask it before they measure, and graphs get its choice."""

import warnings

import pytest
import torch
import triton

import opforge
from opforge.errors import OpforgeWarning
from opforge.registration.dependence import Dependence
from support import launching


@pytest.fixture(autouse=True)
def forget():
    yield
    opforge.use_tuning(None)


class Recorder:
    """Replaces a jitted function, and records what it would be launched with."""

    def __init__(self, fn):
        self.fn, self.blocks = fn, []
        self.arg_names = fn.arg_names

    def run(self, *args, **kwargs):
        self.blocks.append(kwargs["BLOCK"])


@pytest.fixture
def launched(ops):
    """`launched(n)` -> the block that the autotuner chooses; measuring chooses the last one."""
    recorder = Recorder(ops.scale_kernel.fn)
    times = iter(range(10**6, 0, -1))
    tuner = triton.runtime.Autotuner(
        recorder, ops.scale_kernel.arg_names, ops.scale_kernel.configs, ["n"], None, None,
        do_bench=lambda call, quantiles: [float(next(times))] * 3,
    )  # fmt: skip

    def launch(n, dtype=torch.float32):
        x = torch.empty(4, dtype=dtype)
        with opforge.target("sm_90"):
            tuner.run(x, x, n, 2.0, grid=(1,))
        return recorder.blocks[-1]

    return launch


def test_the_table_is_asked_before_anything_is_measured(launched, table_of):
    opforge.use_tuning(table_of({1024: 128, 65536: 64}))
    assert [launched(n) for n in (1, 1024, 8192, 8193, 10**6)] == [128, 128, 128, 64, 64]


def test_without_a_table_everything_is_as_before(launched, table_of):
    assert launched(1024) == 256
    opforge.use_tuning(table_of({1024: 128}))
    assert launched(1024) == 128
    opforge.use_tuning(None)
    # What was measured is not measured again.
    assert launched(1024) == 256


def test_a_later_table_wins(launched, table_of):
    opforge.use_tuning(table_of({1024: 128, 65536: 64}))
    assert launched(1024) == 128
    opforge.use_tuning(table_of({1024: 64}))
    assert launched(1024) == 64
    assert launched(65536) == 64


def test_sizes_that_the_table_lacks_are_measured_and_reported_once(launched, table_of):
    opforge.use_tuning(table_of({1024: 128}))
    with pytest.warns(OpforgeWarning) as caught:
        assert launched(1024, torch.float16) == 256
    (said,) = [str(w.message) for w in caught]
    assert said.startswith("scale_kernel (")
    assert "the tuning table has no rows for tensors of float16, float16" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launched(2048, torch.float16)


def test_stale_rows_are_named_and_skipped(launched, table_of):
    opforge.use_tuning(table_of({1024: 128}, source="another"))
    with pytest.warns(OpforgeWarning, match="1 row for it, all stale"):
        assert launched(1024) == 256


def test_graphs_have_the_one_configuration(ops, table_of):
    def blocks(n):
        graph = launching.graph_of(ops.scale, torch.empty(n))
        return [
            [c.kwargs["BLOCK"] for c in one.kernel.configs] for one in launching.launches(graph)
        ]

    assert blocks(1024) == [[64, 128, 256]]
    opforge.use_tuning(table_of({1024: 128, 65536: 64}))
    assert blocks(1024) == [[128]]
    assert blocks(65536) == [[64]]


def test_the_key_of_compiled_code_knows_the_table(ops, table_of):
    key = Dependence([ops.scale_kernel], [])
    before = key.src
    opforge.use_tuning(table_of({1024: 128}))
    assert key.src != before
    assert "'BLOCK': 128" in key.src
