"""Thin layers over a library's C functions: for torch's dispatcher, for tvm-ffi and for JAX."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

from ..ir.dtypes import DTYPES, named
from ..ir.interface import (
    ChoiceParam,
    Flat,
    Op,
    Param,
    ScalarParam,
    SchemaArgument,
    TensorParam,
)
from ..ir.program import Library
from ..ir.wording import one_of
from .expression import double, integer
from .signature import CSignature
from .text import aligned, fill, function, part, quoted, runtime, with_constants

_WIDTH = 96
_REAL = {"float", "double"}


def _passed(at: int, param: Param, signature: CSignature) -> str:
    """The local `a0`, in the C type of the parameter."""
    if isinstance(param, TensorParam):
        return f"a{at}"
    c = signature.enum(param) if isinstance(param, ChoiceParam) else DTYPES[param.dtype].c
    return f"({c})a{at}"


# The torch adapter: C++ that torch's dispatcher calls.

_KINDS = {
    "Tensor": "t", "int": "i", "SymInt": "i", "float": "f", "bool": "b", "str": "s",
    "ScalarType": "d",
}  # fmt: skip

# DLPack's.
_CUDA, _ROCM = 2, 10


def adapter_source(library: Library, signatures: Sequence[CSignature], manifest_hash: str) -> str:
    """`src/NAME/torch/NAME_torch.cpp`."""
    adapted = [signature for signature in signatures if not unadapted(signature.op)]
    ops = [signature.op for signature in adapted]
    # A library for GPUs of two vendors tells them apart when it is called.
    vendors = {arch.is_amd for arch in library.archs}
    only = 0 if len(vendors) != 1 else _ROCM if vendors.pop() else _CUDA
    return fill(
        "torch.cpp",
        name=library.name,
        kernels="\n".join(_adapted(signature, i) for i, signature in enumerate(adapted)),
        # An array has at least one element.
        table="\n".join(_adapter_row(op) for op in ops) or "    {},",
        count=len(adapted),
        manifest_hash=quoted(manifest_hash),
        operators=quoted(" ".join(op.torch_name for op in ops)),
        only_gpu_type=only,
    )


def unadapted(op: Op) -> str:
    """Why the adapter leaves an operator to Python; empty if it serves it."""
    if not op.torch_name:
        return "another operator has its name: give that one a native.declare, or rename it"
    if not op.schema:
        return "it is not a torch operator (mode none)"
    for argument in op.arguments:
        if argument.type.removesuffix("?") not in _KINDS:
            return f"{argument.name} is of type {argument.type}"
    strange = [r for r in op.returns if r.removesuffix("?") != "Tensor"]
    return f"it returns {strange[0]}" if strange else ""


def _adapter_row(op: Op) -> str:
    full = op.torch_name
    space, _, name = full.partition("::")
    schema = op.schema.removeprefix(f"{space}::")
    texts = ", ".join(map(quoted, (full, space, name, schema, f"{full}__jit", f"{full}__grad")))
    return f"    {{{texts}, of_{part(op.name)}}},"


def _adapted(signature: CSignature, index: int) -> str:
    """The function that the dispatcher calls for one operator."""
    op = signature.op
    params = {param.name: param for param in op.params}
    kinds = "".join(map(_kind, op.arguments))
    body = [
        f'Call call(operators[{index}], stack, "{kinds}");',
        "if (call.elsewhere())",
        "    return;",
    ]
    at = {argument.name: i for i, argument in enumerate(op.arguments)}
    for i, argument in enumerate(op.arguments):
        body += _adapter_read(i, argument, params.get(argument.name))
    passed = [_adapter_passed(at[name], param, signature) for name, param in params.items()]
    outputs = [f"out{i}" for i in range(len(op.outputs))]
    if outputs:
        body += [f"Output {name};" for name in outputs]
        arguments = ", ".join([*passed, *(f"&{name}.raw" for name in outputs)])
        body += [f"if (!call.done({signature.function}_outputs({arguments})))", "    return;"]
        body += [f"{name}.allocate(call.host_memory());" for name in outputs]
    arguments = ", ".join([*passed, *(f"{name}.get()" for name in outputs), "call.stream()"])
    body += [f"if (!call.done({signature.function}({arguments})))", "    return;"]
    body.append("call.release();")
    for i, (name, kind) in enumerate(zip(outputs, op.returns, strict=True)):
        give = "give_optional" if kind.endswith("?") else "give"
        body.append(f"stack[{i}] = {name}.{give}();")
    head = f"void of_{part(op.name)}(StableIValue *stack, uint64_t, uint64_t)"
    return function(head, body) + "\n"


def _adapter_read(at: int, argument: SchemaArgument, param: Param | None) -> list[str]:
    """Into the local `a0`, whose name is none of the user's."""
    local, name = f"a{at}", quoted(argument.name)
    if isinstance(param, TensorParam):
        written = "true" if param.written else "false"
        call = f"call.tensor({at}, {name}, {written}, {local}, &{local}_raw)"
        return [f"Input {local};", f"OpforgeTensor *{local}_raw;", *_or_fall_back(f"!{call}")]
    if isinstance(param, ScalarParam):
        c = DTYPES[param.dtype].c
        read = "real" if c in _REAL else "integer"
        dtype = "" if c in _REAL else f", {quoted(param.dtype)}"
        call = f"call.{read}({at}, {name}{dtype}, &{local})"
        return [f"{c} {local} = 0;", *_or_fall_back(f"!{call}")]
    values = ", ".join(_boxed(argument, value) for value in argument.values)
    built = one_of(map(_spelled, argument.values))
    otherwise = f"{argument.name} is not a value that the library was built for: {built}"
    return [
        f"static const Choice {local}_values[] = {{{values}}};",
        f"const int {local} = call.choose({at}, {local}_values, {len(argument.values)},",
        f"    {quoted(otherwise)});",
        *_or_fall_back(f"{local} < 0"),
    ]


