"""Host time of a native call through other frameworks, against the torch adapter's.

    python benchmarks/frameworks.py     # needs a C and a C++ compiler, and apache-tvm-ffi

Calls take turns within one process. Without a GPU they go to the test suite's stand-in driver,
which does nothing with a launch, so that both sides pay the same for it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ratios import Row, show

import opforge
from opforge import native

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "examples" / "native"), str(ROOT / "tests")]

CALLS, ROUNDS = 1000, 30
GPU = torch.cuda.is_available()


def build(folder: Path) -> None:
    from ops import silu  # noqa: PLC0415  # of the folder above

    arch = "sm_{}{}".format(*torch.cuda.get_device_capability()) if GPU else "sm_80"
    native.build([silu], folder, archs=[arch], torch=True, tvm_ffi=True)


def use_standin() -> None:
    from support.standin.driver import load_standin  # noqa: PLC0415  # as above

    standin = load_standin()
    standin.reset()
    # Without this one, a launch would be handed to Python.
    standin._library.standin_on_launch(None)  # noqa: SLF001


def fastest(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The microseconds of each call in its best round."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            if GPU:
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _repeat in range(CALLS):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / CALLS * 1e6)
    return best


def tvm_ffi_rows(folder: Path) -> list[Row]:
    import tvm_ffi  # noqa: PLC0415  # optional

    opforge.load(folder, host_memory=not GPU)
    module = tvm_ffi.load_module(folder / "lib" / "libops.so")
    module.opforge_host_memory(not GPU)
    x = torch.randn(4, 1000, device="cuda" if GPU else "cpu")
    out, op, silu = torch.empty_like(x), torch.ops.ops.silu, module.silu
    calls = {
        "torch": lambda: op(x),
        "given": lambda: silu(x, out),
        "allocated": lambda: silu(x, torch.empty_like(x)),
    }
    with opforge.backend("native"):
        us = fastest(calls)
    rows = {"given": "tvm-ffi, into a given tensor", "allocated": "tvm-ffi and torch.empty_like"}
    return [
        Row(
            f"host time of a call, {what} / torch adapter",
            us[name] / us["torch"],
            None,
            f"{us[name]:.2f} / {us['torch']:.2f} us",
        )
        for name, what in rows.items()
    ]


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "dist")
        build(folder)
        if not GPU:
            use_standin()
        show(tvm_ffi_rows(folder), as_json=asked.json)


if __name__ == "__main__":
    main()
