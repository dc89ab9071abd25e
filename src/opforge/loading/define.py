"""Defines an operator from a library's manifest: its schema, fake and mutations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _compat
from ..explain import explain_op, info_of_registration
from ..lowering.plan import lower_given
from ..model import Decision, Discovery, Lowered, OpInfo, Reading
from ..native.ir.interface import Op
from ..registration.fake import FakeRule
from ..registration.register import Definition, Registration, register
from ..registration.transparent import Transparency
from ..registry import Entry, registry
from .arguments import unflat
from .formula import Formula


def define(
    op: Op,
    body: Callable[..., Any],
    fake: Callable[..., Any],
    file: str,
    defined: _compat.DefinedOp | None = None,
) -> Entry:
    """Register an op that is opaque to the compiler, and that its source may take over.

    `defined`: torch already knows the schema.
    """
    lowered = _lowered(op)
    decision = Decision("custom_op", f"it was defined from {file}, without its source")
    reading = Reading(decision, Discovery(), Discovery())
    formula = Formula(op) if op.formula else None
    fake_fn = _function(op, fake, f"<fake of {op.torch_name} in {file}>")
    definition = Definition(
        name=op.torch_name,
        location=file,
        fn=_function(op, body, f"<{op.torch_name} in {file}>"),
        lowered=lowered,
        fake=FakeRule(op.torch_name, file, lowered, given=fake_fn),
        transparency=Transparency(op.torch_name, file, lowered, lambda: reading, first=reading),
        backward=formula.backward if formula else None,
        setup_context=formula.save if formula else None,
    )
    with registry.lock:
        entry = _entry(register(definition, defined))
        registry.add(entry)
    return entry


def _lowered(op: Op) -> Lowered:
    schema = op.schema.removeprefix(op.torch_name)
    parsed = _compat.parse_schema(op.schema)
    kinds = {
        a.name: "keyword-only" if a.keyword_only else "positional-or-keyword" for a in op.arguments
    }
    # As kernels get them: torch parses a dtype to a number.
    defaults = {a.name: unflat(a.default[0]) for a in op.arguments if a.default}
    returns = [kind for kind, _ in _compat.parsed_returns(parsed)]
    arguments = _compat.parsed_arguments(parsed)
    return lower_given(schema, kinds, arguments, defaults, returns)


def _function(op: Op, target: Callable[..., Any], filename: str) -> Any:
    """A function with the operator's parameters and defaults, which passes them to `target`."""
    namespace: dict[str, Any] = {"_of_target": target}
    parameters, passed = [], []
    for argument in op.arguments:
        if argument.keyword_only and "*" not in parameters:
            parameters.append("*")
        default = ""
        if argument.default:
            namespace[f"_of_default_{argument.name}"] = unflat(argument.default[0])
            default = f"=_of_default_{argument.name}"
        parameters.append(f"{argument.name}{default}")
        by_name = f"{argument.name}=" if argument.keyword_only else ""
        passed.append(f"{by_name}{argument.name}")
    head, call = f"def _of_operator({', '.join(parameters)}):", f"_of_target({', '.join(passed)})"
    text = f"{head}\n    return {call}\n"
    exec(compile(text, filename, "exec"), namespace)  # noqa: S102 - our own text
    made = namespace["_of_operator"]
    made.__doc__ = op.doc or op.schema
    return made


def _entry(registration: Registration) -> Entry:
    definition = registration.definition

    def describe() -> OpInfo:
        return info_of_registration(registration)

    def explain() -> str:
        fake = f"from the manifest of {definition.location}"
        backward = f"carried by {definition.location}"
        return explain_op(describe(), definition, fake=fake, backward=backward)

    return Entry(
        name=definition.name,
        handle=registration.handle,
        overload=registration.overload,
        fn=definition.fn,
        location=definition.location,
        definition_pass=None,
        describe=describe,
        explain=explain,
        undo=registration.undo,
        lowered=definition.lowered,
        registered=registration,
        stands_in=True,
    )
