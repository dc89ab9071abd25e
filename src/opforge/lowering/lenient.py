"""A signature as a lenient dialect reads it: what callers may pass is wider.

x: Enum of texts       a member reaches the body as a member, a value as the value
x: frozen dataclass    anything with its attributes is taken
"""

from __future__ import annotations

from dataclasses import replace

from ..model import Leaf, Node, Record, Signature


def lenient(signature: Signature) -> Signature:
    """The same signature, with parameters that take more."""
    parameters = (replace(p, node=_widen(p.node)) for p in signature.parameters)
    return replace(signature, parameters=tuple(parameters))


def _widen(node: Node) -> Node:
    if isinstance(node, Record):
        fields = tuple(replace(item, node=_widen(item.node)) for item in node.fields)
        return replace(node, fields=fields, duck=node.kind == "dataclass")
    return _passing_on(node)


def _passing_on(leaf: Leaf) -> Leaf:
    codec = leaf.codec
    if codec is None or codec.cls is None or codec.passes_through or leaf.base != "str":
        return leaf
    return replace(leaf, codec=replace(codec, by="given")) if codec.by == "value" else leaf
