"""The shared cache: what a build gets from it, and that no fault of it stops or slows a build."""

import os
import stat
import sys
import threading
import time

import pytest

from opforge._compat import compiling
from opforge.errors import BadOption, OpforgeWarning
from opforge.native.kernels.compile import compile_all
from opforge.native.kernels.image_cache import Cache, cache_key, encode
from opforge.native.kernels.remote_cache import RemoteCache, remote_cache
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
    pytest.importorskip("aiohttp")
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
        remote = RemoteCache(url, timeout=timeout, last_writes=last_writes)
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
    pytest.importorskip("aiohttp")
    with web_cache() as gone:
        url = gone.url
    with pytest.warns(OpforgeWarning, match="Connect call failed") as warned:
        images, _ = built(url)
    assert images == compiled
    assert len(warned) == 1


def test_a_failure_ends_it_for_the_second_round_of_a_build_too(full, pool):
    full.fault = status(500)
    remote = RemoteCache(full.url)
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


def read(remote, keys):
    """The entries, and what a build says."""
    notes = []
    return dict(remote.read(keys, notes.append)), notes


def test_a_slow_server_is_waited_for_only_once_and_filled_all_the_same(server):
    server.fault = lambda handler: (time.sleep(0.5), handler.serve())
    remote = RemoteCache(server.url, timeout=1.0)
    began = time.monotonic()
    found, (note,) = read(remote, map(str, range(100)))
    assert time.monotonic() - began < 5
    assert found == {}
    assert note.startswith(f"the shared cache at {server.url} is slow: ")
    server.fault = None
    remote.offer("1", b"entry")
    remote.finish(pytest.fail)
    assert server.entries == {"/1": b"entry"}


def test_images_that_come_buy_more_time(server):
    keys = [str(n) for n in range(100)]
    server.entries.update({f"/{key}": b"entry" for key in keys})
    server.fault = lambda handler: (time.sleep(0.05), handler.serve())
    assert read(RemoteCache(server.url, timeout=0.5), keys) == (dict.fromkeys(keys, b"entry"), [])


def test_a_user_and_a_signature_are_sent_and_never_shown(server):
    url = server.url.replace("http://", "http://me:s%40cret@") + "/a/?sig=hidden"
    remote = RemoteCache(url)
    remote.offer("k", b"content")
    remote.finish(pytest.fail)
    assert read(remote, ["k"]) == ({"k": b"content"}, [])
    assert list(server.entries) == ["/a/k?sig=hidden"]
    assert {sent["Authorization"] for sent in server.headers} == {"Basic bWU6c0BjcmV0"}
    assert remote.shown == f"{server.url}/a/"
    server.fault = status(500)
    with pytest.warns(OpforgeWarning, match="it answered 500") as warned:
        read(remote, ["k"])
    assert not any(secret in str(warned[0].message) for secret in ("cret", "hidden"))


def test_no_more_than_the_largest_entry_is_asked_for(server):
    read(RemoteCache(server.url), ["k"])
    assert server.headers[0]["Range"] == f"bytes=0-{2**28 - 1}"


def test_an_answer_that_trickles_is_cut_off(server):
    def trickle(handler):
        handler.send_response(200)
        handler.end_headers()
        while not server.released.wait(0.01):
            handler.wfile.write(b"x")

    server.fault = trickle
    remote = RemoteCache(server.url, timeout=0.1)
    with pytest.raises(TimeoutError):
        remote._get("k")


def test_any_error_ends_it(monkeypatch):
    remote = RemoteCache("memory://kernels")

    def get(*args, **kwargs):
        raise RuntimeError("no credentials\nand more")

    monkeypatch.setattr(remote._files, "cat_file", get)
    with pytest.warns(OpforgeWarning, match="RuntimeError: no credentials$"):
        assert read(remote, ["a"]) == ({}, [])
    assert read(remote, ["a"]) == ({}, [])


