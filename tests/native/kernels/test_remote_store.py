"""The places of a shared cache: web servers, folders and fsspec."""

import itertools
import os
import stat
import sys
import threading
from types import SimpleNamespace

import pytest

from opforge.errors import BadOption
from opforge.native.kernels import remote_store
from opforge.native.kernels.remote_store import StoreFailed, open_store
from support.native.web_cache import hang, web_cache


@pytest.fixture
def server():
    with web_cache() as made:
        yield made


def test_a_web_server_gives_what_it_was_given(server):
    store = open_store(f"{server.url}/a/", 10)
    assert store.get("k") is None
    store.put("k", b"content")
    assert store.get("k") == b"content"
    assert server.entries == {"/a/k": b"content"}


def test_a_user_and_a_signature_are_sent_and_never_shown(server):
    url = server.url.replace("http://", "http://me:s%40cret@") + "/a?sig=hidden"
    store = open_store(url, 10)
    store.put("k", b"content")
    assert list(server.entries) == ["/a/k?sig=hidden"]
    assert server.headers[0]["Authorization"] == "Basic bWU6c0BjcmV0"
    assert store.shown == f"{server.url}/a"


def redirect(to):
    def fault(handler):
        if handler.path == to:
            return handler.serve()
        handler.send_response(302)
        handler.send_header("Location", to)
        return handler.end_headers()

    return fault


def test_a_redirection_is_followed_without_the_user(server):
    server.entries["/elsewhere"] = b"content"
    server.fault = redirect("/elsewhere")
    store = open_store(server.url.replace("http://", "http://me:secret@"), 10)
    assert store.get("k") == b"content"
    assert ["Authorization" in sent for sent in server.headers] == [True, False]


def test_a_redirection_without_an_end_is_one_line(server):
    server.fault = lambda handler: redirect(f"{handler.path}/")(handler)
    with pytest.raises(StoreFailed, match=r"it answered 302 [^\n]*$"):
        open_store(server.url, 10).get("k")


def test_a_server_that_never_answers_is_a_timeout(server):
    server.fault = hang
    with pytest.raises(TimeoutError):
        open_store(server.url, 0.1).get("k")


def test_an_answer_without_an_end_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(remote_store, "_LARGEST", 100)
    server.entries["/k"] = b"x" * 200
    with pytest.raises(StoreFailed, match="does not end"):
        open_store(server.url, 10).get("k")


def test_an_answer_that_trickles_is_cut_off(server, monkeypatch):
    # Every look at this clock is 15 s later, so that five timeouts have passed after four reads.
    # A busy machine needs longer for a byte than a test can wait for.
    seconds = itertools.count(step=15)
    monkeypatch.setattr(remote_store, "time", SimpleNamespace(monotonic=lambda: next(seconds)))

    def trickle(handler):
        handler.send_response(200)
        handler.end_headers()
        while not server.released.wait(0.01):
            handler.wfile.write(b"x")

    server.fault = trickle
    with pytest.raises(StoreFailed, match="does not end"):
        open_store(server.url, 10).get("k")
    assert next(seconds) == 75


def test_a_chunked_answer_that_breaks_off_is_short(server):
    def chunks(handler):
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"5\r\nabcde\r\n9\r\nfg")
        handler.close_connection = True

    server.fault = chunks
    assert len(open_store(server.url, 10).get("k")) < 14


def test_a_folder_is_made_and_others_may_read_what_is_in_it(tmp_path):
    before = os.umask(0o022)
    try:
        store = open_store((tmp_path / "a b" / "c").as_uri(), 10)
        assert store.get("k") is None
        store.put("k", b"content")
        store.put("k", b"again")
    finally:
        os.umask(before)
    (entry,) = (tmp_path / "a b" / "c").iterdir()
    assert entry.name == "k"
    assert stat.S_IMODE(entry.stat().st_mode) == 0o644
    assert store.get("k") == b"again"


def test_writers_at_once_leave_one_whole_entry(tmp_path):
    store = open_store(tmp_path.as_uri(), 10)
    contents = [bytes([n]) * 100_000 for n in range(8)]
    threads = [threading.Thread(target=store.put, args=("k", c)) for c in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("k") in contents
    assert len([*tmp_path.iterdir()]) == 1


def test_fsspec_opens_other_schemes():
    pytest.importorskip("fsspec")
    store = open_store("memory://opforge-test/kernels", 10)
    assert store.get("k") is None
    store.put("k", b"content")
    assert store.get("k") == b"content"


def test_without_fsspec_the_error_names_the_scheme_and_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(BadOption, match="s3:// needs a package") as raised:
        open_store("s3://bucket/kernels", 10)
    assert "pip install fsspec" in str(raised.value)


def test_a_server_that_is_away_fails_when_it_is_used(monkeypatch):
    pytest.importorskip("fsspec")

    def refuse(_):
        raise ConnectionRefusedError("Connection refused")

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    store = open_store("ftp://nowhere/kernels", 1)
    with pytest.raises(StoreFailed, match="Connection refused"):
        store.get("key")


def test_a_scheme_that_fsspec_does_not_know_is_refused():
    pytest.importorskip("fsspec")
    with pytest.raises(BadOption, match="fsspec refuses nosuch://") as raised:
        open_store("nosuch://a/b", 10)
    assert "https:// or file:///" in str(raised.value)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("/mnt/kernels", "is not a URL"),
        ("cache.example.com:80/kernels", "is not a URL"),
        ("https:///kernels", "is not a web address"),
        ("https://cache.example.com/a b", "is not a web address"),
        ("http://host:port/", "cannot be read"),
        ("http://[::1/", "cannot be read"),
        ("file://server/kernels", "does not name a folder of this machine"),
        ("file://", "does not name a folder of this machine"),
    ],
)
def test_a_bad_url_is_an_error_with_a_good_one(url, what):
    with pytest.raises(BadOption, match=what) as raised:
        open_store(url, 10)
    assert "fix: give a URL such as https://" in str(raised.value)


def test_an_error_about_a_url_does_not_show_its_password():
    with pytest.raises(BadOption) as raised:
        open_store("https://me:secret@host:port/", 10)
    assert "secret" not in str(raised.value)
