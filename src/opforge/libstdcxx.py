"""Whether AOTInductor's packages share torch's libstdc++, and what to preload where they do not.

Where g++ links libstdc++ statically, a package brings a second one, and loading it ends the process
in `std::regex`.
"""

from __future__ import annotations

import functools
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import environment

# The dynamic linker finds the system's by this name.
LIBRARY = "libstdc++.so.6"
CXX_COMPILERS = ("g++", "clang++", "c++")
_PROBE = "#include <string>\nstd::string text(int n) { return std::to_string(n); }\n"


@functools.cache
def linked_statically(compiler: str) -> bool:
    """Whether a C++ compiler puts the standard library into what it links; asks it once."""
    if sys.platform == "darwin":
        return False
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "probe.so")
        command = [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(made)]
        # The user's own compiler, found as every build tool finds it.
        try:
            ran = subprocess.run(  # noqa: S603
                command, input=_PROBE.encode(), capture_output=True, check=False
            )
        except OSError:
            return False
        # A library names those that it needs.
        names = (b"libstdc++.so", b"libc++.so")
        linked = ran.returncode == 0 and made.is_file()
        return linked and not any(n in made.read_bytes() for n in names)


def preloaded() -> bool:
    """Whether this process was started with it in LD_PRELOAD."""
    given = environment.LD_PRELOAD.get().replace(":", " ").split()
    return any(Path(each).name == LIBRARY for each in given)


def to_preload() -> str:
    """The library that loading a package would need in LD_PRELOAD, if any."""
    try:
        names = shlex.split(environment.CXX.get())[:1] or CXX_COMPILERS
    except ValueError:
        # opforge doctor tells it with the compiler.
        return ""
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None or preloaded() or not linked_statically(compiler):
        return ""
    return LIBRARY