def test_a_server_that_is_away_when_it_is_opened_fails_no_build(monkeypatch):
    def refuse(_):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    with pytest.warns(OpforgeWarning, match="Connection refused"):
        remote = RemoteCache("ftp://nowhere/kernels")
    assert read(remote, ["k"]) == ({}, [])


def test_its_threads_end_with_the_work(full, built):
    before = threading.active_count()
    built(full.url)
    remote = RemoteCache(full.url)
    remote.offer("k", b"content")
    remote.finish(pytest.fail)
    # fsspec's own stays; what has ended may take a moment.
    until = time.monotonic() + 10
    while threading.active_count() > before + 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before + 1


def test_others_may_read_what_is_in_a_folder(tmp_path):
    folder = tmp_path / "a b" / "c"
    before = os.umask(0o022)
    try:
        remote = RemoteCache(folder.as_uri())
        for content in (b"content", b"again"):
            remote.offer("k", content)
            remote.finish(pytest.fail)
    finally:
        os.umask(before)
    (entry,) = folder.iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o644
    assert read(remote, ["k", "other"]) == ({"k": b"again"}, [])


def test_writers_at_once_leave_one_whole_entry(tmp_path):
    remote = RemoteCache(tmp_path.as_uri())
    contents = [bytes([n]) * 100_000 for n in range(8)]
    for content in contents:
        remote.offer("k", content)
    remote.finish(pytest.fail)
    assert [entry.name for entry in tmp_path.iterdir()] == ["k"]
    assert (tmp_path / "k").read_bytes() in contents


def test_fsspec_opens_other_schemes():
    remote = RemoteCache("memory://opforge-test/kernels")
    remote.offer("k", b"content")
    remote.finish(pytest.fail)
    assert read(remote, ["k", "other"]) == ({"k": b"content"}, [])


def test_without_the_extra_a_folder_works_and_an_error_says_what_to_install(monkeypatch, tmp_path):
    for module in ("aiohttp", "fsspec.implementations.http"):
        monkeypatch.setitem(sys.modules, module, None)
    assert read(RemoteCache(tmp_path.as_uri()), ["k"]) == ({}, [])
    with pytest.raises(BadOption, match="OPFORGE_REMOTE_CACHE cannot be opened") as raised:
        RemoteCache("https://me:secret@cache.example.com/kernels")
    assert "pip install 'opforge[remote]'" in raised.value.fix
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "/mnt/kernels", "cache.example.com:80/kernels", "https:///kernels", "http://[::1/",
        "http://me:secret@host:port/", "file://server/kernels", "file://", "nosuch://me:secret@a/b",
    ],
)  # fmt: skip
def test_a_bad_url_is_an_error_without_its_password(url):
    with pytest.raises(BadOption, match="OPFORGE_REMOTE_CACHE") as raised:
        RemoteCache(url)
    assert "https://" in raised.value.fix
    assert "secret" not in str(raised.value)


def test_it_is_off_unless_the_environment_names_one(monkeypatch):
    monkeypatch.delenv("OPFORGE_REMOTE_CACHE", raising=False)
    assert remote_cache() is None
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", " ")
    assert remote_cache() is None
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", "file:///mnt/kernels")
    found = remote_cache()
    assert found is not None
    assert found.shown == "file:///mnt/kernels"
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", "kernels")
    with pytest.raises(BadOption, match="OPFORGE_REMOTE_CACHE is not a URL"):
        remote_cache()


def test_a_folder_serves_two_machines(tmp_path, pool, compiled, monkeypatch):
    url = (tmp_path / "shared by all").as_uri()
    first = RemoteCache(url)
    compile_all(WANTED, executor=pool, cache=Cache(tmp_path / "one"), remote=first, ptx=True)
    monkeypatch.setattr(compiling, "lower", None)
    second = RemoteCache(url)
    cache = Cache(tmp_path / "two")
    assert compile_all(WANTED, cache=cache, remote=second, ptx=True) == compiled
    assert sorted(p.name for p in (tmp_path / "shared by all").iterdir()) == sorted(KEYS)
