"""tvm-ffi's functions: C that `tvm_ffi.load_module` finds, over the library's C functions."""

from __future__ import annotations

import ast

from ..ir.dtypes import DTYPES, named
from ..ir.interface import ChoiceParam, Flat, Op, Param, ScalarParam, TensorParam
from ..ir.program import Library
from ..ir.wording import one_of
from .expression import double, integer
from .names import packed, part, quoted
from .signature import CSignature
from .templates import fill

_WIDTH = 96
# Names that load_module itself looks for, behind the prefix of all functions.
_TAKEN = ("_library_bin", "_library_ctx", "_metadata_", "_doc_", "opforge_host_memory")
_ROOM = {
    f"{'u' if unsigned else ''}int{bits}_t": (
        "0" if unsigned else f"INT{bits}_MIN",
        # tvm-ffi's integers are signed.
        "INT64_MAX" if bits == 64 else f"{'U' if unsigned else ''}INT{bits}_MAX",
    )
    for unsigned in (False, True)
    for bits in (8, 16, 32, 64)
}


def tvm_ffi_source(library: Library) -> str:
    """`src/NAME/tvm_ffi.c`."""
    exported = [op for op in library.ops if not unexported(op)]
    functions = "".join(f"\n{_Function(library, op).text()}\n" for op in exported)
    return fill("tvm_ffi.c", name=library.name, functions=functions)


def unexported(op: Op) -> str:
    """Why tvm-ffi does not get an operator; empty if it does."""
    if part(op.name).startswith(_TAKEN):
        return "tvm-ffi has a meaning for its name"
    for param in op.params:
        if isinstance(param, ChoiceParam):
            for value, shown in zip(_values(op, param), param.values, strict=True):
                if isinstance(value, tuple) and value[0] != "dtype":
                    return f"tvm-ffi does not pass {param.name}={shown}"
    return ""


class _Function:
    """The function of one operator: inputs, then outputs, by position."""

    def __init__(self, library: Library, op: Op) -> None:
        self._op = op
        self._c = CSignature(library.name, op)
        outputs = tuple(TensorParam(name, written=True) for name in op.outputs)
        self._params: tuple[Param, ...] = (*op.params, *outputs)

    def text(self) -> str:
        name = part(self._op.name)
        usage = f"{name}({', '.join(param.name for param in self._params)})"
        declared = [line for i, param in enumerate(self._params) for line in _declared(i, param)]
        choices = [
            line
            for i, param in enumerate(self._params)
            if isinstance(param, ChoiceParam)
            for line in self._choices(i, param)
        ]
        steps = [f"tvm_takes(&call, count, {len(self._params)}, {quoted(usage)})"]
        steps += [self._read(i, param) for i, param in enumerate(self._params)]
        steps.append("tvm_stream(&call, &stream)")
        passed = [self._passed(i, param) for i, param in enumerate(self._params)]
        body = [
            *choices,
            f"TvmCall call = {{{quoted(self._c.function)}, arguments, -1, 0}};",
            *declared,
            "void *stream;",
            "(void)handle;",
            f"if (!{f' ||{chr(10)}        !'.join(steps)})",
            "    return -1;",
            *_wrapped(f"return tvm_done({self._c.function}(", [*passed, "stream"], "), result);"),
        ]
        head = (
            f"TVM_EXPORT int __tvm_ffi_{name}(void *handle, const TvmAny *arguments, int32_t count,"
            "\n    TvmAny *result)"
        )
        return "\n".join([head, "{", *(f"    {line}" for line in body), "}"])

    def _choices(self, at: int, param: ChoiceParam) -> list[str]:
        rows = [_choice(value) for value in _values(self._op, param)]
        return _wrapped(f"static const TvmChoice a{at}_values[] = {{", rows, "};")

    def _read(self, at: int, param: Param) -> str:
        place = f"&call, {at}, {quoted(param.name)}"
        if isinstance(param, TensorParam):
            return f"tvm_tensor({place}, &a{at}_copy, &a{at})"
        if isinstance(param, ScalarParam):
            c = DTYPES[param.dtype].c
            if c in {"float", "double"}:
                return f"tvm_real({place}, &a{at})"
            low, high = ("0", "1") if param.dtype == "i1" else _ROOM[c]
            shown = "bool" if param.dtype == "i1" else param.dtype
            return f"tvm_integer({place}, {quoted(shown)}, {low}, {high}, &a{at})"
        values = _values(self._op, param)
        listed = quoted(one_of([_shown(value) for value in values]))
        return f"tvm_choose({place}, a{at}_values, {len(values)}, {listed}, &a{at})"

    def _passed(self, at: int, param: Param) -> str:
        if isinstance(param, TensorParam):
            return f"a{at}"
        c = DTYPES[param.dtype].c if isinstance(param, ScalarParam) else self._c.enum(param)
        return f"({c})a{at}"


def _wrapped(opening: str, items: list[str], closing: str) -> list[str]:
    first, *rest = packed(items, closing, _WIDTH - len(opening))
    return [opening + first, *(" " * len(opening) + line for line in rest)]


def _declared(at: int, param: Param) -> list[str]:
    if isinstance(param, TensorParam):
        return [f"OpforgeTensor a{at}_copy, *a{at};"]
    if isinstance(param, ChoiceParam):
        return [f"int a{at};"]
    real = DTYPES[param.dtype].c in {"float", "double"}
    return [f"{'double' if real else 'int64_t'} a{at};"]


def _values(op: Op, param: ChoiceParam) -> tuple[Flat, ...]:
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


def _choice(value: Flat) -> str:
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
        found = named(str(value[1]))
        assert found is not None
        kind, dtype = "TVM_DTYPE", f"{{{found.code}, {found.bits}, 1}}"
    return f"{{{kind}, {whole}, {real}, {text}, {dtype}}}"


def _shown(value: Flat) -> str:
    return f"torch.{value[1]}" if isinstance(value, tuple) else repr(value)
