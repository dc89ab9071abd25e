"""A script that loads a package in a fresh process, compares it with eager, and profiles it.

It imports torch and the standard library but not opforge, so that its result also holds for a
process without opforge. It reads its task from a JSON file and writes its result to another.
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
    result["calls"] = []
    for call in calls:
        # Called with flat tensors: records among the arguments are the caller's business.
        inputs = call["inputs"]
        outputs = [t for t in package.loader.run(inputs) if isinstance(t, torch.Tensor)]
        found = compare(spec, outputs + inputs, call["outputs"] + call["after"])
        result["calls"].append({"label": call["label"], **found})
    if spec["trace"]:
        result["stage"] = "trace"
        write_trace(lambda: package.loader.run(calls[0]["inputs"]), spec["trace"], spec["repeat"])


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


def compare(spec: dict[str, Any], found: list[Any], expected: list[Any]) -> dict[str, Any]:
    """The largest difference; `wrong` describes the first mismatch."""
    if len(found) != len(expected):
        return {"error": None, "wrong": f"{len(found)} tensors instead of {len(expected)}"}
    largest, wrong = 0.0, ""
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            error = 0.0
            text = f"is {a.dtype} {tuple(a.shape)} instead of {b.dtype} {tuple(b.shape)}"
        else:
            error, tolerance = difference(a, b, spec)
            text = f"differs by {error:.3g}, {tolerance}" if tolerance else ""
        largest = max(largest, error)
        wrong = wrong or (text and f"tensor {index} {text}")
    return {"error": largest, "wrong": wrong}


def difference(a: Any, b: Any, spec: dict[str, Any]) -> tuple[float, str]:
    """The largest difference, and the tolerance if a difference exceeds it."""
    import torch  # noqa: PLC0415  # as above

    if b.numel() == 0:
        return 0.0, ""
    tolerance = spec["tolerances"].get(str(b.dtype), 0.0)
    wide = torch.complex128 if b.dtype.is_complex else torch.float64
    a, b = a.cpu().to(wide), b.cpu().to(wide)
    # Equal infinities, and NaNs in both, do not differ.
    same = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=float("inf"))
    size = b.abs().nan_to_num(nan=0.0, posinf=0.0)
    if spec["rtol"] is None and spec["atol"] is None:
        mean = size.square().mean().sqrt()
        allowed, text = tolerance * (size + mean), f"tolerance {tolerance:g} of its size"
    else:
        rtol, atol = spec["rtol"] or 0.0, spec["atol"] or 0.0
        allowed, text = atol + rtol * size, f"tolerance rtol={rtol:g}, atol={atol:g}"
    return float(gap.max()), text if bool((gap > allowed).any()) else ""


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
