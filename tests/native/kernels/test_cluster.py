"""Builds on a dask cluster: a real one where dask is installed, and a stand-in everywhere."""

import os
import sys
from types import ModuleType
from unittest import mock

import pytest
from click.testing import CliRunner

from opforge.cli import main
from support.native.declared_source import write_source
from support.served_kernels import combine, plus_one, recorded


class Client:
    """Stands in for dask's; its executor is the one that a test gave it."""

    executor = None
    made = None

    def __init__(self, address, *, timeout, set_as_default):
        if "nowhere" in address:
            raise OSError("Timed out trying to connect")
        assert not set_as_default
        self.address, self.timeout = address, timeout
        self.closed = False
        self.submitted = []
        self.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True

    def scheduler_info(self):
        return {"workers": {}}

    def get_executor(self):
        return self

    def submit(self, fn, *args):
        self.submitted.append(fn)
        return self.executor.submit(fn, *args)


@pytest.fixture
def dask(monkeypatch, pool):
    """The clients that are made."""
    module = ModuleType("distributed")
    made = type("Client", (Client,), {"executor": pool, "made": []})
    module.Client = made
    monkeypatch.setitem(sys.modules, "distributed", module)
    return made


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("clustered"), "clustered")


def build(*arguments):
    arguments = map(str, ["build", *arguments, "--arch", "sm_80"])
    return CliRunner().invoke(main, [*arguments])


def sources(folder):
    return {f.name: f.read_bytes() for f in (folder / "src").rglob("*") if f.is_file()}


@pytest.mark.usefixtures("own_cache")
def test_operators_are_compiled_by_the_workers_of_the_address(dask, source, tmp_path):
    done = build(source, "--dask", "scheduler:8786", "--sources-only", "-o", tmp_path / "dist")
    assert done.exit_code == 0, done.output
    (client,) = dask.made
    assert (client.address, client.closed) == ("scheduler:8786", True)
    count = len(client.submitted)
    assert count > 0
    assert f"compiled {count} of {count}" in done.stderr
    # It may start them for the first job.
    assert "the scheduler at scheduler:8786 has no workers yet" in done.stderr


@pytest.mark.usefixtures("own_cache")
def test_recordings_are_too(dask, tmp_path):
    launched = recorded(lambda x: combine[(1,)](x, None, x, 7, 128, plus_one))
    launched.save(tmp_path / "launches.json")
    done = build(tmp_path / "launches.json", "--dask", "tcp://s:1", "-o", tmp_path / "kernels")
    assert done.exit_code == 0, done.output
    (client,) = dask.made
    assert (client.closed, len(client.submitted)) == (True, 3)


@pytest.mark.parametrize("address", ["nowhere:1", "scheduler"])
def test_an_address_without_a_scheduler_is_an_error(address, dask, source, tmp_path):
    done = build(source, "--dask", address, "-o", tmp_path / "dist")
    assert done.exit_code == 1
    assert "--dask" in done.stderr
    assert address in done.stderr
    assert (dask.made, (tmp_path / "dist").exists()) == ([], False)


def test_without_dask_the_error_says_what_to_install(monkeypatch, source, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = build(source, "--dask", "s:1", "-o", tmp_path / "dist")
    assert done.exit_code == 1
    assert "fix: pip install distributed" in done.stderr


@mock.patch.dict(os.environ)  # dask leaves variables there
@pytest.mark.filterwarnings("default")  # dask's own
def test_a_local_cluster_compiles_what_this_machine_would(source, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="needs dask's package distributed")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "cache"))
    arguments = (source, "--sources-only", "-o")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        done = build(*arguments, tmp_path / "theirs", "--dask", address)
        assert done.exit_code == 0, done.output
        with distributed.Client(address, set_as_default=False) as client:
            compiled = client.run(lambda: "opforge._compat.compiling" in sys.modules)
    assert len(compiled) == 2
    assert any(compiled.values())
    count = len([*(tmp_path / "cache" / "native").glob("*/*.image")])
    assert count > 1
    assert f"compiled {count} of {count}\n" in done.stderr

    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "own"))
    done = build(*arguments, tmp_path / "ours")
    assert done.exit_code == 0, done.output
    assert sources(tmp_path / "theirs") == sources(tmp_path / "ours")
