"""The pkg-config file: what a program needs to compile and link, shared and static."""

import os
import shutil
import subprocess

import pytest

from opforge.native.artifacts.toolchain import compile_library
from support.native import hand_made
from support.standin.library import write

MAIN = """
#include <demo.h>
#include <stdio.h>

int main(void)
{
    printf("%d %d\\n", demo_abi_version(), demo_add(NULL, NULL, NULL, NULL));
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="no pkg-config here")
def test_a_program_is_linked_as_pkg_config_says(tmp_path):
    package = write(hand_made.library(), tmp_path / "dist")
    compile_library(package, "demo", static=True, flags=("-O0",))
    moved = package.rename(tmp_path / "a moved dist")
    (tmp_path / "main.c").write_text(MAIN)
    environment = os.environ | {
        "PKG_CONFIG_PATH": str(moved / "lib" / "pkgconfig"),
        "LD_LIBRARY_PATH": str(moved / "lib"),
    }
    for static in ("", "--static"):
        if static:
            (moved / "lib" / "libdemo.so").unlink()
        # `eval`, because pkg-config escapes the spaces of the path for a shell.
        flags = f"$(pkg-config {static} --cflags --libs demo)"
        shown = subprocess.run(
            ["sh", "-c", f'eval "gcc main.c {flags} -o main" && ./main'],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (shown.returncode, shown.stdout) == (0, "1 1\n"), shown.stderr
