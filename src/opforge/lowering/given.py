"""Turns a schema that the user wrote into the flat signature that lowering would have made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import BadDeclaration
from ..model import MISSING, Field, FlatArgument, Leaf, Lowered, Node, Parameter, Record, Signature


def lower_given(
    schema: str,
    kinds: Mapping[str, str],
    arguments: Sequence[tuple[str, str, bool, bool, bool]],
    defaults: Mapping[str, Any],
    returns: Sequence[str],
) -> Lowered:
    """`kinds`: parameter name -> kind; `arguments` and `returns` as torch parsed them.

    An argument and a parameter belong together by their place, and may differ in their names.
    The op is called by the argument's, so that is the leaf's; the parameter keeps its own.
    """
    _refuse_others(arguments, kinds)
    flat, parameters = [], []
    for (name, printed, has_default, keyword_only, mutated), own in zip(
        arguments, kinds, strict=True
    ):
        leaf = _leaf(name, printed)
        default = defaults[name] if has_default else MISSING
        parameters.append(Parameter(own, kinds[own], leaf, default))
        flat.append(
            FlatArgument(
                name,
                own,
                leaf.schema_type(),
                leaf,
                default,
                keyword_only=keyword_only,
                mutated=mutated,
            )
        )
    leaves = [
        _leaf("return" if len(returns) == 1 else f"return.{i}", r) for i, r in enumerate(returns)
    ]
    node: Node | None = leaves[0] if len(leaves) == 1 else None
    if len(leaves) > 1:
        node = Record(
            "return", "tuple", tuple, tuple(Field(str(i), leaf) for i, leaf in enumerate(leaves))
        )
    return Lowered(Signature(tuple(parameters), node), tuple(flat), tuple(leaves), schema, "direct")


def _refuse_others(
    arguments: Sequence[tuple[str, str, bool, bool, bool]], kinds: Mapping[str, str]
) -> None:
    """Refuse a schema that does not fit the parameters."""
    names = [a[0] for a in arguments]
    renamed = [
        keyword_only or kinds[own] == "keyword-only"
        for (name, _, _, keyword_only, _), own in zip(arguments, kinds, strict=False)
        if name != own
    ]
    if len(names) != len(kinds) or any(renamed):
        raise BadDeclaration(
            "the schema's arguments do not match the function's parameters",
            found=f"schema: {', '.join(names)}; function: {', '.join(kinds)}",
            fix="one argument per parameter, in the same order; keyword-only ones keep their names",
        )


def _leaf(path: str, printed: str) -> Leaf:
    """A leaf from a type as torch prints it: `Optional[List[Tensor]]`."""
    optional, inner = _peel("Optional", printed)
    listed, inner = _peel("List", inner)
    element_optional = False
    if listed:
        element_optional, inner = _peel("Optional", inner)
    return Leaf(path, inner, optional, "list" if listed else "", element_optional)


def _peel(wrapper: str, printed: str) -> tuple[bool, str]:
    match = re.fullmatch(rf"{wrapper}\[(.*)\]", printed)
    return (True, match[1]) if match else (False, printed)
