"""Declarations -> what C gets of an op: parameters, outputs and cases; and torch's schema of it.

A case is one combination of dtypes, ranks, choices and optionals, and is traced by itself. silu,
x=native.tensor("...", dtype=("fp16", "fp32"), ranks=(1, 2)):

    fp16 (x.shape[0])    fp32 (x.shape[0])    fp16 (x.shape[0], x.shape[1])    fp32 ...
"""

from __future__ import annotations

import enum
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import BadDeclaration, BadSignature, NotFound, OpforgeError, WrongArgument
from ...model import MISSING, FlatArgument, Leaf, Lowered, Node, Record, Signature, lowered_name
from ...registry import Entry, registry
from ..ir.cases import Bound, Case, TensorCase
from ..ir.expr import Var, variables
from ..ir.interface import ChoiceParam, Flat, Param, ScalarParam, SchemaArgument, TensorParam
from ..ir.wording import one_of, spell
from .declaration import (
    Choices,
    Declaration,
    LeafDeclaration,
    Scalars,
    Tensors,
    choices,
    declarations_of,
)
from .dims import Part, is_loose, name_of, shape

# Each case is traced and compiled on its own; more than this would take a day to build.
MAX_CASES = 4096


@dataclass(frozen=True)
class Declared:
    """All declarations of an op together; `merge` leaves the cases to `expand`.

    A case has no entry for a choice below a record that is None.
    """

    params: tuple[Param, ...]
    outputs: tuple[str, ...]
    cases: tuple[Case, ...] = ()
    # `constants` by leaf: what C callers do not pass. `values` by choice, in the order of labels.
    constants: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    signature: Signature = field(default=Signature((), None), repr=False)

    def arguments(
        self, case: Case, leaves: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call of the op's function for a case: `fn(*args, **kwargs)`.

        `leaves` has a value for each scalar and each present tensor, by C parameter; choices,
        constants, absent tensors and records are filled in here.
        """
        chosen = dict(case.choices)
        absent = {tensor.param for tensor in case.tensors if not tensor.present}

        def value_of(name: str) -> Any:
            if name in self.constants:
                return self.constants[name]
            if name in self.values:
                return self.values[name][chosen[name]]
            return None if name in absent else leaves[name]

        return self.rebuilt(value_of)

    def rebuilt(self, value_of: Callable[[str], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call of the op's function, from a value for each leaf by its flat name."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self.signature.parameters:
            value = _rebuild(parameter.node, value_of)
            if parameter.keyword_only:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        return tuple(args), kwargs


def expand(op: Any, joined: Declared | None = None) -> Declared:
    """The parameters, the outputs and all cases of an op, or of its registry entry.

    `joined` has the parameters of the C function where other ops implement it too.
    """
    entry = op if isinstance(op, Entry) else registry.get(op)
    declarations = declarations_of(entry)
    if not declarations:
        raise NotFound(
            "this op has no native.declare, so there is nothing to build",
            fix="native.declare(op, x=native.tensor(...), ...) in the module that defines it",
            op=entry.name,
            location=entry.location,
        )
    try:
        declared = merge(entry.flat(), declarations, joined)
    except OpforgeError as error:
        raise error.locate(entry.name, entry.location) from error.__cause__
    cases = [case for declaration in declarations for case in _cases(declaration, declared)]
    return replace(declared, cases=tuple(dict.fromkeys(cases)))


def check_together(lowered: Lowered, declarations: Sequence[Declaration]) -> None:
    """Refuse declarations that no C function could serve."""
    merged = merge(lowered, declarations)
    every = [_axes(declaration, merged) for declaration in declarations]
    total = sum(math.prod(map(len, axes.values())) for axes in every)
    if total > MAX_CASES:
        factors = {name: len(options) for name, options in every[-1].items() if len(options) > 1}
        largest = max(factors, key=lambda name: factors[name])
        listed = ", ".join(f"{name}: {count}" for name, count in factors.items())
        raise BadDeclaration(
            f"{total} cases, more than {MAX_CASES}: each combination of dtypes, ranks and choices "
            "is traced and compiled by itself",
            found=f"{listed}; these multiply",
            fix=f"declare fewer values for {largest}; several declare calls, each with the "
            "combinations you need, add up instead of multiplying; a type variable ties "
            "the dtypes of parameters together",
        )


def _axes(declaration: Declaration, declared: Declared) -> dict[str, list[Any]]:
    """What multiplies into cases: the options of each type variable, `*s`, tensor and choice."""
    axes: dict[str, list[Any]] = {letter: list(types) for letter, types in declaration.types}
    axes |= {f"*{name}": list(lengths) for name, lengths in declaration.lengths}
    for name, leaf in declaration.leaves:
        if isinstance(leaf, Tensors):
            axes[name] = _options(leaf, declaration)
        elif isinstance(leaf, Choices) and name in declared.values:
            written = [spell(value) for value in declared.values[name]]
            axes[name] = [written.index(text) for text in leaf.written]
    return axes


def _options(leaf: Tensors, declaration: Declaration) -> list[tuple[int | None, str] | None]:
    """(length of the `...`, dtype) pairs; None where `*s` or a type variable decides."""
    lengths = (None,) if leaf.shared else _loose_lengths(leaf, declaration)
    dtypes = ("",) if leaf.variable else leaf.dtypes
    options: list[tuple[int | None, str] | None] = list(itertools.product(lengths, dtypes))
    return [*options, None] if leaf.optional else options


def _cases(declaration: Declaration, declared: Declared) -> Iterator[Case]:
    axes = _axes(declaration, declared)
    optionals = {param.name for param in declared.params if isinstance(param, TensorParam)}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        tensors = []
        for name, leaf in declaration.leaves:
            if isinstance(leaf, Tensors):
                tensors.append(_tensor(name, leaf, declaration, chosen))
            elif name in optionals:
                tensors.append(TensorCase(name, present=False))
        choices = [
            (name, chosen[name])
            for name, _ in declaration.leaves
            if name in declared.values and name in chosen
        ]
        returns = [
            _tensor(name, leaf, declaration, {**chosen, name: (0, leaf.dtypes[0])})
            for name, leaf in zip(declared.outputs, declaration.returns, strict=False)
            if leaf is not None
        ]
        bounds = _bounds(declaration, tensors)
        yield Case(tuple(tensors), tuple(choices), bounds, returns=tuple(returns))


def _bounds(declaration: Declaration, tensors: Sequence[TensorCase]) -> tuple[Bound, ...]:
    """The bounds of a case's scalars and of all of its sizes."""
    bounds = {bound.var: bound for bound in declaration.bounds}
    scalars = [name for name, leaf in declaration.leaves if isinstance(leaf, Scalars)]
    used = {name: bounds[name] for name in scalars if name in bounds}
    for tensor in tensors:
        for term in tensor.shape:
            for var in variables(term):
                # The sizes s[0], s[1] of `*s` have the bounds of s.
                bound = bounds.get(var.name) or bounds.get(var.name.partition("[")[0])
                used[var.name] = replace(bound or Bound(var.name), var=var.name)
    return tuple(used.values())


def _tensor(
    name: str, leaf: Tensors, declaration: Declaration, chosen: Mapping[str, Any]
) -> TensorCase:
    option = chosen[name]
    if option is None:
        return TensorCase(name, present=False)
    length, dtype = option
    if leaf.shared:
        length = chosen[f"*{leaf.shared}"]
    sizes = shape(leaf.parts, name, length, dict(declaration.fixed))
    strides = tuple(Var(f"{name}.stride[{i}]") for i in range(len(sizes)))
    return TensorCase(
        name,
        dtype=chosen[leaf.variable] if leaf.variable else dtype,
        shape=sizes,
        strides=strides if leaf.strided else None,
    )


def _rebuild(node: Node, value_of: Callable[[str], Any]) -> Any:
    """A parameter as the body receives it, from its leaves' values by flat name."""
    if isinstance(node, Leaf):
        value = value_of(node.name)
        # Kept as tuples, because a body may change a list that it receives.
        return list(value) if node.container == "list" and value is not None else value
    if node.optional and not value_of(lowered_name(node.present_path)):
        return None
    return node.holding([_rebuild(item.node, value_of) for item in node.fields])


def merge(
    lowered: Lowered, declarations: Sequence[Declaration], joined: Declared | None = None
) -> Declared:
    """The C function's parameters, in the order of the op's flat arguments, and its outputs.

    Where other ops implement it too, `joined` has the parameters.
    """
    if joined is not None:
        outputs = _output_names(lowered, joined.params)
        return replace(joined, outputs=outputs, signature=lowered.signature)
    params: list[Param] = []
    values: dict[str, tuple[Any, ...]] = {}
    constants: dict[str, Any] = {}
    tables = [(declaration, dict(declaration.leaves)) for declaration in declarations]
    groups = _groups(lowered, declarations)
    for argument in lowered.arguments:
        said = [(declaration, table[argument.name]) for declaration, table in tables]
        if any(isinstance(leaf, Tensors) for _, leaf in said):
            params.append(_tensor_param(argument, said, groups.get(argument.name, 0)))
        elif any(isinstance(leaf, Scalars) for _, leaf in said):
            params.append(_scalar_param(argument, said))
        else:
            listed = [leaf for _, leaf in said if isinstance(leaf, Choices)]
            asked = any(leaf.asked for leaf in listed)
            union = choices(value for leaf in listed for value in leaf.values)
            if asked or len(union.values) > 1:
                param, values[argument.name] = _choice_param(argument, union)
                params.append(param)
            else:
                # A leaf without a value stands below a record that is always None.
                constants[argument.name] = union.values[0] if union.values else None
    outputs = _output_names(lowered, params)
    return Declared(tuple(params), outputs, (), constants, values, lowered.signature)


def _output_names(lowered: Lowered, params: Sequence[Param]) -> tuple[str, ...]:
    """`out`, or `out0`, `out1`, ..., or the fields; with underscores where a parameter has one."""
    names = []
    for i, leaf in enumerate(lowered.returns):
        if not leaf.is_tensor or leaf.container:
            kind = f"a {leaf.container} of tensors" if leaf.is_tensor else "a number"
            raise BadSignature(
                f"the op returns {kind}, which a C function cannot return",
                parameter=leaf.path,
                fix="return individual tensors: Tensor, Tensor | None, or a tuple, NamedTuple "
                "or frozen dataclass of them",
            )
        # `0` -> out0, `1.0` -> out1, `value` -> value, `0.value` -> out0__value
        path = leaf.path.removeprefix("return").removeprefix(".")
        if path.strip("0123456789."):
            names.append(f"{'out' if path[0].isdigit() else ''}{lowered_name(path)}")
        else:
            names.append(f"out{i}")
    names = ["out"] if names == ["out0"] else names
    taken = {param.name for param in params}
    while taken & set(names):
        names = [f"{name}_" for name in names]
    return tuple(names)


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


# What the declarations say of an argument.
_Said = Sequence[tuple[Declaration, LeafDeclaration]]


def _tensor_param(argument: FlatArgument, said: _Said, group: int) -> TensorParam:
    tensors = [(leaf, declaration) for declaration, leaf in said if isinstance(leaf, Tensors)]
    optional = len(tensors) < len(said) or any(leaf.optional for leaf, _ in tensors)
    text = "; or ".join(dict.fromkeys(_describe(*each) for each in tensors))
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


def _scalar_param(argument: FlatArgument, said: _Said) -> ScalarParam:
    kinds: dict[str, str] = {}
    for declaration, leaf in said:
        if isinstance(leaf, Scalars):
            kinds[f"native.scalar({leaf.dtype!r})"] = declaration.location
        elif isinstance(leaf, Choices):
            values = ", ".join(leaf.written)
            kind = f"native.choice({values})" if leaf.asked else f"fixed at {values}"
            kinds[kind] = declaration.location
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


def _choice_param(argument: FlatArgument, union: Choices) -> tuple[ChoiceParam, tuple[Any, ...]]:
    """A parameter that is a choice, and its values."""
    codec = None if argument.leaf is None else argument.leaf.codec
    cls, enum_name = None if codec is None else codec.cls, ""
    if cls is not None:
        others = [value for value in union.values if not isinstance(value, cls)]
        if others in ([], [None]):
            # All members, so that all parameters of the type share one enum.
            union, enum_name = choices([*cls, *others]), cls.__name__
    labels: list[str] = []
    for value in union.values:
        label = stem = _label(value)
        count = 1
        while label in labels:
            count += 1
            label = f"{stem}_{count}"
        labels.append(label)
    doc = one_of(union.written)
    param = ChoiceParam(argument.name, tuple(labels), union.written, doc, enum_name)
    return param, union.values


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
    found = leaf.ranks or [length + beside for length in _loose_lengths(leaf, declaration)]
    ranks = one_of([f"{rank}-d" for rank in found])
    dtypes = one_of(leaf.dtypes) + (f" ({leaf.variable})" if leaf.variable else "")
    layout = "any strides" if leaf.strided else "compact"
    return f"{dtypes}, {ranks} ({sizes}), {layout}" + (", broadcast" if leaf.broadcast else "")


def _loose_lengths(leaf: Tensors, declaration: Declaration) -> tuple[int, ...]:
    """How many dimensions the `...` or `*s` of a tensor may stand for."""
    if leaf.shared:
        return dict(declaration.lengths)[leaf.shared]
    if not any(map(is_loose, leaf.parts)):
        return (0,)
    return tuple(rank - len(leaf.parts) + 1 for rank in leaf.ranks)


def _size(part: Part, bounds: Mapping[str, Bound], fixed: Mapping[str, int]) -> str:
    name = name_of(part)
    if name in fixed:
        return f"{part} = {fixed[name]}"
    if name not in bounds:
        return str(part)
    bound = bounds[name]
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


def schema_arguments(entry: Entry, declared: Declared) -> tuple[SchemaArgument, ...]:
    """The arguments of the operator, in order; empty for a function in mode none."""
    if entry.lowered is None:
        return ()
    passed = {param.name for param in declared.params}
    made = []
    for argument in entry.lowered.arguments:
        fixed = argument.name not in passed
        values = declared.values.get(argument.name, ())
        made.append(
            SchemaArgument(
                argument.name,
                argument.type,
                _carried(argument, (declared.constants[argument.name],) if fixed else values),
                fixed=fixed,
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
            argument = known[param.name]
            carried = _carried(argument, choices.get(param.name, ()))
            made = SchemaArgument(param.name, argument.type, carried)
        arguments.append(made)
    returns = tuple("Tensor?" if may_be_none else "Tensor" for may_be_none in optional)
    listed = ", ".join(f"{argument.type} {argument.name}" for argument in arguments)
    given = returns[0] if len(returns) == 1 else f"({', '.join(returns)})"
    return f"{entry.name}_backward({listed}) -> {given}", tuple(arguments), returns


def _carried(argument: FlatArgument, values: Sequence[Any]) -> tuple[Flat, ...]:
    """The schema's values for the user's: `Rounding.UP` -> "up"."""
    codec = argument.leaf.codec if argument.leaf is not None else None
    return tuple(_flat(v if codec is None or v is None else codec.encode(v)) for v in values)


def _flat(value: Any) -> Flat:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return ("list", *(_flat(item) for item in value))
    # A dtype, a layout, a memory format or a device.
    return (type(value).__name__, str(value).removeprefix("torch."))
