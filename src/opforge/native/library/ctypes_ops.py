"""A built library in Python: its operators, called with anything that supports DLPack.

`native.open` and `opforge.load` both call C functions by ctypes, as `OperatorCall`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import operator
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import BadOption, WrongArgument
from ...notebook import html_table
from ..ir.abi import MAX_RANK
from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Param, ScalarParam, TensorParam
from ..ir.wording import one_of, spell
from .manifest_reader import ManifestOp
from .shared_library import SharedLibrary, find_library, shortened

# DLPack's.
CPU, CUDA, ROCM, MANAGED = 1, 2, 10, 13
Sizes = ctypes.c_int64 * MAX_RANK
_FLOATS = {"float": ctypes.c_float, "double": ctypes.c_double}
_INTEGERS: dict[str, Any] = {
    f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}")
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}

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
        count = getattr(self._c, f"{function}_implementations")(ctypes.byref(first))
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


class OpforgeTensor(ctypes.Structure):
    """The library's, which is DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class OperatorCall:
    """One operator, over values in the order of its C parameters; a choice is given by its index.

    `describe` makes the struct of a tensor, given the stream of the call. With `host_memory`,
    CPU memory is passed as that of device 0 of the vendor that the library was built for.
    """

    def __init__(
        self,
        library: SharedLibrary,
        described: ManifestOp,
        describe: Callable[[Any, int], OpforgeTensor],
        *,
        host_memory: bool,
    ) -> None:
        self._library = library
        self._function = described.function
        self._params = described.op.params
        self._outputs = described.op.outputs
        self._describe = describe
        self._host_memory = host_memory
        self._archs = library.contents.archs

    def __call__(
        self,
        values: Sequence[Any],
        *,
        stream: int,
        out: Sequence[Any] | None = None,
        implementation: int | None = None,
    ) -> Any:
        """What the operator returns: outputs that torch allocates, unless `out` has them."""
        forced = [] if implementation is None else [ctypes.c_int(implementation)]
        ending = "_with" if forced else ""
        pairs = zip(self._params, values, strict=True)
        inputs = [*forced, *(self._input(param, value, stream) for param, value in pairs)]
        outputs = self._allocated(ending, inputs) if out is None else out
        passed = [self._tensor("out", output, stream) for output in outputs]
        handle = ctypes.c_void_p(stream)
        self._library.call(self._function + ending, [*inputs, *passed, handle])
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def _input(self, param: Param, value: Any, stream: int) -> Any:
        if isinstance(param, TensorParam):
            return self._tensor(param.name, value, stream)
        return ctypes.c_int(value) if isinstance(param, ChoiceParam) else self._scalar(param, value)

    def _tensor(self, name: str, value: Any, stream: int) -> Any:
        if value is None:
            return None
        try:
            tensor = self._describe(value, stream)
        except WrongArgument as error:
            error.parameter = name
            raise error.locate(self._function, None) from None
        if self._host_memory and tensor.device_type == CPU:
            tensor.device_type, tensor.device_id = gpu_type(self._archs), 0
        return ctypes.byref(tensor)

    def _scalar(self, param: ScalarParam, value: Any) -> Any:
        c = DTYPES[param.dtype].c
        try:
            if c in _FLOATS:
                return _FLOATS[c](float(value))
            number = _INTEGERS[c](operator.index(value))
        except (TypeError, ValueError):
            what = f"is {value!r}, expected a number for {param.dtype}"
        else:
            if number.value == operator.index(value):
                return number
            what = f"is {value!r}, which {param.dtype} does not hold"
        raise WrongArgument(what, op=self._function, parameter=param.name)

    def _allocated(self, ending: str, inputs: list[Any]) -> list[Any]:
        if not self._outputs:
            return []
        filled = [OpforgeTensor(shape=Sizes(), strides=Sizes()) for _ in self._outputs]
        arguments = [*inputs, *map(ctypes.byref, filled)]
        self._library.call(f"{self._function}_outputs{ending}", arguments)
        if importlib.util.find_spec("torch") is None:
            what = "there is no torch to allocate outputs with"
            raise WrongArgument(what, op=self._function, fix="give them as out=")
        return [self._empty(tensor) for tensor in filled]

    def _empty(self, tensor: OpforgeTensor) -> Any:
        """None for an output that the call does not have."""
        if tensor.bits == 0:
            return None
        import torch  # noqa: PLC0415 - only where outputs are allocated

        return torch.empty_strided(
            tensor.shape[: tensor.ndim],
            tensor.strides[: tensor.ndim],
            dtype=_torch_dtypes()[tensor.code, tensor.bits],
            device="cpu" if self._host_memory else torch.device("cuda", tensor.device_id),
        )


@functools.cache
def _torch_dtypes() -> dict[tuple[int, int], Any]:
    import torch  # noqa: PLC0415 - as above

    return {(d.code, d.bits): getattr(torch, d.torch) for d in DTYPES.values()}


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def gpu_type(archs: Sequence[str] = ()) -> int:
    """That of a library for one vendor; else of torch's `cuda` devices, or of the driver here."""
    vendors = {ROCM if arch.startswith("gfx") else CUDA for arch in archs}
    if len(vendors) == 1:
        return vendors.pop()
    torchs = torch_gpu_type()
    # torch for CUDA is what pip installs, also where the GPU is AMD's or there is none.
    for types, mode in (({torchs}, 0), ({CUDA, ROCM}, os.RTLD_NOLOAD), ({CUDA, ROCM}, 0)):
        for type_, file in DRIVERS:
            if type_ in types and _opens(file, mode):
                return type_
    return torchs or CUDA


def torch_gpu_type() -> int | None:
    """That of torch's `cuda` devices; None in a torch for CPUs, or without torch."""
    torch = sys.modules.get("torch")
    if torch is None or not (torch.version.hip or torch.version.cuda):
        return None
    return ROCM if torch.version.hip else CUDA


DRIVERS = (
    (CUDA, "libcuda.so.1"),
    *((ROCM, f"libamdhip64.so{version}") for version in ("", ".7", ".6")),
)


def _opens(file: str, mode: int = 0) -> bool:
    try:
        ctypes.CDLL(file, mode=os.RTLD_NOW | mode)
    except OSError:
        return False
    return True


def current_stream(values: Iterable[Any]) -> int:
    """The current stream of torch on the device of the first CUDA tensor."""
    for value in values:
        if is_torch(value) and value.is_cuda:
            return int(sys.modules["torch"].cuda.current_stream(value.device).cuda_stream)
    return 0
