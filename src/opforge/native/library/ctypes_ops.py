"""A built library in Python: its operators, called with anything that speaks DLPack."""

from __future__ import annotations

import ctypes
import importlib.util
import operator
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import BadChoice, NotALibrary, WrongArgument
from ..ir.abi import MAX_RANK
from ..ir.dtypes import DTYPES
from ..ir.wording import one_of, spell
from .shared_library import SharedLibrary, find_library

_CUDA, _MANAGED, _CPU = 2, 13, 1
FLOATS = {"float": ctypes.c_float, "double": ctypes.c_double}
INTEGERS: dict[str, Any] = {
    f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}")
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


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


class _Implementation(ctypes.Structure):
    """The library's OpforgeImplementation."""

    texts = ("name", "op", "guards")
    _fields_ = tuple((text, ctypes.c_char_p) for text in texts)


def open(path: str | Path, *, host_memory: bool = False) -> NativeLibrary:  # noqa: A001 - native.open
    """The operators of a built library, given its folder or its `.so`.

        ops = opforge.native.open("dist")
        y = ops.silu(x)
        ops.silu(x, out=y)

    With `host_memory` arrays of the CPU are passed as memory of device 0, for GPUs that reach it
    and for drivers that are none.
    """
    return NativeLibrary(find_library(Path(path)), host_memory=host_memory)


class NativeLibrary(SharedLibrary):
    """What `open` gives: an attribute per operator, and `load`, `unload` and `manifest`."""

    def __init__(self, file: Path, *, host_memory: bool) -> None:
        super().__init__(file)
        self._operators = {
            op["name"]: NativeOperator(self, op, host_memory=host_memory)
            for op in self.manifest["ops"]
        }

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
        return f"<native library {self.name}: {', '.join(self._operators)}>"

    def implementations_of(self, function: str) -> tuple[NativeImplementation, ...]:
        """What C lists for an operator, in the order in which a call tries them."""
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
    """One of the ops behind an operator; `guards` says what it covers, for a person."""

    index: int
    name: str
    op: str
    guards: str


