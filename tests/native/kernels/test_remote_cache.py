"""The shared cache: what a build gets from it, and that no fault of it stops or slows a build."""

import threading
import time

import pytest

from opforge._compat import compiling
from opforge.errors import BadOption, OpforgeWarning
from opforge.native.kernels.compile import compile_all
from opforge.native.kernels.image_cache import Cache, cache_key, encode
from opforge.native.kernels.remote_cache import RemoteCache, remote_cache
from opforge.native.kernels.remote_store import open_store
from support.archs import SM_80, sm
from support.native.heard import Heard
from support.native.kernel_requests import scale_request
from support.native.web_cache import body, hang, status, web_cache

WANTED = [(scale_request(b), sm(80)) for b in (64, 128)]
KEYS = [
    cache_key(wanted, SM_80, compiling.launch_options(wanted.fn, dict(wanted.options)))
    for wanted, _ in WANTED
]


@pytest.fixture
def server():
    with web_cache() as made:
        yield made


@pytest.fixture(scope="module")
def compiled(pool):
    return compile_all(WANTED, executor=pool, cache=None, ptx=True)


@pytest.fixture
def full(server, compiled):
    """A server that has all that is wanted."""
    for key, image in zip(KEYS, compiled.values(), strict=True):
        server.entries[f"/{key}"] = encode(key, image)
    return server


@pytest.fixture
def built(pool, tmp_path):
    """Build against a URL; what it made and what it said."""

    def build(url, timeout=10.0, last_writes=10.0, cache=None):
        heard = Heard()
        remote = RemoteCache(open_store(url, timeout), timeout=timeout, last_writes=last_writes)
        cache = cache or Cache(tmp_path / "local")
        images = compile_all(
            WANTED, executor=pool, cache=cache, remote=remote, ptx=True, progress=heard
        )
        return images, heard

    return build


def test_an_image_that_is_there_needs_neither_lowering_nor_a_worker(
    full, built, compiled, monkeypatch
):
    monkeypatch.setattr(compiling, "lower", None)
    images, heard = built(full.url)
    assert images == compiled
    assert [c.cached for c in heard.compiled] == [True, True]
    assert heard.notes == []
    assert sorted(full.requests) == sorted(("GET", f"/{key}") for key in KEYS)


def test_what_came_is_kept_on_this_machine(full, built, cache):
    built(full.url, cache=cache)
    full.requests.clear()
    _, heard = built(full.url, cache=cache)
    assert [c.cached for c in heard.compiled] == [True, True]
    assert full.requests == []


def test_what_is_not_there_is_compiled_and_written(server, built, compiled):
    images, heard = built(server.url + "/team/kernels/")
    assert images == compiled
    assert [c.cached for c in heard.compiled] == [False, False]
    assert heard.notes == []
    assert server.entries == {
        f"/team/kernels/{key}": encode(key, image)
        for key, image in zip(KEYS, compiled.values(), strict=True)
    }


@pytest.mark.parametrize(
    "fault",
    [
        body(lambda content: content[:-1]),
        body(lambda content: b""),
        body(lambda content: content.replace(b"scale", b"scala")),
        body(lambda content: b"<html>log in</html>".ljust(len(content))),
    ],
    ids=["truncated", "empty", "altered", "another page"],
)
def test_a_damaged_body_counts_as_absent_with_one_note_and_is_written_again(
    fault, full, built, compiled
):
    entries = dict(full.entries)
    full.fault = fault
    images, heard = built(full.url)
    assert images == compiled
    assert [c.cached for c in heard.compiled] == [False, False]
    (note,) = heard.notes
    assert "ignoring an entry of the shared cache" in note
    assert "damaged, and 1 more" in note
    assert full.methods().count("PUT") == 2
    assert full.entries == entries


def test_an_entry_of_another_key_counts_as_absent(full, built, compiled):
    first, second = (f"/{key}" for key in KEYS)
    entries = dict(full.entries)
    full.entries[first] = full.entries[second]
    images, heard = built(full.url)
    assert images == compiled
    assert sorted(c.cached for c in heard.compiled) == [False, True]
    assert "damaged" in heard.notes[0]
    assert full.entries == entries


@pytest.mark.parametrize("code", [500, 503, 403])
def test_a_server_that_fails_is_left_alone_after_one_warning(code, full, built, compiled):
    full.fault = status(code)
    with pytest.warns(OpforgeWarning, match=f"it answered {code}") as warned:
        images, heard = built(full.url)
    assert images == compiled
    assert len(warned) == 1
    assert full.url in str(warned[0].message)
    assert heard.notes == []
    assert "PUT" not in full.methods()


