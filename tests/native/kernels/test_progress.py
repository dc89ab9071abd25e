"""What a build says while it compiles."""

import io

import pytest
from rich.console import Console

from opforge import progress
from opforge.native.kernels.progress import Bar, Lines, for_terminal


def a_build(shown):
    shown.start(3)
    shown.done("silu sm_80", cached=True)
    shown.note("cache entry ignored [1]")
    shown.done("silu sm_80")
    shown.done("gemm sm_90", failed=True)
    shown.stop()


def test_lines_say_start_notes_and_end_of_each_round():
    file = io.StringIO()
    lines = Lines(file)
    said = [
        "compiling 3 images",
        "cache entry ignored [1]",
        "compiled 3 of 3 (1 cached, 1 failed)",
    ]
    for rounds in (1, 2):
        a_build(lines)
        assert file.getvalue().splitlines() == rounds * said


def test_what_takes_long_is_told_regularly():
    file = io.StringIO()
    lines = Lines(file, seconds=0)
    lines.traced("mylib::silu", 2)
    a_build(lines)
    said = file.getvalue().splitlines()
    assert said[0] == "tracing mylib::silu: 2 paths so far"
    assert "compiled 1 of 3 (1 cached)" in said


@pytest.mark.parametrize("kind", [lambda: Lines(io.StringIO()), Bar])
def test_nothing_to_compile_is_not_reported(kind, capsys):
    shown = kind()
    shown.start(0)
    shown.stop()
    assert capsys.readouterr() == ("", "")


def test_a_bar_counts_and_keeps_notes_above_it():
    file = io.StringIO()
    bar = Bar(Console(file=file, force_terminal=True, width=100, legacy_windows=False))
    for _ in range(2):
        a_build(bar)
    for text in ("3/3", "cache entry ignored [1]", "1 cached, 1 failed"):
        assert text in file.getvalue()


@pytest.mark.parametrize(("terminal", "kind"), [(True, Bar), (False, Lines)])
def test_a_terminal_gets_a_bar_and_a_log_gets_lines(terminal, kind, monkeypatch):
    console = Console(force_terminal=terminal, force_interactive=terminal)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    assert type(for_terminal()) is kind
