"""The compiler that tests build with: it compiles again whatever is not the same."""

import shutil
import subprocess

import pytest

from support.processes import provide_compilers

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


@pytest.fixture
def compile_in(tmp_path):
    """Compiles `tmp_path/main.c`; the number of outputs that are kept, and what was said."""
    folder = provide_compilers(tmp_path / "compilers")

    def compile_(*options):
        done = subprocess.run(
            [f"{folder}/cc", *options, "-c", "main.c", "-o", "main.o"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        kept = list((tmp_path / "compilers/objects").glob("*"))
        return len(kept), done.returncode, done.stderr

    (tmp_path / "inc").mkdir()
    (tmp_path / "inc/far.h").write_text("#define FAR 1\n")
    (tmp_path / "near.h").write_text("#include <far.h>\n")
    (tmp_path / "main.c").write_text('#include "near.h"\nint far(void) { return FAR; }\n')
    return compile_


def test_the_same_is_compiled_once(compile_in, tmp_path):
    assert compile_in("-Iinc") == (1, 0, "")
    first = (tmp_path / "main.o").read_bytes()
    (tmp_path / "main.o").unlink()
    assert compile_in("-Iinc") == (1, 0, "")
    assert (tmp_path / "main.o").read_bytes() == first


@pytest.mark.parametrize("file", ["main.c", "near.h", "inc/far.h"])
def test_a_change_in_a_source_or_in_any_header_is_compiled(compile_in, tmp_path, file):
    compile_in("-Iinc")
    with (tmp_path / file).open("a") as changed:
        changed.write("/* more */\n")
    assert compile_in("-Iinc") == (2, 0, "")
    assert compile_in("-Iinc", "-DMORE") == (3, 0, "")


def test_what_the_compiler_says_is_said_each_time(compile_in, tmp_path):
    for text, status in [("int f(void) { int x; return 1; }\n", 0), ("int f(void) {\n", 1)]:
        (tmp_path / "main.c").write_text(text)
        for _ in range(2):
            kept, found, said = compile_in("-Wall")
            assert (kept, found) == (0, status)
            assert "main.c:1:" in said
