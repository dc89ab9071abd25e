"""The cases of an operator, read back from the manifest: for fakes, when something is traced.

Steps and kernels are left out: the library runs them, nobody else does.
"""

from __future__ import annotations

from typing import Any

from ..native.ir.expr import Term, from_json
from ..native.ir.program import Bound, Case, Guard, Output, Path, TensorCase


def read_cases(op: dict[str, Any]) -> tuple[Case, ...]:
    return tuple(
        Case(
            tuple(_tensor(t) for t in case["tensors"]),
            tuple(case["choices"].items()),
            tuple(Bound(b["var"], b["low"], b["high"], tuple(b["values"])) for b in case["bounds"]),
            tuple(_path(p) for p in case["paths"]),
        )
        for case in op["cases"]
    )


def _tensor(tensor: dict[str, Any]) -> TensorCase:
    if not tensor.get("present", True):
        return TensorCase(tensor["param"], present=False)
    strides = tensor["strides"]
    return TensorCase(
        tensor["param"],
        dtype=tensor["dtype"],
        shape=tuple(from_json(size) for size in tensor["shape"]),
        strides=None if strides is None else tuple(from_json(s) for s in strides),
    )


def _path(path: dict[str, Any]) -> Path:
    guards = tuple(Guard(_term(g["condition"]), g["location"]) for g in path["guards"])
    if "refused" in path:
        return Path(guards, refused=path["refused"])
    outputs = tuple(
        None
        if output is None
        else Output(
            output["dtype"],
            tuple(_term(size) for size in output["shape"]),
            tuple(_term(stride) for stride in output["strides"]),
        )
        for output in path["outputs"]
    )
    return Path(guards, outputs)


def _term(value: Any) -> Term:
    return from_json(value["term"] if isinstance(value, dict) else value)
