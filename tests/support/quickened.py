"""torch's compilers without work that has no effect in tests."""

import functools
import sys
from pathlib import Path

INDUCTORS_TRITON = "torch._inductor.runtime.triton_compat"


def quicken_compiler():
    """Keep torch's compilers, where they are imported, from what costs tests the most.

    Dynamo measures what it compiles, and flushes the caches of the processor before, which takes
    30 ms and slows down the others. An export lists torch's own ops once per namespace that was
    ever there, of which a worker has hundreds: 3 s per decomposition. Caches of compiled code look
    for Triton's version in the bytes of its library, which takes every process a second.
    """
    if "triton.runtime.cache" in sys.modules:
        found = Path(sys.modules["triton._C.libtriton"].__file__).stat()
        key = f"{sys.modules['triton'].__version__}-{found.st_size}-{found.st_mtime_ns}"
        for name in ("triton.runtime.cache", "triton.runtime.autotuner", INDUCTORS_TRITON):
            if module := sys.modules.get(name):
                module.triton_key = lambda: key
    if guards := sys.modules.get("torch._dynamo.guards"):
        guards.profile_guard_manager = lambda *_: 0.0
    if export := sys.modules.get("torch._export.utils"):
        listed = export._materialize_cpp_cia_ops
        if not hasattr(listed, "cache_clear"):
            export._materialize_cpp_cia_ops = functools.cache(listed)