def _adapter_passed(at: int, param: Param, signature: CSignature) -> str:
    if isinstance(param, TensorParam):
        return f"a{at}_raw"
    if isinstance(param, ChoiceParam):
        return f"static_cast<{signature.enum(param)}>(a{at})"
    return f"a{at}"


def _kind(argument: SchemaArgument) -> str:
    letter = _KINDS[argument.type.removesuffix("?")]
    return letter.upper() if argument.type.endswith("?") else letter


def _or_fall_back(condition: str) -> list[str]:
    return [f"if ({condition})", "    return call.fall_back();"]


def _boxed(argument: SchemaArgument, value: Flat) -> str:
    """As the argument's type carries it: a float's default may be written as an int."""
    kind = _kind(argument).lower()
    if value is None:
        return "none()"
    if isinstance(value, tuple):
        return f"of_dtype(aoti_torch_dtype_{value[1]})"
    if isinstance(value, str):
        return f"of_text({quoted(value)})"
    if kind == "b":
        return f"of_bool({'true' if value else 'false'})"
    if kind == "f":
        return f"of_float({_double(float(value))})"
    # The smallest one cannot be written as a literal.
    return f"of_int({'INT64_MIN' if value == -(2**63) else f'INT64_C({value})'})"


def _double(value: float) -> str:
    if math.isnan(value):
        return "std::numeric_limits<double>::quiet_NaN()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}std::numeric_limits<double>::infinity()"
    return repr(value)


def _spelled(value: Flat) -> str:
    return f"torch.{value[1]}" if isinstance(value, tuple) and value[0] == "dtype" else repr(value)


# tvm-ffi's functions: C that `tvm_ffi.load_module` finds.

# The smallest and the largest number that a C type holds; tvm-ffi's integers are signed.
_ROOM = {f"uint{bits}_t": ("0", f"UINT{bits}_MAX") for bits in (8, 16, 32)}
_ROOM |= {f"int{bits}_t": (f"INT{bits}_MIN", f"INT{bits}_MAX") for bits in (8, 16, 32, 64)}
_ROOM["uint64_t"] = ("0", "INT64_MAX")


