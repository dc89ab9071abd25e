"""The operators and their implementations as X-macros."""

from __future__ import annotations

from ..ir.interface import Op, TensorParam
from ..ir.program import Library
from .cpp_header import function_name, namespace
from .names import quoted
from .signature import CSignature
from .templates import fill


def dispatch(library: Library) -> str:
    """`include/NAME_dispatch.inc`: a line per operator, and one per implementation of it."""
    rows = [row for op in library.ops for row in _rows(library.name, op)]
    shown = "\n".join(rows)
    return fill("dispatch.inc", name=library.name, namespace=namespace(library.name), rows=shown)


def _rows(library: str, op: Op) -> list[str]:
    name = function_name(op)
    tensors = sum(isinstance(param, TensorParam) for param in op.params)
    function = CSignature(library, op).function
    counts = f"{tensors}, {len(op.params) - tensors}, {len(op.outputs)}, {function}"
    served = [
        f"OPFORGE_IMPLEMENTATION({name}, {i}, {quoted(one.name)}, {counts})"
        for i, one in enumerate(op.served_by)
    ]
    return [f"OPFORGE_OPERATOR({name}, {len(op.served_by)}, {counts})", *served]
