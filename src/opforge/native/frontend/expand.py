"""Declarations -> cases: every combination of dtypes, ranks, choices and optionals, one trace each.

silu, x=native.tensor("...", dtype=("fp16", "fp32"), ranks=(1, 2)):

    fp16 (x.shape[0])    fp32 (x.shape[0])    fp16 (x.shape[0], x.shape[1])    fp32 ...
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import BadDeclaration, NotFound, OpforgeError
from ...model import Leaf, Lowered, Node, Signature, lowered_name
from ...registry import Entry, registry
from ..ir.cases import Bound, Case, TensorCase
from ..ir.expr import Var, variables
from ..ir.interface import Param, TensorParam
from ..ir.wording import spell
from .c_parameters import Merged, loose_lengths, merge, output_names
from .declaration import Choices, Declaration, Scalars, Tensors, declarations_of
from .dims import shape

# Each case is traced and compiled on its own; more than this would take a day to build.
MAX_CASES = 4096


@dataclass(frozen=True)
class Declared:
    """All declarations of an op together.

    A case has no entry for a choice below a record that is None.
    """

    params: tuple[Param, ...]
    outputs: tuple[str, ...]
    cases: tuple[Case, ...]
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


def expand(op: Any, joined: Merged | None = None) -> Declared:
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
        lowered = entry.flat()
        merged = joined or merge(lowered, declarations)
        outputs = output_names(lowered, merged.params)
    except OpforgeError as error:
        raise error.locate(entry.name, entry.location) from error.__cause__
    cases = [c for declaration in declarations for c in _cases(declaration, merged, outputs)]
    return Declared(
        merged.params,
        outputs,
        tuple(dict.fromkeys(cases)),
        merged.constants,
        merged.values,
        lowered.signature,
    )


def check_together(lowered: Lowered, declarations: Sequence[Declaration]) -> None:
    """Refuse declarations that no C function could serve."""
    merged = merge(lowered, declarations)
    output_names(lowered, merged.params)
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


# One choice for one axis: "T" -> "fp16", "x" -> (2, "fp16"), "mode" -> 1.
_Chosen = dict[str, Any]


def _axes(declaration: Declaration, merged: Merged) -> dict[str, list[Any]]:
    """What multiplies into cases: the options of each type variable, `*s`, tensor and choice."""
    axes: dict[str, list[Any]] = {letter: list(types) for letter, types in declaration.types}
    axes |= {f"*{name}": list(lengths) for name, lengths in declaration.lengths}
    for name, leaf in declaration.leaves:
        if isinstance(leaf, Tensors):
            axes[name] = _options(leaf, declaration)
        elif isinstance(leaf, Choices) and name in merged.values:
            written = [spell(value) for value in merged.values[name]]
            axes[name] = [written.index(text) for text in leaf.written]
    return axes


def _cases(declaration: Declaration, merged: Merged, outputs: tuple[str, ...]) -> Iterator[Case]:
    axes = _axes(declaration, merged)
    optionals = {p.name for p in merged.params if isinstance(p, TensorParam)}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        case = _case(declaration, merged, optionals, chosen)
        yield replace(case, returns=_returns(declaration, outputs, chosen))


def _options(leaf: Tensors, declaration: Declaration) -> list[tuple[int | None, str] | None]:
    """(length of the `...`, dtype) pairs; None where `*s` or a type variable decides."""
    lengths = (None,) if leaf.shared else loose_lengths(leaf, declaration)
    dtypes = ("",) if leaf.variable else leaf.dtypes
    options: list[tuple[int | None, str] | None] = list(itertools.product(lengths, dtypes))
    return [*options, None] if leaf.optional else options


def _case(declaration: Declaration, merged: Merged, optionals: set[str], chosen: _Chosen) -> Case:
    tensors, choices = [], []
    bounds = {bound.var: bound for bound in declaration.bounds}
    used: dict[str, Bound] = {}
    for name, leaf in declaration.leaves:
        if isinstance(leaf, Tensors):
            tensors.append(_tensor(name, leaf, declaration, chosen))
        elif name in merged.values:
            if name in chosen:
                choices.append((name, chosen[name]))
        elif isinstance(leaf, Scalars):
            used |= {name: bounds[name]} if name in bounds else {}
        elif name in optionals:
            tensors.append(TensorCase(name, present=False))
    for tensor in tensors:
        for term in tensor.shape:
            for var in variables(term):
                # The sizes s[0], s[1] of `*s` have the bounds of s.
                known = bounds.get(var.name) or bounds.get(var.name.partition("[")[0])
                used[var.name] = replace(known or Bound(var.name), var=var.name)
    return Case(tuple(tensors), tuple(choices), tuple(used.values()))


def _tensor(name: str, leaf: Tensors, declaration: Declaration, chosen: _Chosen) -> TensorCase:
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


def _returns(
    declaration: Declaration, outputs: tuple[str, ...], chosen: _Chosen
) -> tuple[TensorCase, ...]:
    said = zip(outputs, declaration.returns, strict=False)
    return tuple(
        _tensor(name, leaf, declaration, {**chosen, name: (0, leaf.dtypes[0])})
        for name, leaf in said
        if leaf is not None
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