def tvm_ffi_source(library: Library, signatures: Sequence[CSignature]) -> str:
    """`src/NAME/tvm_ffi.c`."""
    functions = [
        _tvm_function(signature) for signature in signatures if not unexported(signature.op)
    ]
    texts = "".join(f"\n{text}\n" for text in functions)
    return fill("tvm_ffi.c", name=library.name, functions=texts)


def unexported(op: Op) -> str:
    """Why tvm-ffi does not get an operator; empty if it does."""
    for param in op.params:
        if isinstance(param, ChoiceParam):
            for value, shown in zip(_tvm_values(op, param), param.values, strict=True):
                if isinstance(value, tuple) and value[0] != "dtype":
                    return f"tvm-ffi does not pass {param.name}={shown}"
    return ""


def _tvm_function(signature: CSignature) -> str:
    """The function of one operator: inputs, then outputs, by position."""
    op, c_name, name = signature.op, signature.function, part(signature.op.name)
    outputs = (TensorParam(output, written=True) for output in op.outputs)
    params: list[Param] = [*op.params, *outputs]
    usage = f"{name}({', '.join(param.name for param in params)})"
    values = {p.name: _tvm_values(op, p) for p in params if isinstance(p, ChoiceParam)}
    choices, declared = [], []
    steps = [f"tvm_takes(&call, count, {len(params)}, {quoted(usage)})"]
    for i, param in enumerate(params):
        if isinstance(param, ChoiceParam):
            rows = [_tvm_choice(value) for value in values[param.name]]
            choices += aligned(f"static const TvmChoice a{i}_values[] = {{", rows, "};", _WIDTH)
        declared.append(_tvm_declared(i, param))
        steps.append(_tvm_read(i, param, values.get(param.name, ())))
    steps.append("tvm_stream(&call, &stream)")
    passed = [_passed(i, param, signature) for i, param in enumerate(params)]
    body = [
        *choices,
        f"TvmCall call = {{{quoted(c_name)}, arguments, -1, 0}};",
        *declared,
        "void *stream;",
        "(void)handle;",
        f"if (!{f' ||{chr(10)}        !'.join(steps)})",
        "    return -1;",
        *aligned(f"return tvm_done({c_name}(", [*passed, "stream"], "), result);", _WIDTH),
    ]
    head = (
        f"TVM_EXPORT int __tvm_ffi_{name}(void *handle, const TvmAny *arguments, int32_t count,"
        "\n    TvmAny *result)"
    )
    return function(head, body)


def _tvm_declared(at: int, param: Param) -> str:
    if isinstance(param, TensorParam):
        return f"OpforgeTensor a{at}_copy, *a{at};"
    if isinstance(param, ChoiceParam):
        return f"int a{at};"
    return f"{'double' if DTYPES[param.dtype].c in _REAL else 'int64_t'} a{at};"


def _tvm_read(at: int, param: Param, values: Sequence[Flat]) -> str:
    place = f"&call, {at}, {quoted(param.name)}"
    if isinstance(param, TensorParam):
        return f"tvm_tensor({place}, &a{at}_copy, &a{at})"
    if isinstance(param, ChoiceParam):
        listed = quoted(one_of(map(_spelled, values)))
        return f"tvm_choose({place}, a{at}_values, {len(values)}, {listed}, &a{at})"
    c = DTYPES[param.dtype].c
    if c in _REAL:
        return f"tvm_real({place}, &a{at})"
    low, high = ("0", "1") if param.dtype == "i1" else _ROOM[c]
    shown = "bool" if param.dtype == "i1" else param.dtype
    return f"tvm_integer({place}, {quoted(shown)}, {low}, {high}, &a{at})"


def _tvm_values(op: Op, param: ChoiceParam) -> tuple[Flat, ...]:
    """What stands for each choice: the schema's value, as with torch.

    A function that is not a torch operator has no schema; what cannot be written down there, such
    as an enum member, is passed as text.
    """
    for argument in op.arguments:
        if argument.name == param.name:
            return tuple(_typed(value, argument.type) for value in argument.values)
    return tuple(_value(text) for text in param.values)


