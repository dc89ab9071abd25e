"""What `benchmarks/discovery.py` measures: CPU time, without the garbage collector."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

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
    torchs = 2 * discovery.TORCHS_FINDER / 1e3
    hosts = [discovery.Reading("host", None, each / 1e3, torchs) for each in times]
    assert discovery.scaled(hosts) == (
        pytest.approx(times[0] / 2), pytest.approx(times[-1] / 2), kept
    )  # fmt: skip


def test_the_functions_that_lead_to_kernels_are_hosts(discovery):
    package = discovery.read(launch_siblings.__name__)
    assert [reading.name.rpartition(".")[2] for reading in package.hosts] == ["launch_double"]
    assert package.row()[0] == launch_siblings.__name__
