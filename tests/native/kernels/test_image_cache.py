"""The cache of compiled kernels: what is a hit, and what happens to a damaged one."""

import dataclasses
import os
import threading
from concurrent.futures import Executor

import pytest

from opforge._compat import compiling
from opforge.errors import OpforgeWarning
from opforge.native.ir.kernels import Image
from opforge.native.kernels.compile import compile_all
from opforge.native.kernels.image_cache import Cache, CorruptEntry, OpenToOthers, cache_key
from support.archs import SM_80, SM_90, sm
from support.native.heard import Heard
from support.native.kernel_requests import applied, gelu, outlined, request, scale_request

IMAGE = Image(SM_80, "scale", 4, shared=16, spills=2).holding(
    b"\x7fELF\n\x00cubin", ".version 8.7\n// ü"
)


class Unused(Executor):
    """Fails if anything is submitted."""

    def submit(self, fn, /, *args, **kwargs):
        raise AssertionError("nothing should be compiled")


def key_of(wanted, arch=SM_80):
    return cache_key(wanted, arch, compiling.launch_options(wanted.fn, dict(wanted.options)))


def test_a_hit_needs_neither_lowering_nor_a_worker_and_has_ptx(cache, pool, monkeypatch):
    wanted = [(scale_request(b), sm(80, 90)) for b in (64, 128)]
    first = compile_all(wanted, executor=pool, cache=None, ptx=True)
    compile_all(wanted, executor=pool, cache=cache)
    monkeypatch.setattr(compiling, "lower", None)
    heard = Heard()
    again = compile_all(wanted, executor=Unused(), cache=cache, ptx=True, progress=heard)
    assert again == first
    assert [c.cached for c in heard.compiled] == [True] * 4


def test_the_key_has_everything_that_the_kernel_depends_on(monkeypatch):
    base = scale_request()
    assert key_of(base) == key_of(scale_request(num_warps=4))  # the default
    changed = [
        scale_request(256),
        scale_request(dtype="bf16"),
        scale_request(num_warps=8),
        dataclasses.replace(base, source="other"),
        dataclasses.replace(base, divisible=(0,)),
        dataclasses.replace(base, location="elsewhere.py:1"),
        dataclasses.replace(base, constants=(("BLOCK", True),)),
    ]
    keys = [key_of(base), key_of(base, SM_90), *map(key_of, changed)]
    monkeypatch.setattr(compiling, "version", lambda: "0.0")
    keys.append(key_of(base))
    assert len(set(keys)) == len(keys)


def test_a_function_given_as_a_constant_counts_with_its_source():
    one, other = (
        request(applied, ["*fp32", "*fp32", "i32"], {"fn": f, "BLOCK": 128})
        for f in (gelu, outlined)
    )
    assert key_of(one) != key_of(other)


def test_a_damaged_entry_is_ignored_with_a_note_and_rebuilt(cache, pool):
    wanted = scale_request()
    first = compile_all([(wanted, sm(80))], executor=pool, cache=cache)
    path = cache.path(key_of(wanted))
    path.write_bytes(path.read_bytes().replace(b"scale", b"scala"))
    heard = Heard()
    assert compile_all([(wanted, sm(80))], executor=pool, cache=cache, progress=heard) == first
    assert [c.cached for c in heard.compiled] == [False]
    assert len(heard.notes) == 1
    assert str(path) in heard.notes[0]
    assert cache.read(key_of(wanted)) is not None


def test_an_entry_under_another_key_is_ignored(cache):
    cache.write("ab12", IMAGE)
    cache.path("ab12").rename(cache.path("ab13"))
    with pytest.raises(CorruptEntry, match="damaged"):
        cache.read("ab13")


@pytest.mark.parametrize("place", ["folder", "part", "entry"])
def test_an_entry_that_others_can_write_to_is_not_used(place, cache, pool):
    wanted = scale_request()
    first = compile_all([(wanted, sm(80))], executor=pool, cache=cache)
    entry = cache.path(key_of(wanted))
    at = {"folder": cache.folder, "part": entry.parent, "entry": entry}[place]
    at.chmod(at.stat().st_mode | 0o002)
    said = rf"is not used: {at}: others can write to it. Fix: chmod -R go-w {at}"
    with pytest.warns(OpforgeWarning, match=said):
        assert compile_all([(wanted, sm(80))], executor=pool, cache=cache) == first
    with pytest.raises(OpenToOthers):
        cache.read(key_of(wanted))


def test_an_entry_of_another_user_is_not_used(cache, monkeypatch):
    cache.write("ab12", IMAGE)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    if cache.folder.stat().st_uid == 0:
        assert cache.read("ab12") == IMAGE
        os.chown(cache.path("ab12"), 4343, -1)
    with pytest.raises(OpenToOthers, match="it belongs to another user"):
        cache.read("ab12")


def test_a_umask_for_groups_leaves_a_cache_that_is_used(tmp_path):
    previous = os.umask(0o002)
    try:
        cache = Cache(tmp_path / "deep" / "cache")
        cache.write("ab12", IMAGE)
    finally:
        os.umask(previous)
    assert cache.read("ab12") == IMAGE


def test_a_folder_that_cannot_be_written_is_noted_once_and_the_build_goes_on(tmp_path, pool):
    (tmp_path / "file").write_text("")
    heard = Heard()
    wanted = [(scale_request(b), sm(80)) for b in (64, 128)]
    images = compile_all(wanted, executor=pool, cache=Cache(tmp_path / "file"), progress=heard)
    assert len(images) == 2
    assert len([n for n in heard.notes if n.startswith("cannot write to the cache")]) == 1


def test_writers_at_once_leave_whole_entries_and_nothing_else(cache):
    images = [IMAGE.holding(bytes([n]) * 100_000) for n in range(8)]
    threads = [threading.Thread(target=cache.write, args=("ab12", image)) for image in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.read("ab12") in images
    assert [p.name for p in cache.folder.rglob("*") if p.is_file()] == ["ab12.image"]


def test_the_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
    assert Cache().folder == tmp_path / "mine" / "native"
    monkeypatch.delenv("OPFORGE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Cache().folder == tmp_path / "xdg" / "opforge" / "native"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Cache().folder == tmp_path / "home" / ".cache" / "opforge" / "native"
