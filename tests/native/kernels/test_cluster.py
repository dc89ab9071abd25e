"""Builds on a dask cluster."""

import os
import sys
import tempfile
from unittest import mock

import pytest
from click.testing import CliRunner

from opforge.cli import main
from opforge.native.kernels import workers
from support.native.declared_source import write_source
from support.served_kernels import combine, plus_one, recorded

distributed = pytest.importorskip("distributed", reason="needs dask's package distributed")
pytestmark = pytest.mark.filterwarnings("default")  # dask's own


@pytest.fixture(scope="module", autouse=True)
def _variables():
    """As they were; dask leaves some there."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="module")
def scheduler():
    """The address of a cluster with two workers."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("clustered"), "clustered")


@pytest.fixture
def build(monkeypatch, tmp_path):
    """Runs the command with a cache of its own."""

    def run(*arguments):
        monkeypatch.setenv("OPFORGE_CACHE_DIR", tempfile.mkdtemp(dir=tmp_path))
        arguments = map(str, ["build", *arguments, "--arch", "sm_80"])
        return CliRunner().invoke(main, [*arguments])

    return run


def sources(folder):
    return {f.name: f.read_bytes() for f in (folder / "src").rglob("*") if f.is_file()}


def test_a_cluster_compiles_what_this_machine_would(build, scheduler, source, tmp_path):
    for place, options in (("theirs", ["--dask", scheduler]), ("ours", [])):
        done = build(source, *options, "--sources-only", "-o", tmp_path / place)
        assert done.exit_code == 0, done.output
        assert "compiled 6 of 6\n" in done.stderr
    assert sources(tmp_path / "theirs") == sources(tmp_path / "ours")
    with distributed.Client(scheduler, set_as_default=False) as client:
        compiled = client.run(lambda: "opforge._compat.compiling" in sys.modules)
    assert len(compiled) == 2
    assert any(compiled.values())


def test_recordings_are_compiled_there_too(build, scheduler, tmp_path):
    launched = recorded(lambda x: combine[(1,)](x, None, x, 7, 128, plus_one))
    launched.save(tmp_path / "launches.json")
    done = build(tmp_path / "launches.json", "--dask", scheduler, "-o", tmp_path / "kernels")
    assert done.exit_code == 0, done.output
    assert "compiled 3 of 3\n" in done.stderr


def test_a_scheduler_without_workers_is_told():
    notes = []
    with (
        distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=None) as cluster,
        workers.dask_executor(cluster.scheduler_address, notes.append),
    ):
        assert f"`dask worker {cluster.scheduler_address}` starts one" in notes[0]


def test_an_address_without_a_scheduler_is_an_error(build, source, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_TIMEOUT", 0.2)
    done = build(source, "--dask", "127.0.0.1:1", "-o", tmp_path / "dist")
    assert done.exit_code == 1
    assert "--dask 127.0.0.1:1: no scheduler was reached" in done.stderr
    assert not (tmp_path / "dist").exists()


def test_without_dask_the_error_says_what_to_install(monkeypatch, build, source, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = build(source, "--dask", "s:1", "-o", tmp_path / "dist")
    assert done.exit_code == 1
    assert "fix: pip install distributed" in done.stderr
