"""What a build says while it compiles."""

import io

import pytest
from rich.console import Console

from opforge import progress
from opforge.native.kernels.progress import Bar, Compiled, Lines, Progress, for_terminal


def a_build(shown, total=3):
    shown.start(total)
    shown.done(Compiled("silu", "silu(x: *fp16)", 80, cached=True))
    shown.note("cache entry ignored [1]")
    shown.done(Compiled("silu", "silu(x: *fp32)", 80))
    shown.done(Compiled("gemm", "gemm(a: *fp16)", 90, failed=True))
    shown.stop()


def test_lines_say_start_notes_and_end():
    file = io.StringIO()
    a_build(Lines(file))
    assert file.getvalue().splitlines() == [
        "compiling 3 images",
        "cache entry ignored [1]",
        "compiled 3 of 3 (1 cached, 1 failed)",
    ]


def test_a_second_round_starts_its_own_count():
    file = io.StringIO()
    lines, bar = Lines(file), Bar(Console(file=io.StringIO(), force_terminal=True, width=100))
    for shown in (lines, bar):
        a_build(shown)
        a_build(shown)
    assert file.getvalue().count("compiled 3 of 3 (1 cached, 1 failed)") == 2


def test_lines_are_printed_regularly_during_a_build():
    file = io.StringIO()
    a_build(Lines(file, seconds=0))
    assert "compiled 1 of 3 (1 cached)" in file.getvalue().splitlines()


@pytest.mark.parametrize("kind", [lambda: Lines(io.StringIO()), Progress, Bar])
def test_nothing_to_compile_is_not_reported(kind, capsys):
    shown = kind()
    shown.start(0)
    shown.stop()
    assert capsys.readouterr() == ("", "")


def test_a_bar_counts_and_keeps_notes_above_it():
    file = io.StringIO()
    a_build(Bar(Console(file=file, force_terminal=True, width=100, legacy_windows=False)))
    assert "3/3" in file.getvalue()
    assert "cache entry ignored [1]" in file.getvalue()
    assert "1 cached, 1 failed" in file.getvalue()


@pytest.mark.parametrize(("terminal", "kind"), [(True, Bar), (False, Lines)])
def test_a_terminal_gets_a_bar_and_a_log_gets_lines(terminal, kind, monkeypatch):
    console = Console(force_terminal=terminal, force_interactive=terminal)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    assert type(for_terminal()) is kind


def test_a_long_trace_says_how_far_it_is():
    file, shown = io.StringIO(), io.StringIO()
    for progress_of in (
        lambda seconds: Lines(file, seconds),
        lambda seconds: Bar(Console(file=shown, width=100), seconds),
    ):
        progress_of(60.0).traced("mylib::silu", 1)
        progress_of(0.0).traced("mylib::silu", 2)
    said = "tracing mylib::silu: 2 paths so far\n"
    assert (file.getvalue(), shown.getvalue()) == (said, said)
