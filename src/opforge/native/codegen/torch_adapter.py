"""The torch adapter: C++ that torch's dispatcher calls, over the library's C functions."""

from __future__ import annotations

import math

from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Flat, Op, ScalarParam, SchemaArgument, TensorParam
from ..ir.program import Library
from ..ir.wording import one_of
from .manifest import manifest_hash
from .names import part, quoted
from .signature import CSignature
from .templates import fill

_KINDS = {
    "Tensor": "t", "int": "i", "SymInt": "i", "float": "f", "bool": "b", "str": "s",
    "ScalarType": "d",
}  # fmt: skip

# DLPack's.
_CUDA, _ROCM = 2, 10


def adapter_source(library: Library, manifest: bytes) -> str:
    """`src/NAME/torch/NAME_torch.cpp`."""
    served = [op for op in library.ops if not unadapted(op)]
    return fill(
        "torch.cpp",
        name=library.name,
        kernels="\n".join(_Kernel(library, op, i).text() for i, op in enumerate(served)),
        # An array has at least one element.
        table="\n".join(_row(op) for op in served) or "    {},",
        count=len(served),
        manifest_hash=quoted(manifest_hash(manifest)),
        operators=quoted(" ".join(op.torch_name for op in served)),
        only_gpu_type=_only_gpu_type(library),
    )


def _only_gpu_type(library: Library) -> int:
    """DLPack's type of the GPUs that a library is for, or 0 if they are of two vendors."""
    vendors = {arch.is_amd for arch in library.archs}
    return 0 if len(vendors) != 1 else _ROCM if vendors.pop() else _CUDA


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


def _row(op: Op) -> str:
    space, _, name = op.torch_name.partition("::")
    schema = op.schema.removeprefix(f"{space}::")
    cells = [op.torch_name, space, name, schema]
    cells += [f"{op.torch_name}__jit", f"{op.torch_name}__grad"]
    texts = ", ".join(quoted(cell) for cell in cells)
    return f"    {{{texts}, of_{part(op.name)}}},"


class _Kernel:
    """The function that the dispatcher calls for one operator."""

    def __init__(self, library: Library, op: Op, index: int) -> None:
        self._op = op
        self._index = index
        self._c = CSignature(library.name, op)
        self._params = {param.name: param for param in op.params}
        # Locals, none of them named by the user.
        self._local = {a.name: f"a{i}" for i, a in enumerate(op.arguments)}
        self._outputs = [f"out{i}" for i in range(len(op.outputs))]

    def text(self) -> str:
        kinds = "".join(_kind(argument) for argument in self._op.arguments)
        body = [
            f'Call call(operators[{self._index}], stack, "{kinds}");',
            "if (call.elsewhere())",
            "    return;",
        ]
        for at, argument in enumerate(self._op.arguments):
            body += self._argument(at, argument)
        passed = [self._passed(name) for name in self._params]
        if self._outputs:
            body += [f"Output {name};" for name in self._outputs]
            filled = [f"&{name}.raw" for name in self._outputs]
            body += self._checked("_outputs", [*passed, *filled])
            body += [f"{name}.allocate(call.host_memory());" for name in self._outputs]
        given = [f"{name}.get()" for name in self._outputs]
        body += self._checked("", [*passed, *given, "call.stream()"])
        body.append("call.release();")
        for i, (name, kind) in enumerate(zip(self._outputs, self._op.returns, strict=True)):
            give = "give_optional" if kind.endswith("?") else "give"
            body.append(f"stack[{i}] = {name}.{give}();")
        head = f"void of_{part(self._op.name)}(StableIValue *stack, uint64_t, uint64_t)"
        return "\n".join([head, "{", *(f"    {line}" for line in body), "}", ""])

    def _argument(self, at: int, argument: SchemaArgument) -> list[str]:
        local, name = self._local[argument.name], quoted(argument.name)
        param = self._params.get(argument.name)
        if isinstance(param, TensorParam):
            written = "true" if param.written else "false"
            call = f"call.tensor({at}, {name}, {written}, {local}, &{local}_raw)"
            return [f"Input {local};", f"OpforgeTensor *{local}_raw;", *_or_fall_back(f"!{call}")]
        if isinstance(param, ScalarParam):
            c = DTYPES[param.dtype].c
            what = "real" if c in {"float", "double"} else "integer"
            said = "" if what == "real" else f", {quoted(param.dtype)}"
            call = f"call.{what}({at}, {name}{said}, &{local})"
            return [f"{c} {local} = 0;", *_or_fall_back(f"!{call}")]
        values = ", ".join(_choice(argument, value) for value in argument.values)
        built = one_of([_spelled(value) for value in argument.values])
        otherwise = quoted(
            f"{argument.name} is not a value that the library was built for: {built}"
        )
        return [
            f"static const Choice {local}_values[] = {{{values}}};",
            f"const int {local} = call.choose({at}, {local}_values, {len(argument.values)},",
            f"    {otherwise});",
            *_or_fall_back(f"{local} < 0"),
        ]

    def _passed(self, name: str) -> str:
        param, local = self._params[name], self._local[name]
        if isinstance(param, TensorParam):
            return f"{local}_raw"
        if isinstance(param, ChoiceParam):
            return f"static_cast<{self._c.enum(param)}>({local})"
        return local

    def _checked(self, ending: str, arguments: list[str]) -> list[str]:
        return [
            f"if (!call.done({self._c.function}{ending}({', '.join(arguments)})))",
            "    return;",
        ]


def _kind(argument: SchemaArgument) -> str:
    letter = _KINDS[argument.type.removesuffix("?")]
    return letter.upper() if argument.type.endswith("?") else letter


def _or_fall_back(condition: str) -> list[str]:
    return [f"if ({condition})", "    return call.fall_back();"]


def _choice(argument: SchemaArgument, value: Flat) -> str:
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
