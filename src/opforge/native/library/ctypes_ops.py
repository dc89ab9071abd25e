"""A built library in Python: its operators, called with anything that supports DLPack."""

from __future__ import annotations

import ctypes
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import BadOption, NotALibrary, WrongArgument
from ...notebook import html_table
from ..ir.interface import ChoiceParam, Param, ScalarParam, TensorParam
from ..ir.wording import one_of, spell
from .c_call import CUDA, MANAGED, ROCM, OperatorCall, OpforgeTensor, current_stream, is_torch
from .manifest_reader import ManifestOp
from .shared_library import SharedLibrary, find_library, shortened

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Implementation(ctypes.Structure):
    """The library's OpforgeImplementation."""

    texts = ("name", "op", "guards")
    _fields_ = tuple((text, ctypes.c_char_p) for text in texts)


def open(path: str | Path, *, host_memory: bool = False) -> NativeLibrary:  # noqa: A001 - native.open
    """The operators of a built library, given its folder or its `.so`.

        ops = opforge.native.open("dist")
        y = ops.silu(x)
        ops.silu(x, out=y)

    With `host_memory`, CPU arrays are passed as memory of device 0: for GPUs that reach it, and for
    tests without a driver.
    """
    return NativeLibrary(find_library(Path(path)), host_memory=host_memory)


class NativeLibrary(SharedLibrary):
    """What `open` returns: an attribute per operator, and `load`, `unload` and `manifest`."""

    def __init__(self, file: Path, *, host_memory: bool) -> None:
        super().__init__(file)
        try:
            self._operators = {
                op.name: NativeOperator(self, op, host_memory=host_memory)
                for op in self.contents.ops
            }
        except BaseException:
            self.abandon()
            raise

    def __getattr__(self, name: str) -> NativeOperator:
        operators = self.__dict__.get("_operators", {})
        if name not in operators:
            held = ", ".join(operators) or "none"
            raise AttributeError(f"the library has no operator {name!r}; it has {held}")
        found: NativeOperator = operators[name]
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._operators})

    def __repr__(self) -> str:
        return f"<native library {self.name}: {shortened(self._operators)}>"

    def _repr_html_(self) -> str:
        rows = [(op.signature, op.__doc__ or "") for op in self._operators.values()]
        return html_table(str(self.file), ("operator", ""), rows)

    def implementations_of(self, function: str) -> tuple[NativeImplementation, ...]:
        """What implements an operator, in the order in which a call tries them."""
        first = ctypes.POINTER(_Implementation)()
        try:
            count = getattr(self._c, f"{function}_implementations")(ctypes.byref(first))
        except AttributeError as error:
            what = f"{self.name} was built by another version of opforge: {error}"
            raise NotALibrary(what, fix="build the library again") from error
        return tuple(
            NativeImplementation(i, *(getattr(first[i], f).decode() for f in _Implementation.texts))
            for i in range(count)
        )


@dataclass(frozen=True)
class NativeImplementation:
    """One of the ops that implement an operator; `guards` says what it covers, for people."""

    index: int
    name: str
    op: str
    guards: str


