"""How an operator stands in the manifest, apart from its cases."""

from __future__ import annotations

import math
from typing import Any

from ...records import BadField, Codecs, JsonCodec, shown
from .interface import (
    ChoiceParam,
    Flat,
    Implementation,
    Op,
    ScalarParam,
    SchemaArgument,
    TensorParam,
)


def _write_flat(value: Flat) -> Any:
    """`("dtype", "float16")` -> `["dtype", "float16"]`, nan -> `["float", "nan"]`."""
    if isinstance(value, tuple):
        return [_write_flat(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return ["float", str(value)]
    return value


def _read_flat(content: Any) -> Flat:
    if isinstance(content, dict):
        raise BadField(f"is {shown(content)}, expected a value or a list")
    if not isinstance(content, list):
        flat: Flat = content
        return flat
    if content[:1] == ["float"]:
        if content[1:] not in (["nan"], ["inf"], ["-inf"]):
            raise BadField(f"is {shown(content)}, expected 'nan', 'inf' or '-inf' in it")
        return float(content[1])
    if not content or not isinstance(content[0], str):
        raise BadField(f"is {shown(content)}, expected a list that begins with its kind")
    return (content[0], *(_read_flat(item) for item in content[1:]))


# Docs of parameters, and what was declared of them, are in the header only.
OP = Codecs(
    {
        Op: "name torch_name schema arguments returns result? formula location source_hash doc "
        "params outputs implementations",
        SchemaArgument: "name type values fixed keyword_only default",
        TensorParam: "name kind written optional broadcast? group?",
        ScalarParam: "name kind dtype",
        ChoiceParam: "name kind labels values",
        Implementation: "name torch_name schema location source_hash doc",
    },
    {Flat: JsonCodec(_write_flat, _read_flat)},
).of(Op)
