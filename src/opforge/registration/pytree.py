"""Registers records as pytree nodes, so that export and vmap see inside them.

Of a NamedTuple torch needs only the name under which a saved program refers to it.
"""

from __future__ import annotations

import enum
from typing import Any

from .. import _compat
from ..model import Leaf, Node, Record

# What a tracer accepts as an input; anything else (an Enum, a dtype) is part of the structure.
_INPUTS = {"Tensor", "SymInt", "int", "float", "bool", "str", "Scalar"}


def register_records(node: Node | None) -> None:
    """Register every record below a node that is not registered yet."""
    if not isinstance(node, Record):
        return
    for item in node.fields:
        register_records(item.node)
    if node.kind == "dataclass":
        _register(node)
    elif node.kind == "namedtuple":
        _compat.register_namedtuple(node.cls, _name(node.cls))


def _register(record: Record) -> None:
    cls = record.cls
    children = [f.name for f in record.fields if _is_child(f.node)]
    constants = [f.name for f in record.fields if f.name not in children]

    def flatten(value: Any) -> tuple[list[Any], Any]:
        return [getattr(value, n) for n in children], tuple(getattr(value, n) for n in constants)

    def unflatten(parts: Any, context: Any) -> Any:
        value = object.__new__(cls)
        for name, part in zip((*children, *constants), (*parts, *context), strict=True):
            object.__setattr__(value, name, part)
        return value

    functions: dict[str, Any] = {}
    enums = [_enum_of(f.node) for f in record.fields if f.name in constants]
    if all(enums):
        functions["serialized_type_name"] = _name(cls)
        functions["to_dumpable_context"] = lambda context: [
            None if m is None else m.name for m in context
        ]
        functions["from_dumpable_context"] = lambda names: tuple(
            None if n is None else e[n] for e, n in zip(enums, names, strict=True) if e is not None
        )
    _compat.register_pytree(cls, flatten, unflatten, children, **functions)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _is_child(node: Node) -> bool:
    if isinstance(node, Record):
        return True
    return node.base in _INPUTS and (node.codec is None or node.codec.cls is None)


def _enum_of(node: Node) -> type[enum.Enum] | None:
    return node.codec.cls if isinstance(node, Leaf) and node.codec and not node.container else None
