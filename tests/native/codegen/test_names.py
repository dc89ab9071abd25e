"""Text that a user wrote, in C: it stays inside the comment or literal that it is in."""

import dataclasses
import subprocess

import pytest

from opforge.native.codegen.sources import sources
from opforge.native.codegen.text import comment, quoted
from support.native import hand_made

# Each would end a comment: directly, or after the compiler has joined lines and read trigraphs.
ENDS = {
    "directly": "*/",
    "backslash": "*\\\n/",
    "backslash and spaces": "*\\ \t\n/",
    "trigraph": "*??/\n/",
    "carriage return": "*\\\r\n/",
    "form feed": "*\\\f\n/",
    "again": "**//",
}


def compiled(source: str, standard: str, *flags: str) -> subprocess.CompletedProcess:
    command = ["cc", "-x", "c", f"-std={standard}", *flags, "-fsyntax-only", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("end", ENDS)
def test_no_text_ends_the_comment_it_is_in(end):
    said = comment(f"a {ENDS[end]} int injected = broken; /{ENDS[end]}")
    for standard in ("c99", "gnu17"):
        done = compiled(f"/* {said} */\nint x;\n", standard, "-Wall", "-Werror")
        assert done.returncode == 0, done.stderr


def test_no_trigraph_joins_the_lines_of_a_comment():
    assert comment("a ??/ b") == "a ?? / b"


def test_a_comment_shows_characters_that_change_how_text_is_read():
    assert comment("a\u202eb\nc\ud800größe") == "a\\u202eb\\nc\\ud800größe"


@pytest.mark.parametrize("end", ENDS)
def test_texts_of_a_program_run_nowhere(tmp_path, end):
    """As in files of such a name, and constexprs of such a value."""
    evil = f"a{ENDS[end]}\nint injected = broken;\n/{ENDS[end]}*"
    op, kernels = hand_made.add()
    case = op.cases[0]
    path = case.paths[1]
    launch = dataclasses.replace(path.steps[0], location=evil, constants=(("MODE", evil),))
    cases = (
        dataclasses.replace(case, paths=(dataclasses.replace(path, steps=(launch,)),)),
        *op.cases[1:],
    )
    op = dataclasses.replace(op, location=evil, doc=evil, cases=cases)
    kernels = [dataclasses.replace(k, location=evil, constants=(("M", evil),)) for k in kernels]
    for file, content in sources(hand_made.library((op, kernels))).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    files = ["src/demo/op_add.c", "src/demo/images.c", "src/demo/manifest.c"]
    command = ["cc", "-std=c99", "-Wall", "-Werror", "-fsyntax-only", *files]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_a_literal_holds_bytes_that_are_not_text():
    """A file's name may have them; Python carries them as lone surrogates."""
    assert quoted("b\udcff") == r'"b\\udcff"'
