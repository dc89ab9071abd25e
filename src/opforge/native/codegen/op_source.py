"""The C file of one operator."""

from __future__ import annotations

from bisect import bisect_left

from ..ir.device_attributes import PREFIX
from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Op, ScalarParam, TensorParam
from .case_table import case_row
from .coverage_text import guards, source
from .names import comment, quoted
from .pool import Pool
from .scope import OpScope
from .signature import CSignature


def operation_source(op: Op, library: str, kernels: dict[str, str]) -> str:
    """`src/op_silu.c`: tables, the functions over sizes, and the functions of the API."""
    scope = OpScope(op)
    pool = Pool()
    signature = CSignature(library, op)
    rows = [case_row(scope, pool, kernels, i) for i in range(len(op.cases))]
    operation = _operation(scope, pool, signature, rows)
    named = f"{op.torch_name or op.name}{f' ({op.location})' if op.location else ''}"
    parts = [
        f"/* {signature.function}: {comment(named)}. Written by opforge. */",
        '#include "runtime.h"\n\n#include "kernels.h"\n\n#include <string.h>',
        _values(scope),
        *pool.definitions,
        operation,
        _call(scope, signature),
        _call(scope, signature, forced=True),
    ]
    if op.outputs:
        parts.append(_outputs(scope, signature))
        parts.append(_outputs(scope, signature, forced=True))
    parts.append(
        f"{signature.implementations()}\n{{\n    return of_implementations(&operation, list);\n}}"
    )
    return "\n\n".join(parts) + "\n"


def _values(scope: OpScope) -> str:
    members = [
        f"    {'double' if scope.is_float(name) else 'int64_t'} {field};"
        + (f" /* {comment(name)} */" if name != field else "")
        for name, field in scope.fields.items()
    ]
    members = members or ["    int none;"]
    head = "/* The sizes and scalars of a call. */"
    return "\n".join([head, "typedef struct {", *members, "} Values;"])


def _operation(scope: OpScope, pool: Pool, signature: CSignature, cases: list[str]) -> str:
    tensors = [f"{{{quoted(p.name)}, {_flags(p)}}}" for p in scope.inputs]
    tensors += [f"{{{quoted(name)}, OF_OUTPUT | OF_OPTIONAL}}" for name in scope.op.outputs]
    choices = []
    for choice in scope.choices:
        labels = pool.array("char *const", "labels", [quoted(label) for label in choice.labels])
        choices.append(f"{{{quoted(choice.name)}, {len(choice.labels)}, {labels}}}")
    fields = scope.fields
    wide = [f"{{{quoted(n)}, offsetof(Values, {fields[n]}), 0}}" for n in scope.unsigned()]
    offsets = [f"offsetof(Values, {fields[name]})" for name in scope.attributes]
    asked = [f"OF_DEVICE_{name.removeprefix(PREFIX).upper()}" for name in scope.attributes]
    served = [
        f"{{{quoted(one.name)},\n     {quoted(source(one))},\n     {quoted(guards(scope.op, i))}}}"
        for i, one in enumerate(scope.op.served_by)
    ]
    cells = [
        quoted(signature.function),
        f"{len(served)}, {pool.array('OpforgeImplementation', 'implementations', served)}, "
        + pool.array("int", "first_cases", _first_cases(scope)),
        f"{len(scope.inputs)}, {len(scope.op.outputs)}, "
        + pool.array("TensorInfo", "tensors", tensors),
        f"{len(choices)}, {pool.array('ChoiceInfo', 'choices', choices)}",
        f"{len(wide)}, {pool.array('Field', 'wide', wide)}",
        f"{len(asked)}, {pool.array('size_t', 'attribute_offsets', offsets)}, "
        + pool.array("int", "attributes", asked),
        f"{len(cases)}, {pool.array('Case', 'cases', cases)}",
    ]
    rows = "\n".join(f"    {cell}," for cell in cells)
    return f"static const Operation operation = {{\n{rows}\n}};"


def _first_cases(scope: OpScope) -> list[str]:
    """Where the cases of each implementation begin, and where the last one's end."""
    whose = [case.implementation for case in scope.op.cases]
    if whose != sorted(whose):
        raise scope.error("its cases are not in the order of its implementations")
    return [str(bisect_left(whose, i)) for i in range(len(scope.op.served_by) + 1)]


def _flags(param: TensorParam) -> str:
    flags = [
        *(["OF_WRITTEN"] if param.written else []),
        *(["OF_OPTIONAL"] if param.optional else []),
        *(["OF_BROADCAST"] if param.broadcast else []),
        *([f"OF_GROUP({param.group})"] if param.group else []),
    ]
    return " | ".join(flags) or "0"


def _gathered(names: list[str], kind: str, array: str, cast: str = "") -> tuple[str, str]:
    """An array of arguments, and the expression that hands it on."""
    if not names:
        return "", "NULL"
    return f"    {kind} {array}[] = {{{', '.join(cast + n for n in names)}}};\n", array


def _scalars(scope: OpScope, signature: CSignature) -> str:
    lines = ["    memset(&of_values, 0, sizeof of_values);"]
    for param in scope.op.params:
        if isinstance(param, ScalarParam):
            given = signature.names[param.name]
            if param.dtype == "i1":
                given = f"{given} != 0"
            elif DTYPES[param.dtype].name == "u64":
                given = f"(int64_t){given}"
            lines.append(f"    of_values.{scope.fields[param.name]} = {given};")
    return "\n".join(lines)


def _call(scope: OpScope, signature: CSignature, *, forced: bool = False) -> str:
    tensors = [signature.names[name] for name in scope.tensors]
    choices = [signature.names[p.name] for p in scope.op.params if isinstance(p, ChoiceParam)]
    given, given_name = _gathered(tensors, "const OpforgeTensor *const", "of_given")
    chosen, chosen_name = _gathered(choices, "const int", "of_choices", "(int)")
    return (
        f"{signature.call(forced=forced)}\n{{\n{given}{chosen}    Values of_values;\n"
        f"{_scalars(scope, signature)}\n"
        f"    return {_runtime('of_call', forced=forced)}"
        f"{given_name}, {chosen_name}, &of_values, stream);\n}}"
    )


def _runtime(function: str, *, forced: bool) -> str:
    return f"{function}_with(&operation, implementation, " if forced else f"{function}(&operation, "


def _outputs(scope: OpScope, signature: CSignature, *, forced: bool = False) -> str:
    inputs = [signature.names[p.name] for p in scope.inputs]
    outputs = [signature.names[name] for name in scope.op.outputs]
    choices = [signature.names[p.name] for p in scope.op.params if isinstance(p, ChoiceParam)]
    given, given_name = _gathered(inputs, "const OpforgeTensor *const", "of_inputs")
    filled, filled_name = _gathered(outputs, "OpforgeTensor *const", "of_filled")
    chosen, chosen_name = _gathered(choices, "const int", "of_choices", "(int)")
    arguments = f"{given_name}, {filled_name}, {chosen_name}, &of_values"
    return (
        f"{signature.outputs(forced=forced)}\n{{\n{given}{filled}{chosen}    Values of_values;\n"
        f"{_scalars(scope, signature)}\n"
        f"    return {_runtime('of_outputs', forced=forced)}{arguments});\n}}"
    )
