"""How an operator stands in the manifest, apart from its cases."""

from __future__ import annotations

import functools
import math
from typing import Any

from .interface import (
    ChoiceParam,
    Flat,
    Implementation,
    Op,
    ScalarParam,
    SchemaArgument,
    TensorParam,
)
from .record_codec import LIST, PLAIN, Constant, RecordCodec, each, is_a, one_of, record


def _write_flat(value: Flat) -> Any:
    """`("dtype", "float16")` -> `["dtype", "float16"]`, nan -> `["float", "nan"]`."""
    if isinstance(value, tuple):
        return [_write_flat(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return ["float", str(value)]
    return value


def _read_flat(content: Any) -> Flat:
    if not isinstance(content, list):
        flat: Flat = content
        return flat
    kind, *rest = content
    return float(rest[0]) if kind == "float" else (kind, *(_read_flat(item) for item in rest))


_FLAT = RecordCodec(_write_flat, _read_flat)

_ARGUMENT = record(
    SchemaArgument,
    name=PLAIN,
    type=PLAIN,
    values=each(_FLAT),
    fixed=PLAIN,
    keyword_only=PLAIN,
    default=each(_FLAT),
)

_TENSOR = record(
    TensorParam,
    without_false=("broadcast", "group"),
    name=PLAIN,
    kind=Constant("tensor"),
    written=PLAIN,
    optional=PLAIN,
    broadcast=PLAIN,
    group=PLAIN,
)
_SCALAR = record(ScalarParam, name=PLAIN, kind=Constant("scalar"), dtype=PLAIN)
_CHOICE = record(ChoiceParam, name=PLAIN, kind=Constant("choice"), labels=LIST, values=LIST)
_PARAM = one_of(
    ("written", is_a(TensorParam), _TENSOR),
    ("dtype", is_a(ScalarParam), _SCALAR),
    ("labels", is_a(ChoiceParam), _CHOICE),
)

_IMPLEMENTATION = record(
    Implementation,
    name=PLAIN,
    torch_name=PLAIN,
    schema=PLAIN,
    location=PLAIN,
    source_hash=PLAIN,
    doc=PLAIN,
)

# Docs of parameters, and what was declared of them, are in the header only.
OP = record(
    functools.partial(Op, cases=()),
    name=PLAIN,
    torch_name=PLAIN,
    schema=PLAIN,
    arguments=each(_ARGUMENT),
    returns=LIST,
    formula=each(_FLAT),
    location=PLAIN,
    source_hash=PLAIN,
    doc=PLAIN,
    params=each(_PARAM),
    outputs=LIST,
    implementations=each(_IMPLEMENTATION),
)
