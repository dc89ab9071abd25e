"""The schema of an operator as torch sees it, with the values of its arguments."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from ...model import MISSING, FlatArgument
from ...registry import Entry
from ..ir.interface import ChoiceParam, Flat, Param, SchemaArgument, TensorParam
from .c_parameters import Merged
from .expand import Declared


def schema_of(entry: Entry) -> str:
    """`ops::silu(Tensor x) -> Tensor`; empty for a function in mode none."""
    return f"{entry.name}{entry.lowered.schema}" if entry.lowered is not None else ""


def schema_returns(entry: Entry) -> tuple[str, ...]:
    """The types that the operator returns: `("Tensor", "Tensor?")`."""
    return () if entry.lowered is None else tuple(r.schema_type() for r in entry.lowered.returns)


def schema_arguments(entry: Entry, declared: Declared | Merged) -> tuple[SchemaArgument, ...]:
    """The arguments of the operator, in order; empty for a function in mode none."""
    if entry.lowered is None:
        return ()
    params = {param.name: param for param in declared.params}
    made = []
    for argument in entry.lowered.arguments:
        values: tuple[Any, ...] = ()
        if isinstance(params.get(argument.name), ChoiceParam):
            values = declared.values[argument.name]
        elif argument.name not in params:
            values = (declared.constants[argument.name],)
        made.append(
            SchemaArgument(
                argument.name,
                argument.type,
                tuple(_carried(argument, value) for value in values),
                fixed=argument.name not in params,
                keyword_only=argument.keyword_only,
                default=() if argument.default is MISSING else (_flat(argument.default),),
            )
        )
    return tuple(made)


def backward_schema(
    entry: Entry, forward: Declared, params: Sequence[Param], optional: Sequence[bool]
) -> tuple[str, tuple[SchemaArgument, ...], tuple[str, ...]]:
    """Schema, arguments and returns of an op's backward, from the parameters of its C function.

    `optional` are its outputs, true where some calls do not have one.
    """
    known = {argument.name: argument for argument in entry.flat().arguments}
    arguments = []
    for param in params:
        if isinstance(param, TensorParam):
            made = SchemaArgument(param.name, "Tensor?" if param.optional else "Tensor")
        else:
            argument, values = known[param.name], forward.values.get(param.name, ())
            carried = tuple(_carried(argument, value) for value in values)
            made = SchemaArgument(param.name, argument.type, carried)
        arguments.append(made)
    returns = tuple("Tensor?" if may_be_none else "Tensor" for may_be_none in optional)
    listed = ", ".join(f"{argument.type} {argument.name}" for argument in arguments)
    given = returns[0] if len(returns) == 1 else f"({', '.join(returns)})"
    return f"{entry.name}_backward({listed}) -> {given}", tuple(arguments), returns


def _carried(argument: FlatArgument, value: Any) -> Flat:
    """The schema's value for one of the user's: `Rounding.UP` -> "up"."""
    codec = argument.leaf.codec if argument.leaf is not None else None
    return _flat(value if codec is None or value is None else codec.encode(value))


def _flat(value: Any) -> Flat:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return ("list", *(_flat(item) for item in value))
    # A dtype, a layout, a memory format or a device.
    return (type(value).__name__, str(value).removeprefix("torch."))
