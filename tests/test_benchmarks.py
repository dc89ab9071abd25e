"""What `benchmarks/discovery.py` measures: CPU time, without the garbage collector."""

import gc
import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import opforge
from support import launch_siblings

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def discovery(monkeypatch):
    spec = importlib.util.spec_from_file_location("opforge_bench", FOLDER / "discovery.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    # Of all that a worker holds it takes 2 s.
    monkeypatch.setattr(module.gc, "collect", lambda: 0)
    return module


def test_a_reading_takes_the_time_of_its_thread_with_the_collector_frozen(discovery, monkeypatch):
    seen = []

    def slow(_fn):
        seen.append((gc.isenabled(), gc.get_freeze_count() > 0))
        return opforge.Discovery()

    monkeypatch.setattr(discovery.opforge, "find_kernels", slow)
    monkeypatch.setattr(discovery.time, "thread_time", itertools.count(0, 3).__next__)
    package = discovery.Package(launch_siblings.__name__)
    discovery.read(package)
    assert {*seen} == {(False, True)}
    assert {reading.seconds for reading in package.readings} == {3}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ([0.9] * 100, True),
        ([1.1] * 100, False),
        ([0.1] * 99 + [39.0], True),
        ([0.1] * 99 + [41.0], False),
    ],
)
def test_the_limits_of_the_median_and_the_99th_percentile_scale_with_torchs(discovery, times, kept):
    # The machine is half as quick as the one that the limits are for.
    text, found = discovery.verdict(times, [3.0, 2 * discovery.TORCHS_FINDER, 9.0])
    assert found is kept
    assert f"median {times[0] / 2:.2f} ms (limit 0.5), p99 {times[-1] / 2:.1f} ms" in text
    assert text.endswith("kept" if kept else "exceeded")


def test_torchs_finder_reads_the_host_functions_only(discovery):
    package = discovery.Package(launch_siblings.__name__)
    discovery.read(package)
    assert [reading.fn for reading in package.hosts] == [launch_siblings.launch_double]
    assert all(
        (reading.torch_seconds > 0) is (reading in package.hosts) for reading in package.readings
    )


def test_a_function_that_raises_is_counted_and_the_others_are_read(discovery, monkeypatch):
    monkeypatch.setattr(discovery.opforge, "find_kernels", lambda _fn: 1 / 0)
    package = discovery.Package(launch_siblings.__name__)
    discovery.read(package)
    assert package.readings == []
    assert [*package.raised] == [f"{launch_siblings.__name__}.launch_double"]
