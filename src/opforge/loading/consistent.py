"""Refuses a manifest whose parts contradict each other, before torch hears of any.

Every field is of its type by then; here the arguments are compared with the schema, and what
refers to something else is followed to it.
"""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from typing import Any

import torch

from .. import _compat
from ..errors import BadName, first_line
from ..naming import check_name
from ..native.ir.cases import Case, Output, TensorCase
from ..native.ir.expr import constants, is_float
from ..native.ir.interface import ChoiceParam, Flat, Op, SchemaArgument, TensorParam
from ..records import BadField, shown

# What `frontend.torch_schema` writes of values that JSON has no form for.
_TORCH_KINDS: dict[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def refuse_contradictions(op: Op) -> None:
    """Raise `BadField` for an operator that could not be defined, or not be called."""
    parsed = _parsed(op)
    written = _compat.parsed_arguments(parsed)
    _match("arguments", [a.name for a in op.arguments], [a[0] for a in written])
    for index, (argument, found) in enumerate(zip(op.arguments, written, strict=True)):
        _check_argument(argument, found, f"arguments[{index}]")
    _check_params(op, {a[0]: a[1] for a in written})
    returns = _compat.parsed_returns(parsed)
    if not any(is_alias for _, is_alias in returns) and len(op.returns) != len(returns):
        raise BadField(f"has {len(op.returns)} types, and the schema {len(returns)}", "returns")
    if op.formula and len(op.formula) != len(op.arguments):
        what = f"has {len(op.formula)} terms for {len(op.arguments)} arguments"
        raise BadField(what, "formula")
    for index, term in enumerate(op.formula):
        if term is not None:
            _check_gradient(term, op, f"formula[{index}]")


def refuse_contradictory_cases(op: Op, cases: Sequence[Case]) -> None:
    """Raise `BadField` for cases from which no fake could be made; read where one is needed."""
    tensors = {param.name for param in op.params if isinstance(param, TensorParam)}
    for index, case in enumerate(cases):
        for number, tensor in enumerate(case.tensors):
            place = f"cases[{index}].tensors[{number}]"
            if tensor.param not in tensors:
                raise BadField(f"is {shown(tensor.param)}, which is not a tensor", f"{place}.param")
            _check_strides(tensor, place)
        for number, path in enumerate(case.paths):
            place = f"cases[{index}].paths[{number}]"
            if not path.refused and len(path.outputs) != len(op.outputs):
                what = f"are {len(path.outputs)}, expected {len(op.outputs)}"
                raise BadField(what, f"{place}.outputs")
            for which, output in enumerate(path.outputs):
                if output is not None:
                    _check_output(output, f"{place}.outputs[{which}]")


def _check_strides(tensor: TensorCase | Output, place: str) -> None:
    if tensor.strides is not None and len(tensor.strides) != len(tensor.shape):
        what = f"are {len(tensor.strides)}, expected {len(tensor.shape)}"
        raise BadField(what, f"{place}.strides")


def _check_output(output: Output, place: str) -> None:
    _check_strides(output, place)
    for key, terms in (("shape", output.shape), ("strides", output.strides)):
        for index, term in enumerate(terms):
            if is_float(term) or any(abs(number) >= 2**63 for number in constants(term)):
                what = f"is {shown(str(term))}, expected an integer of 64 bits"
                raise BadField(what, f"{place}.{key}[{index}]")


def _parsed(op: Op) -> Any:
    try:
        check_name(op.torch_name)
    except BadName as error:
        raise BadField(f"cannot be used: {error.what}", "torch_name") from None
    if not op.schema.startswith(f"{op.torch_name}("):
        raise BadField(f"is {shown(op.schema)}, expected that of {op.torch_name}", "schema")
    try:
        return _compat.parse_schema(op.schema)
    except (RuntimeError, TypeError) as error:
        # A TypeError where it has characters that UTF-8 cannot hold.
        raise BadField(f"cannot be parsed: {first_line(error)}", "schema") from None


def _match(place: str, found: Sequence[str], expected: Sequence[str]) -> None:
    if found != expected:
        listed = ", ".join(expected) or "none"
        raise BadField(f"are {shown(', '.join(found))}, and the schema has {listed}", place)


def _check_argument(
    argument: SchemaArgument, written: tuple[str, str, bool, bool, bool], place: str
) -> None:
    name, _, has_default, keyword_only, _ = written
    if keyword.iskeyword(name) or not name.isidentifier():
        raise BadField(f"is {name!r}, which no parameter can be called", f"{place}.name")
    if argument.keyword_only != keyword_only:
        what = f"is {argument.keyword_only}, unlike in the schema"
        raise BadField(what, f"{place}.keyword_only")
    if len(argument.default) != int(has_default):
        what = f"has {len(argument.default)} values, expected {int(has_default)}"
        raise BadField(what, f"{place}.default")
    for key, values in (("values", argument.values), ("default", argument.default)):
        for index, value in enumerate(values):
            _check_flat(value, f"{place}.{key}[{index}]")


def _check_flat(value: Flat, place: str) -> None:
    if not isinstance(value, tuple):
        return
    kind, *rest = value
    if kind == "list":
        for index, item in enumerate(rest):
            _check_flat(item, f"{place}[{index + 1}]")
        return
    named = rest[0] if len(rest) == 1 else None
    if not isinstance(named, str) or not _is_torchs(str(kind), named):
        raise BadField(f"is {_told(value)}, which is not a value of torch", place)


def _is_torchs(kind: str, name: str) -> bool:
    if kind == "device":
        try:
            torch.device(name)
        except (RuntimeError, TypeError, UnicodeError):
            return False
        return True
    return kind in _TORCH_KINDS and isinstance(vars(torch).get(name), _TORCH_KINDS[kind])


def _check_params(op: Op, types: dict[str, str]) -> None:
    """Each parameter of the C function gets an argument, and no argument is lost."""
    arguments = {argument.name: argument for argument in op.arguments}
    named = [param.name for param in op.params]
    for index, param in enumerate(op.params):
        place = f"params[{index}].name"
        argument = arguments.get(param.name)
        if argument is None or argument.fixed or named.index(param.name) != index:
            raise BadField(f"is {shown(param.name)}, which no argument is passed to", place)
        is_tensor = types[param.name] in {"Tensor", "Optional[Tensor]"}
        if is_tensor != isinstance(param, TensorParam):
            what = f"is {shown(param.name)}, of which the schema says {types[param.name]}"
            raise BadField(what, place)
    counts = {p.name: len(p.values) for p in op.params if isinstance(p, ChoiceParam)}
    for index, argument in enumerate(op.arguments):
        if argument.name not in named and not argument.fixed:
            what = f"is {argument.fixed}, and no parameter is called {argument.name}"
            raise BadField(what, f"arguments[{index}].fixed")
        expected = 1 if argument.fixed else counts.get(argument.name)
        if expected is not None and len(argument.values) != expected:
            what = f"are {len(argument.values)}, expected {expected}"
            raise BadField(what, f"arguments[{index}].values")


def _check_gradient(term: Flat, op: Op, place: str) -> None:
    if not isinstance(term, tuple) or term[0] == "value":
        raise BadField(f"is {_told(term)}, expected a term or null", place)
    _check_term(term, op, place)


def _check_term(term: Flat, op: Op, place: str) -> None:
    """As `frontend.backward_formula` writes them."""
    kind, *rest = term if isinstance(term, tuple) else (None,)
    sizes = {
        "grad": len(op.returns),
        "output": len(op.returns),
        "input": len(op.arguments),
    }
    if kind in sizes:
        is_fine = len(rest) == 1 and _is_index(rest[0], sizes[str(kind)])
    elif kind == "value":
        is_fine = len(rest) == 1
        if is_fine:
            _check_flat(rest[0], f"{place}[1]")
    elif kind == "item":
        is_fine = len(rest) == 2 and _is_call(rest[0]) and _is_index(rest[1])
        if is_fine:
            _check_term(rest[0], op, f"{place}[1]")
    else:
        is_fine = _is_call(term)
        for index, argument in enumerate(rest[1:] if is_fine else ()):
            _check_term(argument, op, f"{place}[{index + 2}]")
    if not is_fine:
        raise BadField(f"is {_told(term)}, expected a term", place)


def _told(value: Flat) -> str:
    """As it stands in the manifest, but for what is inside."""
    return shown(list(value) if isinstance(value, tuple) else value)


def _is_call(term: Flat) -> bool:
    if not isinstance(term, tuple) or len(term) < 2 or term[0] != "call":
        return False
    try:
        check_name(str(term[1]))
    except BadName:
        return False
    return True


def _is_index(value: Flat, size: int = 1000) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size
