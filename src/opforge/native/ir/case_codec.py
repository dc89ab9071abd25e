"""How the cases of an operator stand in the manifest.

Terms are written twice, as Python would write them and as nested lists:

    "n", 128, {"text": "(n + 127) // 128", "term": ["//", ["+", "n", 127], 128]}
"""

from __future__ import annotations

from typing import Any

from ...records import Codecs, JsonCodec, field
from .cases import (
    Allocate,
    Bound,
    Case,
    Descriptor,
    Fill,
    Guard,
    Launch,
    Output,
    Path,
    Pointer,
    ScalarValue,
    TensorCase,
    Variant,
)
from .expr import Expr, Term, from_json, text, to_json


def _write_term(term: Term) -> Any:
    if isinstance(term, Expr):
        return {"text": text(term), "term": to_json(term)}
    return to_json(term)


def _read_term(content: Any) -> Term:
    return from_json(field(content, "term", Any) if isinstance(content, dict) else content)


CASE = Codecs(
    {
        Case: "implementation tensors returns? choices bounds paths",
        TensorCase: "param dtype shape strides | param present",
        Bound: "var low high values",
        Path: "guards outputs steps | guards refused refused_at?",
        Guard: "condition location",
        Output: "dtype shape strides strided?",
        Allocate: "allocate=buffer bytes",
        Fill: "fill=buffer offset count width pattern",
        Launch: "launch=kernel_name kernel_location location grid constants arguments variants",
        Pointer: "name buffer offset dtype",
        Descriptor: "name buffer offset dtype rank is_nan is_tf32",
        ScalarValue: "name value",
        Variant: "kernel types aligned divisible",
    },
    {Term: JsonCodec(_write_term, _read_term)},
).of(Case)
