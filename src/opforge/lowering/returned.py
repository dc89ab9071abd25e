"""Ops that return what they change, as `torch.Tag.inplace` and `torch.Tag.out` say of them.

inplace    (Tensor(a0!) x, Tensor y) -> Tensor(a0!)
out        (Tensor x, *, Tensor(a1!) out) -> Tensor(a1!)
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import BadOption
from ..model import FlatArgument, Leaf, Lowered
from .plan import schema_of


def return_mutated(lowered: Lowered, tag: str, *, is_given: bool = False) -> Lowered:
    """The same op, whose schema says that it returns the arguments that it mutates.

    `is_given`: the user wrote the schema, so it stays as it is.
    """
    mutated = _mutated_in_place(lowered) if tag == "inplace" else _mutated_outs(lowered)
    returns = lowered.signature.returns
    plain = isinstance(returns, Leaf) or (returns is not None and returns.kind == "tuple")
    if (
        not plain
        or len(lowered.returns) != len(mutated)
        or not all(map(_is_tensor, lowered.returns))
    ):
        what = ", ".join(a.name for a in mutated)
        raise BadOption(
            f"an op with torch.Tag.{tag} returns the tensors that it mutates: {what}",
            found="-> (" + ", ".join(leaf.schema_type() for leaf in lowered.returns) + ")",
            fix=f"annotate -> {'Tensor' if len(mutated) == 1 else 'a tuple of tensors'}, "
            f"and return {what}",
        )
    if lowered.path == "flattened":
        raise BadOption(
            f"torch.Tag.{tag} needs parameters that a schema can express as they are",
            found=lowered.schema,
            fix="remove the tag and the returned tensor; mutates_args alone says what is mutated",
        )
    names = tuple(a.name for a in mutated)
    schema = lowered.schema if is_given else schema_of(lowered.arguments, lowered.returns, names)
    return replace(lowered, schema=schema, returned=names)


def _mutated_in_place(lowered: Lowered) -> tuple[FlatArgument, ...]:
    first = lowered.arguments[:1]
    if not first or first != lowered.mutated or not _is_plain(first[0]) or first[0].keyword_only:
        raise BadOption(
            "torch.Tag.inplace is for an op whose first parameter is a tensor and all that it "
            "mutates",
            found=f"mutates {[a.path for a in lowered.mutated]}",
            fix="mutates_args must name the first parameter and no other, or remove the tag",
        )
    return first


def _mutated_outs(lowered: Lowered) -> tuple[FlatArgument, ...]:
    mutated = lowered.mutated
    if not mutated or not all(_is_plain(a) and _is_keyword_only(lowered, a) for a in mutated):
        raise BadOption(
            "torch.Tag.out is for an op that mutates keyword-only tensors and nothing else",
            found=f"mutates {[a.path for a in mutated]}",
            fix="def op(x: Tensor, *, out: Tensor) -> Tensor, with mutates_args=['out']; or remove "
            "the tag",
        )
    return mutated


def _is_keyword_only(lowered: Lowered, argument: FlatArgument) -> bool:
    return any(p.name == argument.path and p.keyword_only for p in lowered.signature.parameters)


def _is_plain(argument: FlatArgument) -> bool:
    return argument.type == "Tensor"


def _is_tensor(leaf: Leaf) -> bool:
    return leaf.schema_type() == "Tensor"
