"""What `benchmarks/discovery.py` measures: CPU time, without the garbage collector."""

import gc
import importlib.util
import itertools
import os
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
    discovery.read(package, 1)
    assert {*seen} == {(False, True)}
    assert {reading.seconds for reading in package.readings} == {3}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ([2.4] * 100, True),
        ([2.6] * 100, False),
        ([1.0] * 99 + [39.0], True),
        ([1.0] * 99 + [41.0], False),
    ],
)
def test_the_median_and_the_99th_percentile_have_limits(discovery, times, kept):
    text, found = discovery.verdict(times, [3.0, 8.0, 9.0])
    assert found is kept
    assert f"median {times[0]:.2f} ms (limit 2.5), p99 {times[-1]:.1f} ms (limit 40.0)" in text
    # How quick the machine is decides nothing.
    scaled = f"({times[0] / 2:.2f} and {times[-1] / 2:.1f} ms where it takes 4.0)"
    assert f"torch's finder takes 8.00 ms {scaled}" in text
    assert text.endswith("kept" if kept else "exceeded")


def test_torchs_finder_reads_the_host_functions_only(discovery):
    package = discovery.Package(launch_siblings.__name__)
    discovery.read(package, 1)
    assert package.hosts
    assert all((r.torch_seconds > 0) is r.is_host for r in package.readings)


def test_the_least_of_several_first_readings_counts(discovery, monkeypatch):
    home, times = os.getpid(), itertools.count(0, 3)
    # Forks are quicker here, by what their process tells them.
    monkeypatch.setattr(
        discovery.time, "thread_time", lambda: next(times) / (1 if os.getpid() == home else 3)
    )
    package = discovery.Package(launch_siblings.__name__)
    discovery.read(package, 2)
    assert {reading.seconds for reading in package.readings} == {1}
