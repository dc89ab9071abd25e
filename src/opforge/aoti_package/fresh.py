"""A script that loads a package in a fresh process, calls it, and profiles it.

It imports torch and the standard library but not opforge, so that its result also holds for a
process without opforge. It reads its task from a JSON file and writes its result to others.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def main(file: str) -> None:
    spec = json.loads(Path(file).read_text())
    sys.path[:] = spec["sys_path"]
    result: dict[str, Any] = {"stage": "import"}
    try:
        work(spec, result)
    except Exception as error:  # noqa: BLE001  # the parent process reports it
        result["error"] = f"{type(error).__name__}: {error}"
        result["traceback"] = traceback.format_exc()
    Path(spec["result"]).write_text(json.dumps(result))


def work(spec: dict[str, Any], result: dict[str, Any]) -> None:
    import torch  # noqa: PLC0415  # after the path is set

    for library in spec["libraries"]:
        torch.ops.load_library(library)
    for module in spec["modules"]:
        import_module(module["module"], module["file"])
    result["opforge"] = "opforge" in sys.modules

    result["stage"] = "load"
    home, _, name = spec["loader"].partition(":")
    load = getattr(importlib.import_module(home), name)
    started = time.perf_counter()
    package = load(spec["package"])
    result["load_seconds"] = time.perf_counter() - started

    result["stage"] = "run"
    calls = torch.load(spec["calls"], weights_only=True)
    results = []
    for inputs in calls:
        # Called with flat tensors: records among the arguments are the caller's business.
        outputs = [t for t in package.loader.run(inputs) if isinstance(t, torch.Tensor)]
        results.append({"outputs": outputs, "after": inputs})
    torch.save(results, spec["results"])
    if spec["trace"]:
        result["stage"] = "trace"
        write_trace(lambda: package.loader.run(calls[0]), spec["trace"], spec["repeat"])


def import_module(name: str, file: str) -> None:
    """By name if that finds the file, else from the file itself."""
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec(name) if name != "__main__" else None
        if spec is not None and os.path.realpath(spec.origin or "") == os.path.realpath(file):
            importlib.import_module(name)
            return
    # A script is imported under another name, so that its main block does not run.
    name = Path(file).stem if name == "__main__" else name
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(Path(file).parent))
    spec.loader.exec_module(module)


def write_trace(call: Any, file: str, repeat: int) -> None:
    import torch  # noqa: PLC0415  # as above

    for _ in range(3):
        call()
    # Without acc_events, torch 2.11 warns that it keeps only the events of one cycle.
    with torch.profiler.profile(acc_events=True) as profiler:
        for _ in range(repeat):
            # Named, because a package records no events of its own on a CPU.
            with torch.profiler.record_function("call"):
                call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    profiler.export_chrome_trace(file)


if __name__ == "__main__":
    main(sys.argv[1])
