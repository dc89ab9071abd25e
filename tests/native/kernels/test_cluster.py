"""Builds on a dask cluster: a real one where dask is installed, and a stand-in everywhere."""

import os
import sys
from concurrent.futures import Future
from types import ModuleType
from unittest import mock

import pytest
from click.testing import CliRunner

from opforge.cli import main
from opforge.errors import BadOption
from opforge.native.kernels.workers import dask_executor
from support.native.heard import Heard
from support.served_kernels import combine, plus_one, recorded

SOURCE = """
import opforge
import torch
import triton
import triton.language as tl
from opforge import native


@triton.jit
def clustered_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, offsets, mask=offsets < n)


@opforge.op("clustered::numbered", mutates_args=("x",))
def numbered(x: torch.Tensor) -> None:
    clustered_kernel[(triton.cdiv(x.numel(), 128),)](x, x.numel(), BLOCK=128)


native.declare(numbered, x=native.tensor("n", dtype="i32"), dims={"n": (0, 1000)})
"""


class Client:
    """Stands in for dask's; its executor is the one that a test gave it."""

    executor = None
    workers = ("one", "two")
    made = None

    def __init__(self, address, *, timeout, set_as_default):
        if address == "nowhere:1":
            raise OSError("Timed out trying to connect to tcp://nowhere:1 after 10 s")
        if address == "tls://nowhere:1":
            raise TypeError("TLS expects a `ssl_context` argument")
        self.address, self.timeout, self.is_default = address, timeout, set_as_default
        self.closed = False
        self.submitted = []
        self.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True

    def scheduler_info(self):
        return {"workers": dict.fromkeys(self.workers)}

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
    path = tmp_path_factory.mktemp("clustered") / "clustered_ops.py"
    path.write_text(SOURCE)
    return path


def build(*arguments):
    arguments = map(str, ["build", *arguments, "--arch", "sm_80"])
    return CliRunner().invoke(main, [*arguments])


def sources(folder):
    return {f.name: f.read_bytes() for f in (folder / "src").rglob("*") if f.is_file()}


@pytest.mark.usefixtures("own_cache")
def test_operators_are_compiled_by_the_workers_of_the_address(dask, source, tmp_path):
    arguments = (source, "--dask", "scheduler:8786", "--sources-only", "-o", tmp_path / "dist")
    done = build(*arguments)
    assert done.exit_code == 0, done.output
    (client,) = dask.made
    assert (client.address, client.timeout, client.is_default) == ("scheduler:8786", 10, False)
    assert client.closed
    count = len(client.submitted)
    assert count > 0
    assert f"compiling {count} images" in done.stderr
    assert f"compiled {count} of {count}" in done.stderr

    again = build(source, "--sources-only", "-o", tmp_path / "dist")
    assert "nothing has changed" in again.stdout
    assert len(dask.made) == 1


@pytest.mark.usefixtures("own_cache")
def test_recordings_are_too(dask, tmp_path):
    launched = recorded(lambda x: combine[(1,)](x, None, x, 7, 128, plus_one))
    launched.save(tmp_path / "launches.json")
    done = build(tmp_path / "launches.json", "--dask", "tcp://s:1", "-o", tmp_path / "kernels")
    assert done.exit_code == 0, done.output
    (client,) = dask.made
    assert client.closed
    assert len(client.submitted) == 3
    assert "compiled 3 of 3" in done.stderr


@pytest.mark.usefixtures("own_cache")
def test_a_scheduler_that_goes_away_is_told(dask, source, tmp_path):
    def lost(*_):
        future = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future

    dask.submit = lost
    done = build(source, "--dask", "s:1", "--sources-only", "-o", tmp_path / "dist")
    assert done.exit_code == 1
    assert "its executor gave up: it was shut down, or lost its scheduler; build" in done.output


def test_a_cluster_without_workers_is_noted(dask):
    dask.workers = ()
    heard = Heard()
    with dask_executor("s:1", heard) as executor:
        assert executor is not None
    (note,) = heard.notes
    assert note == "the scheduler at s:1 has no workers yet; `dask worker s:1` starts one"


def test_without_an_address_there_is_no_executor():
    with dask_executor(None, Heard()) as executor:
        assert executor is None


@pytest.mark.usefixtures("dask")
@pytest.mark.parametrize("address", ["nowhere:1", "tls://nowhere:1"])
def test_a_scheduler_that_does_not_answer_is_an_error_with_its_fix(address, source, tmp_path):
    done = build(source, "--dask", address, "-o", tmp_path / "dist")
    assert done.exit_code == 1
    assert f"--dask {address}: no scheduler was reached within 10 s" in done.stderr
    assert "fix: start one with `dask scheduler`" in done.stderr
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize("address", ["", "scheduler", "a b:1", "http://s:1", "s:port", "::1:8786"])
def test_what_is_no_address_is_refused_at_once(address, dask):
    with (
        pytest.raises(BadOption, match="was not given the address of a scheduler") as raised,
        dask_executor(address, Heard()),
    ):
        pass
    assert "fix: give host:port, for example --dask scheduler:8786" in str(raised.value)
    assert dask.made == []


@pytest.mark.parametrize("address", ["s:1", "tcp://10.0.0.1:8786", "[::1]:8786", "wss://s:443/ws"])
def test_addresses_of_every_form_are_passed_on(address, dask):
    with dask_executor(address, Heard()):
        (client,) = dask.made
    assert client.address == address


def test_without_dask_the_error_says_what_to_install(monkeypatch, source, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = build(source, "--dask", "s:1", "-o", tmp_path / "dist")
    assert done.exit_code == 1
    assert "--dask s:1 needs dask's package distributed" in done.stderr
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


@pytest.mark.filterwarnings("default")  # dask's own
def test_dask_says_that_a_scheduler_is_not_there(monkeypatch):
    pytest.importorskip("distributed", reason="needs dask's package distributed")
    monkeypatch.setattr("opforge.native.kernels.workers._TIMEOUT", 1)
    with (
        pytest.raises(BadOption, match="no scheduler was reached within 1 s"),
        dask_executor("127.0.0.1:9", Heard()),
    ):
        pass