class NativeOperator:
    """One operator: `ops.silu(x)` allocates with torch, `ops.silu(x, out=y)` does not.

    `ops.silu(x, implementation=1)` is computed by that one, given by index or by name.
    """

    def __init__(self, library: NativeLibrary, op: dict[str, Any], *, host_memory: bool) -> None:
        self._library = library
        self._host_memory = host_memory
        self._function: str = op["function"]
        self._params: list[dict[str, Any]] = op["params"]
        self._outputs: list[str] = op["outputs"]
        self.implementations = library.implementations_of(self._function)
        self.__name__ = op["name"]
        self.__doc__ = op["doc"] or op["torch_name"]

    def __repr__(self) -> str:
        own = ["out=", "stream=", "implementation="]
        names = ", ".join([p["name"] for p in self._params] + own)
        return f"<native operator {self._function}({names})>"

    def __call__(
        self,
        *arguments: Any,
        out: Any = None,
        stream: Any = None,
        implementation: int | str | None = None,
        **named: Any,
    ) -> Any:
        forced = [] if implementation is None else [self._index(implementation)]
        ending = "_with" if forced else ""
        values = self._bind(arguments, named)
        handle = _stream(values, stream)
        # The capsules own what the structs point to, and have to outlive the call.
        inputs, kept = self._lowered(values, handle)
        made = self._given(out) if out is not None else self._allocated(ending, forced + inputs)
        lowered = [self._tensor(o, handle, kept) for o in made]
        passed = [*forced, *inputs, *lowered, ctypes.c_void_p(handle)]
        self._library.call(self._function + ending, passed)
        if out is not None:
            return out
        return made[0] if len(made) == 1 else tuple(made) if made else None

    def _index(self, implementation: int | str) -> ctypes.c_int:
        """An index that there is none of is refused by the library."""
        names = [one.name for one in self.implementations]
        if isinstance(implementation, str):
            if implementation not in names:
                what = f"is {implementation!r}, expected {one_of(map(repr, names))}"
                raise BadChoice(what, op=self._function, parameter="implementation")
            return ctypes.c_int(names.index(implementation))
        try:
            index = ctypes.c_int(operator.index(implementation))
        except TypeError:
            index = None
        if index is None or index.value != implementation:
            what = f"is {implementation!r}, expected an index or a name"
            raise WrongArgument(what, op=self._function, parameter="implementation")
        return index

    def _bind(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        names = [p["name"] for p in self._params]
        if len(arguments) > len(names):
            what = f"takes {len(names)} arguments, not {len(arguments)}"
            raise WrongArgument(what, op=self._function, fix="give outputs as out=")
        given = dict(zip(names, arguments, strict=False))
        for name, value in named.items():
            if name not in names or name in given:
                what = "is given twice" if name in given else f"is none of {', '.join(names)}"
                raise WrongArgument(what, op=self._function, parameter=name)
            given[name] = value
        for param in self._params:
            if param["name"] not in given and not param.get("optional"):
                raise WrongArgument("is missing", op=self._function, parameter=param["name"])
        return [given.get(name) for name in names]

    def _given(self, out: Any) -> list[Any]:
        given = list(out) if isinstance(out, (tuple, list)) else [out]
        if len(given) != len(self._outputs):
            what = f"out= has {len(given)} tensors, and the operator {len(self._outputs)} outputs"
            raise WrongArgument(what, op=self._function)
        return given

    def _lowered(self, values: list[Any], stream: int) -> tuple[list[Any], list[Any]]:
        kept: list[Any] = []
        pairs = zip(self._params, values, strict=True)
        return [self._input(param, value, stream, kept) for param, value in pairs], kept

    def _input(self, param: dict[str, Any], value: Any, stream: int, kept: list[Any]) -> Any:
        try:
            if param["kind"] == "tensor":
                return self._tensor(value, stream, kept)
            return _choice(param, value) if param["kind"] == "choice" else _scalar(param, value)
        except (BadChoice, WrongArgument) as error:
            error.parameter = param["name"]
            raise error.locate(self._function, None) from None

    def _tensor(self, value: Any, stream: int, kept: list[Any]) -> Any:
        if value is None:
            return None
        if not hasattr(value, "__dlpack__"):
            what = f"{type(value).__name__} does not speak DLPack, as a tensor does"
            raise WrongArgument(what, op=self._function)
        is_torch = _is_torch(value)
        exported = value.detach() if is_torch else value
        if exported.__dlpack_device__()[0] in (_CUDA, _MANAGED):
            # torch's current stream is the call's; others wait for what they have under way.
            capsule = exported.__dlpack__(stream=-1 if is_torch else stream or 1)
        else:
            capsule = exported.__dlpack__()
        tensor = OpforgeTensor.from_buffer_copy(
            (ctypes.c_char * ctypes.sizeof(OpforgeTensor)).from_address(
                _capsule_pointer(capsule, b"dltensor")
            )
        )
        if self._host_memory and tensor.device_type == _CPU:
            tensor.device_type, tensor.device_id = _CUDA, 0
        kept.append(capsule)
        return ctypes.byref(tensor)

    def _allocated(self, ending: str, inputs: list[Any]) -> list[Any]:
        if not self._outputs:
            return []
        filled = [
            OpforgeTensor(
                shape=(ctypes.c_int64 * MAX_RANK)(), strides=(ctypes.c_int64 * MAX_RANK)()
            )
            for _ in self._outputs
        ]
        arguments = [*inputs, *map(ctypes.byref, filled)]
        self._library.call(f"{self._function}_outputs{ending}", arguments)
        if importlib.util.find_spec("torch") is None:
            what = "there is no torch to allocate outputs with"
            raise WrongArgument(what, op=self._function, fix="give them as out=")
        return [self._empty(tensor) for tensor in filled]

    def _empty(self, tensor: OpforgeTensor) -> Any:
        if tensor.bits == 0:
            return None
        import torch  # noqa: PLC0415 - only where outputs are allocated

        dtypes = {(d.code, d.bits): d.torch for d in DTYPES.values()}
        return torch.empty_strided(
            tensor.shape[: tensor.ndim],
            tensor.strides[: tensor.ndim],
            dtype=getattr(torch, dtypes[tensor.code, tensor.bits]),
            device="cpu" if self._host_memory else torch.device("cuda", tensor.device_id),
        )


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _stream(values: list[Any], stream: Any) -> int:
    """A handle, something that has one, or the current stream of the first CUDA tensor."""
    if stream is not None:
        return int(getattr(stream, "cuda_stream", getattr(stream, "ptr", stream)))
    for value in values:
        if _is_torch(value) and value.is_cuda:
            return int(sys.modules["torch"].cuda.current_stream(value.device).cuda_stream)
    return 0


def _choice(param: dict[str, Any], value: Any) -> ctypes.c_int:
    shown = spell(value)
    if shown not in param["values"]:
        raise BadChoice(f"is {shown}, expected {one_of(param['values'])}")
    return ctypes.c_int(param["values"].index(shown))


def _scalar(param: dict[str, Any], value: Any) -> Any:
    c = DTYPES[param["dtype"]].c
    try:
        if c in FLOATS:
            return FLOATS[c](float(value))
        number = INTEGERS[c](operator.index(value))
    except (TypeError, ValueError):
        what = f"is {value!r}, expected a number for {param['dtype']}"
        raise WrongArgument(what) from None
    if number.value != operator.index(value):
        raise WrongArgument(f"is {value!r}, which {param['dtype']} does not hold")
    return number
