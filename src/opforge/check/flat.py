"""A call as the dispatcher sees it: records taken apart, enum members as text."""

from __future__ import annotations

from typing import Any

from ..model import Leaf, Node, flat_width
from ..registry import Entry
from .values import OpCall


def flat_arguments(entry: Entry, call: OpCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for the op's overload.

    rms_norm(x, NormConfig(w, 1e-6))  ->  (x, w, 1e-6, "float32"), {}
    """
    assert entry.lowered is not None
    bound = entry.signature.bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    values = [
        value
        for parameter, given in zip(
            entry.lowered.signature.parameters, bound.arguments.values(), strict=True
        )
        for value in _flatten(parameter.node, given)
    ]
    pairs = list(zip(entry.lowered.arguments, values, strict=True))
    positional = tuple(v for a, v in pairs if not a.keyword_only)
    return positional, {a.name: v for a, v in pairs if a.keyword_only}


def _flatten(node: Node, value: Any) -> list[Any]:
    if isinstance(node, Leaf):
        return [_encode(node, value)]
    present = [value is not None] if node.optional else []
    if value is None:
        return [*present, *[None] * (flat_width(node) - len(present))]
    # A tuple's parts are named by their places.
    parts = value if node.kind == "tuple" else [getattr(value, f.name) for f in node.fields]
    pairs = zip(node.fields, parts, strict=True)
    return [*present, *(v for field, part in pairs for v in _flatten(field.node, part))]


def _encode(leaf: Leaf, value: Any) -> Any:
    if value is None or leaf.codec is None:
        return value
    if leaf.container:
        return [None if v is None else leaf.codec.encode(v) for v in value]
    return leaf.codec.encode(value)
