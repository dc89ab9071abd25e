"""JAX's handlers: C that XLA calls, over the library's C functions, and the module for Python."""

from __future__ import annotations

from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Op, Param, ScalarParam, TensorParam
from ..ir.program import Library
from .names import packed, part, quoted
from .signature import CSignature
from .templates import fill, runtime, with_constants

_WIDTH = 96


def jax_source(library: Library) -> str:
    """`src/NAME/jax_ffi.c`."""
    return fill(
        "jax_ffi.c",
        name=library.name,
        handlers="".join(f"\n{_handler(library, op)}\n" for op in library.ops),
        table="\n".join(_row(op) for op in library.ops),
    )


def jax_module(library: Library) -> str:
    """`python/NAME/jax.py`."""
    return with_constants(runtime("jax")["jax_module.py"], LIBRARY=library.name)


def _row(op: Op) -> str:
    handlers = ", ".join(f"{platform}_{part(op.name)}" for platform in ("cuda", "rocm", "cpu"))
    return f"    {{{quoted(op.name)}, {handlers}}},"


def _handler(library: Library, op: Op) -> str:
    signature = CSignature(library.name, op)
    outputs = tuple(TensorParam(name) for name in op.outputs)
    first = len(op.params)
    read = [_read(i, param) for i, param in enumerate(op.params)]
    read += [
        f"OpforgeTensor b{i}, *const a{i} = jax_output(&call, &b{i});"
        for i in range(first, first + len(outputs))
    ]
    read += [
        f"jax_shares(&call, a{i});"
        for i, param in enumerate(op.params)
        if isinstance(param, TensorParam) and param.written
    ]
    passed = [_passed(i, param, signature) for i, param in enumerate((*op.params, *outputs))]
    opening = f"return jax_done(&call, {signature.function}("
    lines = packed([*passed, "call.stream"], "));", _WIDTH - len(opening))
    body = [
        "if (jax_is_question(frame))",
        "    return NULL;",
        f"JaxCall call = jax_begin(frame, {quoted(signature.function)}, vendor);",
        *read,
        "if (call.status != OPFORGE_OK)",
        "    return jax_done(&call, call.status);",
        opening + f"\n    {' ' * len(opening)}".join(lines),
    ]
    name = part(op.name)
    head = f"static XlaError *call_{name}(XlaFrame *frame, int vendor)"
    return "\n".join([head, "{", *(f"    {line}" for line in body), "}", f"JAX_HANDLERS({name})"])


def _read(at: int, param: Param) -> str:
    if isinstance(param, TensorParam):
        return f"OpforgeTensor b{at}, *const a{at} = jax_input(&call, &b{at});"
    if isinstance(param, ScalarParam) and DTYPES[param.dtype].c in {"float", "double"}:
        return f'const double a{at} = jax_real(&call, "a{at}");'
    return f'const int64_t a{at} = jax_integer(&call, "a{at}");'


def _passed(at: int, param: Param, signature: CSignature) -> str:
    if isinstance(param, TensorParam):
        return f"a{at}"
    c = signature.enum(param) if isinstance(param, ChoiceParam) else DTYPES[param.dtype].c
    return f"({c})a{at}"