def _typed(value: Flat, type_: str) -> Flat:
    """As the schema's type has it: a float may be written as an int, a bool as 0 or 1."""
    make = {"float": float, "bool": bool}.get(type_.removesuffix("?"))
    return value if make is None or not isinstance(value, (int, float)) else make(value)


def _value(text: str) -> Flat:
    dtype = named(text.removeprefix("torch.")) if text.startswith("torch.") else None
    if dtype is not None:
        return ("dtype", dtype.torch)
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return value if value is None or isinstance(value, (int, float, str)) else ("other", text)


def _tvm_choice(value: Flat) -> str:
    """A `TvmChoice`."""
    kind, whole, real, text, dtype = "TVM_NONE", "0", "0", "NULL", "{0, 0, 0}"
    if isinstance(value, bool):
        kind, whole = "TVM_BOOL", str(int(value))
    elif isinstance(value, int):
        kind, whole = "TVM_INT", integer(value)
    elif isinstance(value, float):
        kind, real = "TVM_FLOAT", double(value)
    elif isinstance(value, str):
        kind, text = "TVM_TEXT", quoted(value)
    elif isinstance(value, tuple):
        known = named(str(value[1]))
        assert known is not None
        kind, dtype = "TVM_DTYPE", f"{{{known.code}, {known.bits}, 1}}"
    return f"{{{kind}, {whole}, {real}, {text}, {dtype}}}"


# JAX's handlers: C that XLA calls, and the module for Python.


def jax_source(library: Library, signatures: Sequence[CSignature]) -> str:
    """`src/NAME/jax_ffi.c`."""
    return fill(
        "jax_ffi.c",
        name=library.name,
        handlers="".join(f"\n{_handler(signature)}\n" for signature in signatures),
        table="\n".join(_jax_row(op) for op in library.ops),
    )


def jax_module(library: Library) -> str:
    """`python/NAME/jax.py`."""
    return with_constants(runtime("jax")["jax_module.py"], LIBRARY=library.name)


def _jax_row(op: Op) -> str:
    handlers = ", ".join(f"{platform}_{part(op.name)}" for platform in ("cuda", "rocm", "cpu"))
    return f"    {{{quoted(op.name)}, {handlers}}},"


def _handler(signature: CSignature) -> str:
    op = signature.op
    params: list[Param] = [*op.params, *map(TensorParam, op.outputs)]
    read = [_jax_read(i, param) for i, param in enumerate(op.params)]
    read += [
        f"OpforgeTensor b{i}, *const a{i} = jax_output(&call, &b{i});"
        for i in range(len(op.params), len(params))
    ]
    read += [
        f"jax_shares(&call, a{i});"
        for i, param in enumerate(op.params)
        if isinstance(param, TensorParam) and param.written
    ]
    passed = [_passed(i, param, signature) for i, param in enumerate(params)]
    opening = f"return jax_done(&call, {signature.function}("
    body = [
        "if (jax_is_question(frame))",
        "    return NULL;",
        f"JaxCall call = jax_begin(frame, {quoted(signature.function)}, vendor);",
        *read,
        "if (call.status != OPFORGE_OK)",
        "    return jax_done(&call, call.status);",
        *aligned(opening, [*passed, "call.stream"], "));", _WIDTH),
    ]
    name = part(op.name)
    head = f"static XlaError *call_{name}(XlaFrame *frame, int vendor)"
    return f"{function(head, body)}\nJAX_HANDLERS({name})"


def _jax_read(at: int, param: Param) -> str:
    if isinstance(param, TensorParam):
        return f"OpforgeTensor b{at}, *const a{at} = jax_input(&call, &b{at});"
    if isinstance(param, ScalarParam) and DTYPES[param.dtype].c in _REAL:
        return f'const double a{at} = jax_real(&call, "a{at}");'
    return f'const int64_t a{at} = jax_integer(&call, "a{at}");'
