"""Every environment variable that opforge reads, in one table; the documentation lists it."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """`default` and `purpose` are Markdown, for the reference."""

    name: str
    default: str
    purpose: str

    def get(self) -> str:
        """Its value; empty where it is not set."""
        return os.environ.get(self.name, "")

    def is_on(self) -> bool:
        """As Triton reads a boolean from the environment."""
        return is_on(self.get())


def is_on(value: str | None) -> bool:
    return (value or "").lower() in {"1", "true", "on"}


TRITON_INTERPRET = Variable(
    "TRITON_INTERPRET",
    "off",
    "`1` runs Triton kernels on the CPU, in Triton's interpreter. Set it before Python starts; "
    "operators that launch kernels are then opaque to the compiler, and nothing can be built",
)
CACHE_DIR = Variable(
    "OPFORGE_CACHE_DIR",
    "`opforge` in the user's cache folder",
    "where compiled kernels are kept, in a folder `native`; it may be deleted at any time",
)
XDG_CACHE_HOME = Variable(
    "XDG_CACHE_HOME", "`~/.cache`", "the user's cache folder, where `OPFORGE_CACHE_DIR` is not set"
)
REMOTE_CACHE = Variable(
    "OPFORGE_REMOTE_CACHE",
    "off",
    "the URL of a cache of compiled kernels that machines share: `https://...`, `file:///...`, or "
    "what fsspec opens; see [A shared cache](../how-to/native/build.md#a-shared-cache)",
)
CC = Variable("CC", "`cc`", "the C compiler of native libraries, with its arguments")
CXX = Variable("CXX", "`c++`", "the C++ compiler of torch adapters (`opforge build --torch`)")
AR = Variable("AR", "`ar`", "the archiver of static libraries (`opforge build --static`)")
LD_PRELOAD = Variable(
    "LD_PRELOAD",
    "empty",
    "libraries that the process was started with. The process that verifies a package gets the "
    "system's libstdc++ in front where g++ links its own statically",
)

TORCH_LOGS = Variable(
    "TORCH_LOGS",
    "empty",
    "what torch logs. Where it is set, a check lets torch's logs through; the rows have the errors "
    "in any case",
)

RECORD = Variable(
    "OPFORGE_RECORD",
    "empty",
    "the folder into which a process records its launches; `opforge record` sets it for the "
    "program that it starts",
)

SERVE = Variable(
    "OPFORGE_SERVE",
    "empty",
    "the folder of kernels that a process serves; `opforge serve` sets it for the program that it "
    "starts",
)
SERVE_STRICT = Variable(
    "OPFORGE_SERVE_STRICT",
    "off",
    "`1` makes a launch that the folder of `OPFORGE_SERVE` does not cover an error",
)

SERVE_TUNE_MISSING = Variable(
    "OPFORGE_SERVE_TUNE_MISSING",
    "off",
    "`1` lets autotuners measure in a process that serves a folder",
)

SERVE_COUNTS = Variable(
    "OPFORGE_SERVE_COUNTS",
    "empty",
    "the folder into which a process that serves writes what it was served when it ends; "
    "`opforge serve --counts` sets it for the program that it starts",
)

PYTHONPATH = Variable(
    "PYTHONPATH",
    "empty",
    "where Python looks for modules; `opforge record` and `opforge serve` put a folder of their "
    "own in front for the program that they start",
)

VARIABLES = (
    TRITON_INTERPRET, CACHE_DIR, XDG_CACHE_HOME, REMOTE_CACHE, CC, CXX, AR, LD_PRELOAD, TORCH_LOGS,
    RECORD, SERVE, SERVE_STRICT, SERVE_TUNE_MISSING, SERVE_COUNTS, PYTHONPATH,
)  # fmt: skip
