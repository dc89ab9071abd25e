"""The C file of one operator."""

from __future__ import annotations

from bisect import bisect_left

from ..ir.device_attributes import PREFIX
from ..ir.interface import Op, TensorParam
from .case_table import case_row
from .coverage_text import guards, source
from .names import comment, quoted
from .pool import Pool
from .scope import OpScope
from .signature import CSignature

# What a function takes behind its tensors and values.
_LAST = {"call": ["stream"], "workspace": ["bytes"]}


def operation_source(op: Op, library: str, kernels: dict[str, str]) -> str:
    """`src/NAME/op_silu.c`: tables, the functions over sizes, and the functions of the API."""
    scope = OpScope(op)
    pool = Pool()
    signature = CSignature(library, op)
    rows = [case_row(scope, pool, kernels, i) for i in range(len(op.cases))]
    operation = _operation(scope, pool, signature, rows)
    named = f"{op.torch_name or op.name}{f' ({op.location})' if op.location else ''}"
    parts = [
        f"/* {signature.function}: {comment(named)}. Written by opforge. */",
        '#include "runtime.h"\n\n#include "api.h"\n#include "kernels.h"\n\n#include <string.h>',
        _values(scope),
        *pool.definitions,
        operation,
        _function(scope, signature, "call", forced=False),
        _function(scope, signature, "call", forced=True),
    ]
    if op.outputs:
        parts.append(_function(scope, signature, "outputs", forced=False))
        parts.append(_function(scope, signature, "outputs", forced=True))
    parts.append(_function(scope, signature, "workspace", forced=False))
    parts.append(_function(scope, signature, "workspace", forced=True))
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
    flags = {
        "OF_WRITTEN": param.written,
        "OF_OPTIONAL": param.optional,
        "OF_BROADCAST": param.broadcast,
        f"OF_GROUP({param.group})": param.group,
    }
    return " | ".join(flag for flag, holds in flags.items() if holds) or "0"


def _function(scope: OpScope, signature: CSignature, kind: str, *, forced: bool) -> str:
    """`mylib_silu`, `mylib_silu_outputs` or `mylib_silu_workspace`: gathers its arguments."""
    read, written = "const OpforgeTensor *const", "OpforgeTensor *const"
    inputs, outputs = [p.name for p in scope.inputs], list(scope.op.outputs)
    arrays = [(read, "of_given", "", [*inputs, *outputs])]
    if kind == "outputs":
        arrays = [(read, "of_inputs", "", inputs), (written, "of_filled", "", outputs)]
    arrays.append(("const int", "of_choices", "(int)", [choice.name for choice in scope.choices]))
    lines, passed = [], ["&operation", *(["implementation"] if forced else [])]
    for type_, array, cast, names in arrays:
        items = ", ".join(cast + signature.names[name] for name in names)
        lines += [f"{type_} {array}[] = {{{items}}};"] if names else []
        passed.append(array if names else "NULL")
    lines += ["Values of_values;", *_scalars(scope, signature)]
    passed += ["&of_values", *_LAST.get(kind, [])]
    lines.append(f"return of_{kind}{'_with' if forced else ''}({', '.join(passed)});")
    body = "\n".join(f"    {line}" for line in lines)
    return f"{getattr(signature, kind)(forced=forced)}\n{{\n{body}\n}}"


def _scalars(scope: OpScope, signature: CSignature) -> list[str]:
    lines = ["memset(&of_values, 0, sizeof of_values);"]
    for name, param in scope.scalars.items():
        given = signature.names[name]
        if param.dtype == "i1":
            given = f"{given} != 0"
        elif param.dtype == "u64":
            given = f"(int64_t){given}"
        lines.append(f"of_values.{scope.fields[name]} = {given};")
    return lines
