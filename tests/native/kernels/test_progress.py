"""What a build says while it compiles."""

import io

import pytest
from rich.console import Console

from opforge.native.kernels.compile import Progress
from opforge.progress import Log, ProgressBar


def bar(file):
    console = Console(file=file, force_terminal=True, width=100, legacy_windows=False)
    return ProgressBar("compiling", console)


def a_build(progress):
    progress.start(3)
    progress.done("silu sm_80", cached=True)
    progress.note("cache entry ignored [1]")
    progress.done("silu sm_80")
    progress.done("gemm sm_90", failed=True)
    progress.stop()


def test_a_log_has_start_notes_and_end_of_each_round(capsys):
    progress = Progress(Log())
    lines = [
        "compiling 3 images",
        "cache entry ignored [1]",
        "compiled 3 of 3 (1 cached, 1 failed)",
    ]
    for _ in range(2):
        a_build(progress)
        assert capsys.readouterr().err.splitlines() == lines


def test_what_takes_long_is_told_regularly(capsys):
    progress = Progress(Log(), seconds=0)
    progress.traced("mylib::silu", 2)
    a_build(progress)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tracing mylib::silu: 2 paths so far"
    assert "compiled 1 of 3 (1 cached)" in lines


@pytest.mark.parametrize("kind", [lambda _: Log(), bar, lambda _: None])
def test_nothing_to_compile_is_not_reported(kind, capsys):
    file = io.StringIO()
    progress = Progress(kind(file))
    progress.start(0)
    progress.stop()
    assert (file.getvalue(), *capsys.readouterr()) == ("", "", "")


def test_a_bar_counts_and_keeps_notes_above_it():
    file = io.StringIO()
    progress = Progress(bar(file))
    for _ in range(2):
        a_build(progress)
    for text in ("3/3", "cache entry ignored [1]", "1 cached, 1 failed"):
        assert text in file.getvalue()
