"""The declarations of one op -> the parameters of its C function, and torch's schema of it."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import BadDeclaration, BadSignature, WrongArgument
from ...model import MISSING, FlatArgument, Lowered, Record, lowered_name
from ...registry import Entry
from ..ir.cases import Bound
from ..ir.interface import ChoiceParam, Flat, Param, ScalarParam, SchemaArgument, TensorParam
from ..ir.wording import one_of, spell
from .declaration import Choices, Declaration, LeafDeclaration, Scalars, Tensors, choices
from .dims import Name, Part, Shared, is_loose


@dataclass(frozen=True)
class Merged:
    """`values` has the values of each choice; `constants` the leaves that C does not pass."""

    params: tuple[Param, ...]
    values: Mapping[str, tuple[Any, ...]]
    constants: Mapping[str, Any]


def merge(lowered: Lowered, declarations: Sequence[Declaration]) -> Merged:
    """The C function's parameters, in the order of the op's flat arguments."""
    params: list[Param] = []
    values: dict[str, tuple[Any, ...]] = {}
    constants: dict[str, Any] = {}
    tables = [(declaration, dict(declaration.leaves)) for declaration in declarations]
    groups = _groups(lowered, declarations)
    for argument in lowered.arguments:
        said = [(declaration, table[argument.name]) for declaration, table in tables]
        asked = [(d, leaf) for d, leaf in said if isinstance(leaf, (Tensors, Scalars))]
        if argument.is_tensor and asked:
            params.append(_tensor(argument, said, groups.get(argument.name, 0)))
        elif asked:
            params.append(_scalar(argument, said))
        else:
            union = _union(leaf for _, leaf in said)
            if union.asked or len(union.values) > 1:
                shared = _members(argument, union)
                params.append(_choice(argument, shared or union, is_shared=shared is not None))
                values[argument.name] = (shared or union).values
            else:
                # A leaf without a value stands below a record that is always None.
                constants[argument.name] = union.values[0] if union.values else None
    return Merged(tuple(params), values, constants)


def output_names(lowered: Lowered, params: Sequence[Param]) -> tuple[str, ...]:
    """`out`, or `out0`, `out1`, ..., or the fields; with underscores where a parameter has one."""
    for leaf in lowered.returns:
        if not leaf.is_tensor or leaf.container:
            kind = f"a {leaf.container} of tensors" if leaf.is_tensor else "a number"
            raise BadSignature(
                f"the op returns {kind}, which a C function cannot return",
                parameter=leaf.path,
                fix="return individual tensors: Tensor, Tensor | None, or a tuple, NamedTuple "
                "or frozen dataclass of them",
            )
    paths = [leaf.path.removeprefix("return").removeprefix(".") for leaf in lowered.returns]
    names = [_output_name(i, path) for i, path in enumerate(paths)]
    names = ["out"] if names == ["out0"] else names
    taken = {param.name for param in params}
    while taken & set(names):
        names = [f"{name}_" for name in names]
    return tuple(names)


def _output_name(index: int, path: str) -> str:
    """`0` -> out0, `1.0` -> out1, `value` -> value, `0.value` -> out0__value."""
    if not path.strip("0123456789."):
        return f"out{index}"
    return f"{'out' if path[0].isdigit() else ''}{lowered_name(path)}"


def result_of(lowered: Lowered) -> tuple[str, ...]:
    """The class that the op returns, and its fields: `("Both", "value", "slope")`.

    Empty for all but a NamedTuple or dataclass of several tensors.
    """
    node = lowered.signature.returns
    if not isinstance(node, Record) or node.kind == "tuple" or len(node.fields) < 2:
        return ()
    if any(isinstance(field.node, Record) for field in node.fields):
        return ()
    return (node.cls.__name__, *(field.name for field in node.fields))


def _groups(lowered: Lowered, declarations: Sequence[Declaration]) -> dict[str, int]:
    """Which `*s` group each parameter broadcasts with, by parameter.

    x: "*s" broadcast, y: "*s" broadcast, w: "*t"  ->  x: 1, y: 1
    """
    found = [(declaration, _numbered(declaration)) for declaration in declarations]
    for declaration, (groups, broadcast) in found:
        first, (known, expected) = found[0]
        if (groups, broadcast) != (known, expected):
            raise BadDeclaration(
                "the declarations of this op broadcast different parameters",
                found=f"{', '.join(sorted(expected)) or 'none'} at {first.location}; "
                f"{', '.join(sorted(broadcast)) or 'none'} at {declaration.location}",
                fix="give broadcast= to the same parameters, with the same *s, in all of them",
            )
    groups, broadcast = found[0][1] if found else ({}, set())
    for argument in lowered.arguments:
        if argument.name in broadcast and argument.mutated:
            raise WrongArgument(
                "it is broadcast and written to, so one element would hold several results",
                parameter=argument.path,
                fix="broadcast the other parameters to its shape",
            )
    return groups


def _numbered(declaration: Declaration) -> tuple[dict[str, int], set[str]]:
    tensors = {n: d for n, d in declaration.leaves if isinstance(d, Tensors)}
    broadcast = {n for n, d in tensors.items() if d.broadcast}
    parts = list(dict.fromkeys(d.parts for n, d in tensors.items() if n in broadcast))
    groups = {n: parts.index(d.parts) + 1 for n, d in tensors.items() if d.parts in parts}
    return groups, broadcast


def _tensor(
    argument: FlatArgument, said: Sequence[tuple[Declaration, LeafDeclaration]], group: int
) -> TensorParam:
    tensors = [(leaf, declaration) for declaration, leaf in said if isinstance(leaf, Tensors)]
    optional = len(tensors) < len(said) or any(leaf.optional for leaf, _ in tensors)
    text = "; or ".join(dict.fromkeys(_describe(*one) for one in tensors))
    broadcast = tensors[-1][0].broadcast
    return TensorParam(argument.name, argument.mutated, optional, text, broadcast, group)


def output_docs(
    declarations: Sequence[Declaration], outputs: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """By output: what was declared of it."""
    said: dict[str, dict[str, None]] = {}
    for declaration in declarations:
        for name, leaf in zip(outputs, declaration.returns, strict=False):
            if leaf is not None:
                said.setdefault(name, {})[_describe(leaf, declaration)] = None
    return tuple((name, "; or ".join(texts)) for name, texts in said.items())


def _scalar(
    argument: FlatArgument, said: Sequence[tuple[Declaration, LeafDeclaration]]
) -> ScalarParam:
    kinds = {
        _kind(leaf): declaration.location
        for declaration, leaf in said
        if isinstance(leaf, (Scalars, Choices))
    }
    if len(kinds) > 1:
        raise BadDeclaration(
            "the declarations of this op give this parameter different C types",
            parameter=argument.path,
            found="; ".join(f"{kind} at {where}" for kind, where in kinds.items()),
            fix="declare it the same way in each; a parameter that is left out has its default "
            "for its only value",
        )
    dtype = next(leaf.dtype for _, leaf in said if isinstance(leaf, Scalars))
    return ScalarParam(argument.name, dtype, dtype)


def _kind(leaf: Scalars | Choices) -> str:
    if isinstance(leaf, Scalars):
        return f"native.scalar({leaf.dtype!r})"
    if leaf.asked:
        return f"native.choice({', '.join(leaf.written)})"
    return f"fixed at {', '.join(leaf.written)}"


def _union(leaves: Iterator[LeafDeclaration]) -> Choices:
    listed = [leaf for leaf in leaves if isinstance(leaf, Choices)]
    return choices(
        [value for leaf in listed for value in leaf.values],
        asked=any(leaf.asked for leaf in listed),
    )


def _members(argument: FlatArgument, union: Choices) -> Choices | None:
    """Of a parameter that is an Enum all members, and None where that is declared."""
    codec = None if argument.leaf is None else argument.leaf.codec
    if codec is None or codec.cls is None:
        return None
    members, others = [*codec.cls], [v for v in union.values if not isinstance(v, codec.cls)]
    return choices([*members, *others]) if others in ([], [None]) else None


def _choice(argument: FlatArgument, union: Choices, *, is_shared: bool) -> ChoiceParam:
    labels: list[str] = []
    for value in union.values:
        label = stem = _label(value)
        count = 1
        while label in labels:
            count += 1
            label = f"{stem}_{count}"
        labels.append(label)
    enum_name = type(union.values[0]).__name__ if is_shared else ""
    return ChoiceParam(
        argument.name, tuple(labels), union.written, one_of(union.written), enum_name
    )


def _label(value: Any) -> str:
    """`Mode.FAST` -> FAST, `'gelu-tanh'` -> GELU_TANH, -1 -> MINUS_1, 0.5 -> 0_5."""
    if isinstance(value, enum.Enum):
        text = value.name
    elif isinstance(value, (tuple, list)):
        text = "_".join(map(_label, value))
    elif isinstance(value, (int, float)):
        text = repr(value).replace("e-", "e_minus_").replace("-", "minus_").replace("+", "")
    else:
        text = str(value).removeprefix("torch.")
    return re.sub("[^A-Za-z0-9]+", "_", text).strip("_").upper() or "EMPTY"


def _describe(leaf: Tensors, declaration: Declaration) -> str:
    """`fp16 or fp32, 2-d (rows, hidden <= 8192), compact`."""
    bounds = {bound.var: bound for bound in declaration.bounds}
    fixed = dict(declaration.fixed)
    sizes = ", ".join(_size(part, bounds, fixed) for part in leaf.parts)
    beside = len(leaf.parts) - 1
    found = leaf.ranks or [length + beside for length in loose_lengths(leaf, declaration)]
    ranks = one_of([f"{rank}-d" for rank in found])
    dtypes = one_of(leaf.dtypes) + (f" ({leaf.variable})" if leaf.variable else "")
    layout = "any strides" if leaf.strided else "compact"
    return f"{dtypes}, {ranks} ({sizes}), {layout}" + (", broadcast" if leaf.broadcast else "")


def loose_lengths(leaf: Tensors, declaration: Declaration) -> tuple[int, ...]:
    """How many dimensions the `...` or `*s` of a tensor may stand for."""
    if leaf.shared:
        return dict(declaration.lengths)[leaf.shared]
    if not is_loose(leaf.parts):
        return (0,)
    return tuple(rank - len(leaf.parts) + 1 for rank in leaf.ranks)


def _size(part: Part, bounds: Mapping[str, Bound], fixed: Mapping[str, int]) -> str:
    if not isinstance(part, (Name, Shared)) or part.name not in {*bounds, *fixed}:
        return str(part)
    if part.name in fixed:
        return f"{part} = {fixed[part.name]}"
    bound = bounds[part.name]
    if bound.values:
        return f"{part} = {one_of(map(spell, bound.values))}"
    low = f"{bound.low} <= " if bound.low else ""
    return f"{low}{part}" + (f" <= {bound.high}" if bound.high is not None else "")


# The schema of an operator as torch sees it, with the values of its arguments.


def schema_of(entry: Entry) -> str:
    """`ops::silu(Tensor x) -> Tensor`; empty for a function in mode none."""
    return f"{entry.name}{entry.lowered.schema}" if entry.lowered is not None else ""


def schema_returns(entry: Entry) -> tuple[str, ...]:
    """The types that the operator returns: `("Tensor", "Tensor?")`."""
    return () if entry.lowered is None else tuple(r.schema_type() for r in entry.lowered.returns)


def schema_arguments(entry: Entry, merged: Merged) -> tuple[SchemaArgument, ...]:
    """The arguments of the operator, in order; empty for a function in mode none."""
    if entry.lowered is None:
        return ()
    params = {param.name: param for param in merged.params}
    made = []
    for argument in entry.lowered.arguments:
        values: tuple[Any, ...] = ()
        if isinstance(params.get(argument.name), ChoiceParam):
            values = merged.values[argument.name]
        elif argument.name not in params:
            values = (merged.constants[argument.name],)
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
    entry: Entry,
    choices: Mapping[str, tuple[Any, ...]],
    params: Sequence[Param],
    optional: Sequence[bool],
) -> tuple[str, tuple[SchemaArgument, ...], tuple[str, ...]]:
    """Schema, arguments and returns of an op's backward, from the parameters of its C function.

    `choices` has their values; `optional` are its outputs, true where some calls do not
    have one.
    """
    known = {argument.name: argument for argument in entry.flat().arguments}
    arguments = []
    for param in params:
        if isinstance(param, TensorParam):
            made = SchemaArgument(param.name, "Tensor?" if param.optional else "Tensor")
        else:
            argument, values = known[param.name], choices.get(param.name, ())
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
