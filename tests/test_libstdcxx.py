"""Which C++ compilers make packages that cannot be loaded, and what to preload."""

import shutil

import pytest

from opforge.libstdcxx import linked_statically, preloaded

CXX = shutil.which("g++")


@pytest.mark.skipif(CXX is None, reason="no g++")
@pytest.mark.parametrize("option", ["-shared-libgcc", "-static-libstdc++"])
def test_a_compiler_that_links_statically_is_found_out(tmp_path, option):
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {CXX} {option} "$@"\n')
    compiler.chmod(0o755)
    assert linked_statically(str(compiler)) is (option == "-static-libstdc++")


@pytest.mark.parametrize("text", ["#!/bin/sh\n", "no program"])
def test_a_compiler_that_makes_nothing_links_nothing_statically(tmp_path, text):
    compiler = tmp_path / "g++"
    compiler.write_text(text)
    compiler.chmod(0o755)
    assert not linked_statically(str(compiler))


def test_what_is_preloaded_is_told_by_its_name(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/opt/libfoo.so:/usr/lib/libstdc++.so.6")
    assert preloaded()
    monkeypatch.setenv("LD_PRELOAD", "/opt/libfoo.so")
    assert not preloaded()