def test_a_server_that_never_answers_costs_one_timeout(full, built, compiled):
    full.fault = hang
    with pytest.warns(OpforgeWarning, match=r"no answer within 0\.2 s") as warned:
        images, _ = built(full.url, timeout=0.2)
    assert images == compiled
    assert len(warned) == 1
    # Each once at most, and nothing after the timeout.
    assert 1 <= len(full.requests) <= 2
    assert set(full.requests) <= {("GET", f"/{key}") for key in KEYS}


def test_a_server_that_is_not_there_is_said_once(built, compiled):
    with web_cache() as gone:
        url = gone.url
    with pytest.warns(OpforgeWarning, match="Connection refused") as warned:
        images, _ = built(url)
    assert images == compiled
    assert len(warned) == 1


def test_a_failure_ends_it_for_the_second_round_of_a_build_too(full, pool):
    full.fault = status(500)
    remote = RemoteCache(open_store(full.url, 10.0))
    with pytest.warns(OpforgeWarning, match="500"):
        compile_all(WANTED[:1], executor=pool, cache=None, remote=remote)
    asked = len(full.requests)
    compile_all(WANTED, executor=pool, cache=None, remote=remote)
    assert len(full.requests) == asked


def test_a_server_that_takes_nothing_is_noted_once(server, built, compiled):
    server.fault = status(405, "PUT")
    images, heard = built(server.url)
    assert images == compiled
    (note,) = heard.notes
    why = "it answered 405 Method Not Allowed"
    assert note == f"cannot write to the shared cache at {server.url}: {why}"


def test_a_server_that_hangs_on_writes_holds_up_only_the_end_and_not_for_long(
    server, built, compiled
):
    server.fault = lambda handler: (hang if handler.command == "PUT" else type(handler).serve)(
        handler
    )
    images, heard = built(server.url, last_writes=0.1)
    assert images == compiled
    (note,) = heard.notes
    assert "2 kernels did not get there in time" in note


class Store:
    """Answers as the test says."""

    shown = "memory"

    def __init__(self, get, put=lambda key, content: None):
        self.get, self.put = get, put


def test_a_slow_store_is_waited_for_only_once():
    free = threading.Event()
    remote = RemoteCache(Store(lambda key: None if key == "0" else free.wait(10)), timeout=0.4)
    remote.ask(map(str, range(100)))
    began = time.monotonic()
    assert {remote.answer(str(n)) for n in range(100)} == {None}
    assert time.monotonic() - began < 5
    assert remote.news() == []
    remote.finish()
    (said,) = remote.news()
    assert said.text == "the shared cache at memory is slow: 99 kernels compiled without its answer"
    assert not said.is_warning
    free.set()


def test_images_that_come_buy_more_time():
    remote = RemoteCache(Store(lambda key: time.sleep(0.05) or b"entry"), timeout=0.4)
    keys = [str(n) for n in range(100)]
    remote.ask(keys)
    assert [remote.answer(key) for key in keys] == [b"entry"] * 100


def test_any_error_of_a_store_ends_it():
    def get(key):
        raise RuntimeError("no credentials\nand more")

    remote = RemoteCache(Store(get))
    remote.ask(["a"])
    assert remote.answer("a") is None
    (said,) = remote.news()
    assert said.text.endswith("for the rest of the build: RuntimeError: no credentials")
    assert said.is_warning


def test_its_threads_end_with_the_work(full, built):
    built(full.url)
    ours = [t for t in threading.enumerate() if t.name == "opforge-remote-cache"]
    for thread in ours:
        thread.join(10)
        assert thread.daemon
        assert not thread.is_alive()


def test_it_is_off_unless_the_environment_names_one(monkeypatch):
    monkeypatch.delenv("OPFORGE_REMOTE_CACHE", raising=False)
    assert remote_cache() is None
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", " ")
    assert remote_cache() is None
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", "file:///mnt/kernels")
    found = remote_cache()
    assert found is not None
    assert found.shown == "/mnt/kernels"
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", "kernels")
    with pytest.raises(BadOption, match="OPFORGE_REMOTE_CACHE is not a URL"):
        remote_cache()


def test_a_folder_serves_two_machines(tmp_path, pool, compiled, monkeypatch):
    url = (tmp_path / "shared by all").as_uri()
    first = RemoteCache(open_store(url, 10.0))
    compile_all(WANTED, executor=pool, cache=Cache(tmp_path / "one"), remote=first, ptx=True)
    monkeypatch.setattr(compiling, "lower", None)
    second = RemoteCache(open_store(url, 10.0))
    cache = Cache(tmp_path / "two")
    assert compile_all(WANTED, cache=cache, remote=second, ptx=True) == compiled
    assert sorted(p.name for p in (tmp_path / "shared by all").iterdir()) == sorted(KEYS)