class NativeOperator:
    """One operator: `ops.silu(x)` allocates with torch, `ops.silu(x, out=y)` does not.

    `ops.silu(x, implementation=1)` chooses an implementation, by index or by name.
    """

    def __init__(self, library: NativeLibrary, described: ManifestOp, *, host_memory: bool) -> None:
        self._function = described.function
        self.implementations = library.implementations_of(described.function)
        self._op = described.op
        self._call = OperatorCall(library, described, _describe, host_memory=host_memory)
        self.__name__ = described.name
        self.__doc__ = self._op.doc or self._op.torch_name

    @property
    def signature(self) -> str:
        names = [param.name for param in self._op.params]
        own = ["out=", "stream=", "implementation="]
        return f"{self.__name__}({', '.join(names + own)})"

    def __repr__(self) -> str:
        return f"<native operator {self._function}: {self.signature}>"

    def _repr_html_(self) -> str:
        rows = [(one.name, one.op, one.guards) for one in self.implementations]
        return html_table(self.signature, ("implementation", "op", "covers"), rows)

    def __call__(
        self,
        *arguments: Any,
        out: Any = None,
        stream: Any = None,
        implementation: int | str | None = None,
        **named: Any,
    ) -> Any:
        index = None if implementation is None else self._index(implementation)
        values = self._bind(arguments, named)
        handle = current_stream(values) if stream is None else _handle(stream)
        given = None if out is None else self._given(out)
        made = self._call(values, stream=handle, out=given, implementation=index)
        return made if out is None else out

    def _index(self, implementation: int | str) -> int:
        """The library refuses an index that it does not have."""
        names = [one.name for one in self.implementations]
        if isinstance(implementation, str):
            if implementation not in names:
                what = f"is {implementation!r}, expected {one_of(map(repr, names))}"
                raise BadOption(what, op=self._function, parameter="implementation")
            return names.index(implementation)
        try:
            index = operator.index(implementation)
        except TypeError:
            index = None
        if index is None or ctypes.c_int(index).value != index:
            what = f"is {implementation!r}, expected an index or a name"
            raise WrongArgument(what, op=self._function, parameter="implementation")
        return index

    def _bind(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """By parameter, what C gets: for a choice the index of its value."""
        params = self._op.params
        names = [param.name for param in params]
        if len(arguments) > len(names):
            what = f"takes {len(names)} arguments, not {len(arguments)}"
            raise WrongArgument(what, op=self._function, fix="give outputs as out=")
        given = dict(zip(names, arguments, strict=False))
        for name, value in named.items():
            if name not in names or name in given:
                what = "is given twice" if name in given else f"is not one of {', '.join(names)}"
                raise WrongArgument(what, op=self._function, parameter=name)
            given[name] = value
        for param in params:
            if param.name not in given:
                given[param.name] = self._default(param)
            elif isinstance(param, ChoiceParam):
                given[param.name] = self._choice(param, given[param.name])
        return [given[name] for name in names]

    def _default(self, param: Param) -> Any:
        """What C gets for an argument that is left out: the default of the torch operator."""
        for argument in self._op.arguments:
            if argument.name != param.name or not argument.default:
                continue
            default = argument.default[0]
            if isinstance(param, ScalarParam):
                return default
            # To Python 1, 1.0 and True are equal.
            alike = [type(v) is type(default) and v == default for v in argument.values]
            if isinstance(param, ChoiceParam) and any(alike):
                return alike.index(True)
        if isinstance(param, TensorParam) and param.optional:
            return None
        raise WrongArgument("is missing", op=self._function, parameter=param.name)

    def _choice(self, param: ChoiceParam, value: Any) -> int:
        shown = spell(value)
        if shown not in param.values:
            what = f"is {shown}, expected {one_of(param.values)}"
            raise BadOption(what, op=self._function, parameter=param.name)
        return param.values.index(shown)

    def _given(self, out: Any) -> list[Any]:
        given = list(out) if isinstance(out, (tuple, list)) else [out]
        expected = len(self._op.outputs)
        if len(given) != expected:
            what = f"out= has {len(given)} tensors, and the operator {expected} outputs"
            raise WrongArgument(what, op=self._function)
        return given


def _describe(value: Any, stream: int) -> OpforgeTensor:
    if not hasattr(value, "__dlpack__"):
        raise WrongArgument(f"{type(value).__name__} does not support DLPack, as tensors do")
    is_torchs = is_torch(value)
    exported = value.detach() if is_torchs else value
    device = exported.__dlpack_device__()[0]
    if device in (CUDA, MANAGED, ROCM):
        # As the array API numbers it.
        default = 0 if device == ROCM else 1
        # torch's current stream is the call's; others wait for what they have under way.
        capsule = exported.__dlpack__(stream=-1 if is_torchs else stream or default)
    else:
        capsule = exported.__dlpack__()
    source = (ctypes.c_char * ctypes.sizeof(OpforgeTensor)).from_address(
        _capsule_pointer(capsule, b"dltensor")
    )
    tensor = OpforgeTensor.from_buffer_copy(source)
    # It owns the sizes that the struct points to.
    tensor.capsule = capsule
    return tensor


def _handle(stream: Any) -> int:
    """Of a stream that is an integer, or an object of torch or CuPy."""
    return int(getattr(stream, "cuda_stream", getattr(stream, "ptr", stream)))
