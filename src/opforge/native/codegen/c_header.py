"""The C header."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ...notebook import counted
from ..ir.abi import ABI, MAX_RANK
from ..ir.case_text import source, tensor_text
from ..ir.cases import chosen
from ..ir.interface import ChoiceParam, Op, Param, ScalarParam, TensorParam
from ..ir.program import Library
from .signature import CSignature, Kind, enums
from .text import comment, fill, macro

_FORCED = (
    "The same with a given implementation, where the call above uses the first that covers it. "
    "An index out of range is OPFORGE_INVALID_ARGUMENT."
)
_WORKSPACE = (
    "Tells how many bytes of workspace the call above would allocate, and refuses what it would "
    "refuse. The data of a tensor may be NULL"
)
_LISTED = (
    "Returns the number of implementations; if list is not NULL, also their names, sources and "
    "guards, in the order in which they are tried. They live as long as the library is loaded."
)


def header(library: Library, signatures: Sequence[CSignature], archs: str) -> str:
    """`include/NAME.h`."""
    return fill(
        "header.h",
        name=library.name,
        guard=macro(library.name),
        abi=ABI,
        summary=f"{summary(library, archs)}.",
        enums="".join(f"{_enum(signature, p)}\n\n" for signature, p in enums(signatures)),
        operations="".join(f"\n{_operation(signature)}\n" for signature in signatures),
    )


def summary(library: Library, archs: str) -> str:
    """`3 operators for sm_80, sm_90`."""
    return f"{counted(len(library.ops), 'operator')} for {archs}"


def _enum(signature: CSignature, param: ChoiceParam) -> str:
    members = [
        f"    {signature.member(param, label)} = {i}"
        + ("," if i + 1 < len(param.labels) else "")
        + f" /* {comment(value)} */"
        for i, (label, value) in enumerate(zip(param.labels, param.values, strict=True))
    ]
    return "\n".join(["typedef enum {", *members, f"}} {signature.enum(param)};"])


def _operation(signature: CSignature) -> str:
    op = signature.op
    outputs = "Fills in type, shape, strides and device of the outputs of the call above."
    if any(path.outputs.count(None) for case in op.cases for path in case.paths):
        outputs += (
            " One that the call does not have gets dtype.bits 0, and may be NULL in that call."
        )
    outputs += f" Shape and strides have room for OPFORGE_MAX_RANK ({MAX_RANK}) numbers each."
    workspace = _WORKSPACE
    if op.outputs:
        described = f"{signature.function}_outputs describes it"
        workspace += f". An output may be NULL; it is then taken to be as {described}"
    docs: dict[Kind, list[str]] = {
        "call": _documentation(signature),
        "outputs": [outputs],
        "workspace": [f"{workspace}."],
    }
    parts = [
        f"{_comment(docs[k])}\n{_declared(signature.declaration(k))}\n" for k in signature.kinds
    ]
    forced = [_declared(signature.declaration(k, forced=True)) for k in signature.kinds]
    parts += [_comment([_FORCED]), *forced, ""]
    parts += [_comment([_LISTED]), _declared(signature.implementations())]
    return "\n".join(parts)


def _declared(signature: str) -> str:
    """With the prefix, and the parameters still aligned."""
    first, *rest = signature.splitlines()
    prefix = "OPFORGE_API "
    return "\n".join([prefix + first, *(" " * len(prefix) + line for line in rest)]) + ";"


def _documentation(signature: CSignature) -> list[str]:
    op = signature.op
    doc = " ".join(op.doc.split())
    where = f" ({op.location})" if op.location else ""
    lines = [doc] if doc else []
    lines.append(f"{op.torch_name or op.name}{where}")
    lines += [f"  {_parameter(signature, p)}" for p in op.params]
    lines += [f"  {signature.names[name]}: {_output(op, i)}" for i, name in enumerate(op.outputs)]
    if len(op.served_by) > 1:
        shown = [f"{i} {source(one)}" for i, one in enumerate(op.served_by)]
        lines.append(f"Implementations: {', '.join(shown)}")
    return lines


def _parameter(signature: CSignature, param: Param) -> str:
    name = signature.names[param.name]
    # The declaration says it shorter than the cases made from it.
    doc = " ".join(param.doc.split())
    if isinstance(param, TensorParam):
        notes = ", written to" if param.written else ""
        notes += ", may be NULL" if param.optional else ""
        return f"{name}: {doc or tensor_text(signature.op.cases, param.name)}{notes}"
    if isinstance(param, ScalarParam):
        half = " (rounded to it)" if param.dtype in {"fp16", "bf16"} else ""
        return f"{name}: {doc or param.dtype}{half}"
    # Of an Enum, those that it was declared for.
    taken = chosen(signature.op.cases, param.name) if param.enum else range(len(param.labels))
    labels = [label for i, label in enumerate(param.labels) if i in taken]
    return f"{name}: {' or '.join(signature.member(param, label) for label in labels)}"


def _output(op: Op, index: int) -> str:
    outputs = [path.outputs[index] for case in op.cases for path in case.paths if path.outputs]
    shown = [
        "none"
        if o is None
        else f"{o.dtype} [{', '.join(map(str, o.shape))}]"
        + (" with any strides" if o.strided else "")
        for o in outputs
    ]
    return " or ".join(dict.fromkeys(shown)) or "none"


def _comment(lines: list[str]) -> str:
    wrapped: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        wrapped += textwrap.wrap(
            comment(line), 94, initial_indent="", subsequent_indent=indent and f"{indent}  ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    if len(wrapped) == 1:
        return f"/* {wrapped[0]} */"
    return "\n".join([f"/* {wrapped[0]}", *(f" * {line}" for line in wrapped[1:]), " */"])
