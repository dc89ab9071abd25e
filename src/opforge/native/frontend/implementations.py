"""`native.implementations`: several ops behind one operator of a library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import BadDeclaration, BadSignature, OpforgeError
from ...model import FlatArgument, Lowered
from ...notebook import counted
from ...registry import Entry, registry
from ..ir.interface import ChoiceParam, Param, ScalarParam, TensorParam
from .alternatives import operator_of, refuse_left_out
from .c_parameters import Merged, merge
from .declare import caller, is_reloaded, located
from .store import Alternatives, alternatives_of, declarations_of, keep_alternatives

_FIX = (
    "give the functions the same parameters, in the same order and of the same kinds, "
    "as many outputs, and the same mutates_args"
)


def implementations(op: Any, /, *ops: Any) -> None:
    """Name the ops that implement an operator, in the order in which a call tries them.

        native.implementations(add, add_flat, add)

    Each has its own `native.declare`; all have the same signature. The operator itself stands
    in the order it should be tried; leave it out if it has no native.declare.
    """
    place = caller()
    with located(op, place) as entry:
        listed = tuple(registry.get(each) for each in ops)
        given = Alternatives(listed, **place)
        with registry.lock:
            _check_list(entry, given)
            refuse_left_out(entry, given)
            _check_signatures(entry, listed)
            if all(declarations_of(each) for each in listed):
                join(entry, listed)
            keep_alternatives(entry, given)


def join(operator: Entry, parts: Sequence[Entry]) -> Merged:
    """The parameters of the one C function; refuses declarations that disagree on them."""
    _check_signatures(operator, parts)
    merged = [_merged(part) for part in parts]
    for argument in parts[0].flat().arguments:
        _check_forms(operator, argument, list(zip(parts, merged, strict=True)))
    together = [d for part in parts for d in declarations_of(part)]
    return merge(parts[0].flat(), together)


def _merged(part: Entry) -> Merged:
    try:
        return merge(part.flat(), declarations_of(part))
    except OpforgeError as error:
        raise error.locate(part.name, part.location) from error.__cause__


def _check_list(entry: Entry, given: Alternatives) -> None:
    names = given.names
    for name in names:
        if names.count(name) > 1:
            raise BadDeclaration(f"{name} is listed twice", fix="name each op once")
    if not names:
        raise BadDeclaration(
            "no implementation is listed",
            fix="native.implementations(add, fast_add, add): the operator, then its "
            "implementations in the order in which they are tried",
        )
    old = alternatives_of(entry)
    if old is not None and old.names != names and not is_reloaded(old, given):
        raise BadDeclaration(
            "a different list of its implementations exists already",
            found=f"{', '.join(old.names)} at {old.location}",
            fix="list them all in one native.implementations call",
        )
    above = operator_of(entry)
    if above is not None:
        raise BadDeclaration(
            f"it implements {above.name} itself",
            found=_listed_at(above),
            fix=f"list all of them for {above.name}",
        )
    for part in given.entries:
        other = operator_of(part)
        if other is not None and other.name != entry.name:
            raise BadDeclaration(
                f"{part.name} implements {other.name} already",
                found=_listed_at(other),
                fix="an op implements one operator; write a second op that calls the same function",
            )
        if alternatives_of(part) is not None and part.name != entry.name:
            raise BadDeclaration(
                f"{part.name} is an operator with implementations of its own",
                found=_listed_at(part),
                fix="list those instead, and remove its native.implementations",
            )


def _listed_at(entry: Entry) -> str | None:
    listed = alternatives_of(entry)
    return None if listed is None else f"native.implementations at {listed.location}"


def _check_signatures(operator: Entry, parts: Sequence[Entry]) -> None:
    """Names, order, what is a tensor, what is written to, and the number of outputs."""
    wanted = operator.flat()
    for part in parts:
        found = part.flat()
        for one, other in zip(wanted.arguments, found.arguments, strict=False):
            difference = _difference(one, other)
            if difference:
                raise _different(operator, part, difference, one.path)
        count, others = len(wanted.arguments), len(found.arguments)
        if count != others:
            longer, name = (wanted, part.name) if count > others else (found, operator.name)
            extra = longer.arguments[min(count, others)].path
            shown = f"{name} has no such parameter"
            raise _different(operator, part, shown, extra)
        if len(wanted.returns) != len(found.returns):
            raise _different(
                operator,
                part,
                f"{operator.name} has {_outputs(wanted)}, and {part.name} {_outputs(found)}",
            )


def _difference(one: FlatArgument, other: FlatArgument) -> str:
    if one.name != other.name:
        return f"the parameter is called {other.path!r} there"
    if one.is_tensor != other.is_tensor or one.is_tensor_list != other.is_tensor_list:
        return f"the parameter is {one.type} here and {other.type} there"
    if one.mutated != other.mutated:
        here, there = ("changed", "only read") if one.mutated else ("only read", "changed")
        return f"the parameter is {here} here and {there} there"
    return ""


def _outputs(lowered: Lowered) -> str:
    return counted(len(lowered.returns), "output")


def _different(
    operator: Entry, part: Entry, what: str, parameter: str | None = None
) -> BadSignature:
    return BadSignature(
        f"{part.name} ({part.location}) cannot implement this operator: {what}",
        parameter=parameter,
        fix=_FIX,
        op=operator.name,
        location=operator.location,
    )


def _check_forms(
    operator: Entry, argument: FlatArgument, parts: Sequence[tuple[Entry, Merged]]
) -> None:
    """A scalar has the same C type in all implementations; the values of choices add up, and so do
    optional tensors.
    """
    forms = [(part, _form(argument.name, merged)) for part, merged in parts]
    scalar = next(((p, form) for p, form in forms if form.startswith("native.scalar")), None)
    other = next(((p, form) for p, form in forms if scalar and form != scalar[1]), None)
    if scalar is None or other is None:
        return
    both = (scalar, other)
    named = " and ".join(f"{part.name} ({part.location})" for part, _ in both)
    raise BadSignature(
        f"declarations of {named}, which implement it, give this parameter different C types",
        parameter=argument.path,
        found="; ".join(f"{form} at {_declared_at(part)}" for part, form in both),
        fix="declare it the same way for both; a parameter that is left out has its "
        "default for its only value",
        op=operator.name,
        location=operator.location,
    )


def _declared_at(entry: Entry) -> str:
    return ", ".join(declaration.location for declaration in declarations_of(entry))


def _form(name: str, merged: Merged) -> str:
    param: Param | None = next((p for p in merged.params if p.name == name), None)
    if isinstance(param, ScalarParam):
        return f"native.scalar({param.dtype!r})"
    if isinstance(param, ChoiceParam):
        return f"native.choice({', '.join(param.values)})"
    if isinstance(param, TensorParam):
        return "native.tensor(...)"
    return f"fixed at {merged.constants[name]!r}"
