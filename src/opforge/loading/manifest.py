"""An operator of a library's manifest, read back into the record that it was written from."""

from __future__ import annotations

from typing import Any

from ..native.ir.interface import (
    ChoiceParam,
    Flat,
    Op,
    Param,
    ScalarParam,
    SchemaArgument,
    TensorParam,
)


def read_op(op: dict[str, Any]) -> Op:
    """One entry of the manifest's `ops`; its cases are left to `cases.read_cases`."""
    return Op(
        name=op["name"],
        torch_name=op["torch_name"],
        location=op["location"],
        params=tuple(_param(p) for p in op["params"]),
        outputs=tuple(op["outputs"]),
        cases=(),
        doc=op["doc"],
        source_hash=op["source_hash"],
        schema=op["schema"],
        arguments=tuple(_argument(a) for a in op["arguments"]),
        returns=tuple(op["returns"]),
        formula=tuple(_flat(term) for term in op["formula"]),
    )


def _param(param: dict[str, Any]) -> Param:
    if param["kind"] == "tensor":
        return TensorParam(
            param["name"],
            param["written"],
            param["optional"],
            broadcast=param.get("broadcast", False),
            group=param.get("group", 0),
        )
    if param["kind"] == "scalar":
        return ScalarParam(param["name"], param["dtype"])
    return ChoiceParam(param["name"], tuple(param["labels"]), tuple(param["values"]))


def _argument(argument: dict[str, Any]) -> SchemaArgument:
    return SchemaArgument(
        argument["name"],
        argument["type"],
        tuple(_flat(value) for value in argument["values"]),
        fixed=argument["fixed"],
        keyword_only=argument["keyword_only"],
        default=tuple(_flat(value) for value in argument["default"]),
    )


def _flat(value: Any) -> Flat:
    if not isinstance(value, list):
        flat: Flat = value
        return flat
    kind, *rest = value
    return float(rest[0]) if kind == "float" else (kind, *(_flat(item) for item in rest))
