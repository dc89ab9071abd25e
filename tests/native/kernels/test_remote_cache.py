"""The shared cache: what a build gets from it, and that no fault of it stops a build."""

import sys

import pytest

from opforge._compat import compiling
from opforge.errors import BadOption, OpforgeWarning
from opforge.native.kernels.compile import compile_all
from opforge.native.kernels.image_cache import (
    Cache,
    RemoteCache,
    cache_key,
    encode,
    remote_cache,
)
from support.archs import SM_80, sm
from support.native.heard import Heard
from support.native.kernel_requests import scale_request
from support.native.web_cache import body, hang, status, trickle, web_cache

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
def built(pool, tmp_path, compiled):
    """Build against a URL, and compare the images; what was said."""

    def build(url, cache=None, **options):
        heard = Heard()
        remote = RemoteCache(url, **options)
        cache = cache or Cache(tmp_path / "local")
        images = compile_all(
            WANTED, executor=pool, cache=cache, remote=remote, ptx=True, progress=heard
        )
        assert images == compiled
        return heard

    return build


def test_an_image_that_is_there_needs_no_worker_and_is_kept(full, built, monkeypatch, cache):
    monkeypatch.setattr(compiling, "lower", None)
    heard = built(full.url, cache=cache)
    assert [c.cached for c in heard.compiled] == [True, True]
    assert heard.notes == []
    assert sorted(full.requests) == sorted(("GET", f"/{key}") for key in KEYS)
    full.requests.clear()
    assert [c.cached for c in built(full.url, cache=cache).compiled] == [True, True]
    assert full.requests == []


def test_what_is_not_there_is_compiled_and_written(server, built, compiled):
    heard = built(server.url + "/team/kernels/")
    assert [c.cached for c in heard.compiled] == [False, False]
    assert heard.notes == []
    assert server.entries == {
        f"/team/kernels/{key}": encode(key, image)
        for key, image in zip(KEYS, compiled.values(), strict=True)
    }


def test_a_damaged_body_counts_as_absent_with_a_note_and_is_written_again(full, built):
    entries = dict(full.entries)
    full.fault = body(lambda content: content[:-1])
    heard = built(full.url)
    assert [c.cached for c in heard.compiled] == [False, False]
    assert len(heard.notes) == 2
    assert f"{full.url}, {KEYS[0]}: damaged" in heard.notes[0]
    assert full.methods().count("PUT") == 2
    assert full.entries == entries


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (status(500), "it answered 500"),
        (hang, r"no answer within 0\.2 s"),
        (trickle, r"no answer within 0\.2 s"),
    ],
)
def test_a_server_that_fails_is_left_alone_after_one_warning(fault, why, full, pool):
    full.fault = fault
    remote = RemoteCache(full.url, timeout=0.2)
    with pytest.warns(OpforgeWarning, match=why) as warned:
        compile_all(WANTED, executor=pool, cache=None, remote=remote)
    assert len(warned) == 1
    assert full.url in str(warned[0].message)
    assert "PUT" not in full.methods()
    # For the second round of a build, too.
    asked = len(full.requests)
    compile_all(WANTED, executor=pool, cache=None, remote=remote)
    assert len(full.requests) == asked


def test_what_came_before_a_failure_is_used(full, built):
    full.fault = lambda handler: (
        handler.answer(500) if handler.path == f"/{KEYS[0]}" else handler.serve()
    )
    with pytest.warns(OpforgeWarning, match="500"):
        heard = built(full.url)
    assert sorted(c.cached for c in heard.compiled) == [False, True]


def test_a_server_that_takes_nothing_is_said_once(server, built):
    server.fault = status(405, "PUT")
    with pytest.warns(OpforgeWarning, match="it answered 405 Method Not Allowed") as warned:
        built(server.url)
    assert len(warned) == 1


def written_and_read(remote, content=b"content"):
    remote.offer("k", content)
    remote.finish()
    return remote.read(["k", "other"])


def test_a_user_and_a_signature_are_sent_and_never_shown(server):
    url = server.url.replace("http://", "http://me:s%40cret@") + "/a/?sig=hidden"
    remote = RemoteCache(url)
    assert written_and_read(remote) == {"k": b"content"}
    assert list(server.entries) == ["/a/k?sig=hidden"]
    assert {sent["Authorization"] for sent in server.headers} == {"Basic bWU6c0BjcmV0"}
    # No more than the largest entry is asked for.
    assert server.headers[-1]["Range"] == f"bytes=0-{2**28 - 1}"
    assert remote.shown == f"{server.url}/a/"
    server.fault = status(500)
    with pytest.warns(OpforgeWarning, match="it answered 500") as warned:
        remote.read(["k"])
    assert not any(secret in str(warned[0].message) for secret in ("cret", "hidden"))


def test_any_error_of_a_file_system_ends_it(monkeypatch):
    remote = RemoteCache("memory://kernels")

    def fail(*args, **kwargs):
        raise RuntimeError("no credentials\nand more")

    monkeypatch.setattr(type(remote._files), "cat_file", fail)
    with pytest.warns(OpforgeWarning, match="RuntimeError: no credentials$"):
        assert remote.read(["a"]) == {}
    assert remote.read(["a"]) == {}


def test_a_server_that_is_away_when_it_is_opened_fails_no_build(monkeypatch):
    def refuse(_):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    with pytest.warns(OpforgeWarning, match="Connection refused"):
        remote = RemoteCache("ftp://nowhere/kernels")
    assert written_and_read(remote) == {}


def test_folders_and_what_else_fsspec_opens_are_caches_too(tmp_path):
    remote = RemoteCache((tmp_path / "a b" / "c").as_uri())
    assert written_and_read(remote) == {"k": b"content"}
    assert written_and_read(remote, b"again") == {"k": b"again"}
    assert [p.name for p in (tmp_path / "a b" / "c").iterdir()] == ["k"]
    remote = RemoteCache("memory://opforge-test/kernels")
    assert written_and_read(remote) == {"k": b"content"}


def test_without_the_extra_a_folder_works_and_an_error_says_what_to_install(monkeypatch, tmp_path):
    for module in ("aiohttp", "fsspec.implementations.http"):
        monkeypatch.setitem(sys.modules, module, None)
    assert written_and_read(RemoteCache(tmp_path.as_uri())) == {"k": b"content"}
    with pytest.raises(BadOption, match="OPFORGE_REMOTE_CACHE") as raised:
        RemoteCache("https://me:secret@cache.example.com/kernels")
    assert "pip install 'opforge[remote]'" in raised.value.fix
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "/mnt/kernels",
        "http://me:secret@host:port/",
        "nosuch://me:secret@a/b",
    ],
)
def test_a_bad_url_is_an_error_without_its_password(url):
    with pytest.raises(BadOption, match="OPFORGE_REMOTE_CACHE") as raised:
        RemoteCache(url)
    assert "secret" not in str(raised.value)


def test_it_is_off_unless_the_environment_names_one(monkeypatch):
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", " ")
    assert remote_cache() is None
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", "file:///mnt/kernels")
    assert remote_cache().shown == "file:///mnt/kernels"
