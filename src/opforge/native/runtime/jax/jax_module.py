"""The operators of this package's library for JAX, with `jit`, `vmap` and gradients.

`opforge build --jax` writes this file beside the library, and `opforge wheel` into its package. It
needs nothing but Python and JAX.
"""

from __future__ import annotations

import ast
import collections
import ctypes
import functools
import inspect
import json
import operator
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

try:
    import jax as _jax
    import jax.ffi  # of _jax
    import jax.numpy as _jnp
    import numpy as _np
except ModuleNotFoundError as error:
    raise ImportError(
        f"{error.name} is not installed, and this module makes JAX functions of a library's "
        "operators\n  fix: pip install 'jax[cuda13]', or as JAX says for your machine",
        name=error.name,
    ) from None

LIBRARY = "mylib"

_HERE = Path(__file__).resolve().parent
# In a wheel, and in the folder of a build.
_PLACES = (_HERE / "lib", _HERE.parent.parent / "lib")
_MAX_RANK = 8
_INVALID_ARGUMENT, _OUT_OF_MEMORY = 1, 6

# Triton's name of an element type: JAX's, DLPack's code and bits, and C's for a scalar.
_DTYPES: dict[str, tuple[str, int, int, Any]] = {
    "fp16": ("float16", 2, 16, ctypes.c_float),
    "bf16": ("bfloat16", 4, 16, ctypes.c_float),
    "fp32": ("float32", 2, 32, ctypes.c_float),
    "fp64": ("float64", 2, 64, ctypes.c_double),
    "fp8e4nv": ("float8_e4m3fn", 10, 8, None),
    "fp8e4b8": ("float8_e4m3fnuz", 11, 8, None),
    "fp8e5": ("float8_e5m2", 12, 8, None),
    "fp8e5b16": ("float8_e5m2fnuz", 13, 8, None),
    "i8": ("int8", 0, 8, ctypes.c_int8),
    "i16": ("int16", 0, 16, ctypes.c_int16),
    "i32": ("int32", 0, 32, ctypes.c_int32),
    "i64": ("int64", 0, 64, ctypes.c_int64),
    "u8": ("uint8", 1, 8, ctypes.c_uint8),
    "u16": ("uint16", 1, 16, ctypes.c_uint16),
    "u32": ("uint32", 1, 32, ctypes.c_uint32),
    "u64": ("uint64", 1, 64, ctypes.c_uint64),
    "i1": ("bool", 6, 8, ctypes.c_uint8),
}
_BY_NAME = {name: (code, bits) for name, code, bits, _ in _DTYPES.values()}
_BY_CODE = {(code, bits): name for name, (code, bits) in _BY_NAME.items()}


class _Tensor(ctypes.Structure):
    """The library's OpforgeTensor."""

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


# As XLA calls them, and the library's JaxHandlers.
_PLATFORMS = {"CUDA": "cuda", "ROCM": "rocm", "cpu": "cpu"}
# DLPack's numbers of the platforms that libraries are built for.
_DEVICE_TYPES = {"cuda": 2, "rocm": 10}


class _Handlers(ctypes.Structure):
    """The library's JaxHandlers, of one operator."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        *((platform, ctypes.c_void_p) for platform in _PLATFORMS.values()),
    )


class _Operator:
    """One operator: from the arguments of a call to its results."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.name: str = content["name"]
        self._function: str = content["function"]
        self._params: list[dict[str, Any]] = content["params"]
        self._outputs: list[str] = content["outputs"]
        self.arguments: list[dict[str, Any]] = content["arguments"]
        self._formula: list[Any] = content["formula"]
        self._tensors = [p["name"] for p in self._params if p["kind"] == "tensor"]
        self._written = [p["name"] for p in self._params if p.get("written")]
        self._target = f"{LIBRARY}_{self.name}"
        self._doc: str = content["doc"]
        # What the operator's source returns: a name and fields, some of which may be no names here.
        name, *fields = content.get("result") or [""]
        self._result_type: Any = name and collections.namedtuple(  # noqa: PYI024 - its fields are not known before
            name, fields, rename=True
        )

    def function(self) -> Callable[..., Any]:
        """The function that users call."""

        def call(*arguments: Any, **named: Any) -> Any:
            return self(self._bind(arguments, named))

        call.__name__ = call.__qualname__ = self.name
        call.__doc__ = self._doc
        call.__signature__ = self._signature()  # type: ignore[attr-defined]
        return call

    def _signature(self) -> inspect.Signature:
        kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
        parameters: list[inspect.Parameter] = []
        for param in self._params:
            default = self._default(param)
            # Python has none behind one that has a default.
            if parameters and parameters[-1].default is not empty and default is empty:
                parameters = [p.replace(default=empty) for p in parameters]
            parameters.append(inspect.Parameter(param["name"], kind, default=default))
        return inspect.Signature(parameters)

    def _default(self, param: dict[str, Any]) -> Any:
        for argument in self.arguments:
            if argument["name"] == param["name"] and argument["default"]:
                return _value(argument["default"][0])
        return None if param.get("optional") else inspect.Parameter.empty

    def _bind(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self._signature().bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(
                f"{self._function}: {error}\n  fix: call {self.name}{self._signature()}; outputs "
                "are what it returns"
            ) from None
        bound.apply_defaults()
        return bound.arguments

    def __call__(self, given: dict[str, Any]) -> Any:
        """Run with values by parameter."""
        arrays = {name: self._array(name, given[name]) for name in self._tensors}
        numbers = {
            p["name"]: self._number(p, given[p["name"]])
            for p in self._params
            if p["kind"] != "tensor"
        }
        present = tuple(arrays[name] is not None for name in self._tensors)
        run = self._differentiable(tuple(numbers.items()), present)
        results = run(*(array for array in arrays.values() if array is not None))
        if self._result_type and not self._written:
            return self._result_type(*results)
        return results[0] if len(results) == 1 else results

    def _array(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, (_jax.Array, _np.ndarray, _np.generic)):
            raise TypeError(
                f"{self._function}: {name}: expected an array, got {type(value).__name__}\n"
                "  fix: pass jax.numpy.asarray(...)"
            )
        array = _jnp.asarray(value)
        if array.ndim > _MAX_RANK or array.dtype.name not in _BY_NAME:
            raise ValueError(
                f"{self._function}: {name}: has {array.ndim} dimensions and dtype "
                f"{array.dtype.name}, for which no library is built\n  fix: reshape or convert it"
            )
        return array

    def _number(self, param: dict[str, Any], value: Any) -> Any:
        if isinstance(value, _jax.core.Tracer):
            raise TypeError(
                f"{self._function}: {param['name']}: is traced, but has to be known when the call "
                f"is compiled\n  fix: jax.jit(..., static_argnames={param['name']!r}); it has no "
                "gradient, and vmap does not map over it"
            )
        if param["kind"] == "choice":
            return self._choice(param, value)
        dtype = param["dtype"]
        c = _DTYPES[dtype][3]
        is_float = c in {ctypes.c_float, ctypes.c_double}
        fix = "pass a float" if is_float else "pass an int"
        try:
            if is_float and not isinstance(value, (str, bytes)):
                return float(value)
            number = operator.index(value)
        except (TypeError, ValueError):
            what = f"is {value!r}, expected a number for {dtype}"
        else:
            if c(number).value == number:
                return number
            what, fix = f"is {value!r}, which {dtype} does not hold", "pass another number"
        raise TypeError(f"{self._function}: {param['name']}: {what}\n  fix: {fix}")

    def _choice(self, param: dict[str, Any], value: Any) -> int:
        """The index of a value."""
        values = self._values(param)
        for index, one in enumerate(values):
            if _is_value(one, value):
                return index
        shown = [str(one) if isinstance(one, _np.dtype) else repr(one) for one in values]
        raise ValueError(
            f"{self._function}: {param['name']}: is {value!r}, for which the library was not built"
            f"\n  fix: pass {' or '.join(shown)}"
        )

    def _values(self, param: dict[str, Any]) -> list[Any]:
        for argument in self.arguments:
            if argument["name"] == param["name"]:
                return [_typed(_value(one), argument["type"]) for one in argument["values"]]
        return [_literal(text) for text in param["values"]]

    def _described(
        self, arrays: Sequence[Any], present: tuple[bool, ...], platform: str
    ) -> list[Any]:
        """What C gets for the tensors, by parameter."""
        there = iter(arrays)
        return [_describe(next(there), platform) if is_there else None for is_there in present]

    def _results(
        self, numbers: dict[str, Any], present: tuple[bool, ...], arrays: Sequence[Any]
    ) -> list[Any]:
        """The shapes and dtypes of the outputs, which the library says; None for an absent one."""
        if not self._outputs:
            return []
        made = {p: self._results_on(p, numbers, present, arrays) for p in _platforms()}
        first, *others = made.values()
        if any(other != first for other in others):
            told = "\n".join(f"  on {p}: {_shown(outputs)}" for p, outputs in made.items())
            raise ValueError(
                f"{self._function}: its outputs differ by platform, and JAX chooses the platform "
                f"only after a call is traced\n{told}\n  fix: leave JAX one GPU platform, "
                "JAX_PLATFORMS=cuda or JAX_PLATFORMS=rocm; or build a library for each vendor"
            )
        return first

    def _results_on(
        self,
        platform: str,
        numbers: dict[str, Any],
        present: tuple[bool, ...],
        arrays: Sequence[Any],
    ) -> list[Any]:
        tensors = iter(self._described(arrays, present, platform))
        passed = [
            _by_reference(next(tensors)) if p["kind"] == "tensor" else _c_value(p, numbers)
            for p in self._params
        ]
        filled = [_Tensor(shape=_sizes(), strides=_sizes()) for _ in self._outputs]
        status = getattr(_library, f"{self._function}_outputs")(*passed, *map(ctypes.byref, filled))
        if status != 0:
            raise _error(status)
        pairs = zip(self._outputs, filled, strict=True)
        return [None if one.bits == 0 else self._result(name, one) for name, one in pairs]

    def _result(self, name: str, tensor: _Tensor) -> Any:
        shape = tuple(tensor.shape[: tensor.ndim])
        dtype = _jnp.dtype(_BY_CODE[tensor.code, tensor.bits])
        if _jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise ValueError(
                f"{self._function}: {name}: is {dtype}, which JAX converts to {dtype.name[:-2]}32\n"
                "  fix: jax.config.update('jax_enable_x64', True), before any array is made"
            )
        compact = 1
        for size, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim])):  # noqa: B905 - of one length
            if size > 1 and stride != compact and 0 not in shape:
                raise ValueError(
                    f"{self._function}: {name}: has strides {tensor.strides[: tensor.ndim]}, "
                    "but JAX arrays are row-major\n"
                    "  fix: let the function make its output contiguous, and build it again"
                )
            compact *= max(size, 1)
        return _jax.ShapeDtypeStruct(shape, dtype)

    def _call(
        self, numbers: dict[str, Any], present: tuple[bool, ...], arrays: Sequence[Any]
    ) -> tuple[Any, ...]:
        """The outputs, None for an absent one, and then the arrays that are written to."""
        outputs = self._results(numbers, present, arrays)
        there = [name for name, is_there in zip(self._tensors, present, strict=True) if is_there]
        at = {name: i for i, name in enumerate(there)}
        written = [at[name] for name in self._written if name in at]
        made = [one for one in outputs if one is not None]
        aliases = {index: len(made) + i for i, index in enumerate(written)}
        made += [_jax.ShapeDtypeStruct(arrays[i].shape, arrays[i].dtype) for i in written]
        bits = [*present, *(one is not None for one in outputs)]
        attributes = {
            f"a{i}": _attribute(p, numbers)
            for i, p in enumerate(self._params)
            if p["kind"] != "tensor"
        }
        run = _jax.ffi.ffi_call(
            self._target,
            tuple(made),
            vmap_method="sequential",
            input_output_aliases=aliases,
        )
        mask = sum(1 << i for i, bit in enumerate(bits) if bit)
        results = iter(run(*arrays, present=_np.int64(mask), **attributes))
        return (*(None if one is None else next(results) for one in outputs), *results)

    @functools.lru_cache(maxsize=256)  # noqa: B019 - operators live as long as the module
    def _differentiable(
        self, numbers: tuple[tuple[str, Any], ...], present: tuple[bool, ...]
    ) -> Callable[..., tuple[Any, ...]]:
        """The call as a function of its arrays alone, with the gradient that the library has."""
        values = dict(numbers)

        def call(*arrays: Any) -> tuple[Any, ...]:
            return self._call(values, present, arrays)

        def forward(*arrays: Any) -> tuple[Any, Any]:
            results = call(*arrays)
            return results, (arrays, results)

        def backward(kept: Any, grads: Any) -> tuple[Any, ...]:
            arrays, results = kept
            return self._gradients(values, present, arrays, results, grads)

        call.__name__ = self.name
        run: Any = _jax.custom_vjp(call)
        run.defvjp(forward, backward)
        differentiable: Callable[..., tuple[Any, ...]] = run
        return differentiable

    def _gradients(
        self,
        numbers: dict[str, Any],
        present: tuple[bool, ...],
        arrays: Sequence[Any],
        results: Sequence[Any],
        grads: Sequence[Any],
    ) -> tuple[Any, ...]:
        if self._formula and self._written:
            raise NotImplementedError(
                f"{self._function}: JAX takes no gradient of a call that writes to "
                f"{', '.join(self._written)}\n  fix: put a jax.custom_vjp around the call"
            )
        if not self._formula and f"{self.name}_backward" in _operators:
            raise NotImplementedError(
                f"{self._function}: the library has {self.name}_backward, but not what that takes "
                "of a call\n  fix: put a jax.custom_vjp around the call, which calls it"
            )
        if not self._formula:
            raise NotImplementedError(
                f"{self._function}: the library has no backward for it\n  fix: give the operator a "
                "backward that can be built, and build the library again; or put a "
                "jax.custom_vjp around the call"
            )
        there = iter(arrays)
        known = {
            name: next(there) if is_there else None
            for name, is_there in zip(self._tensors, present, strict=True)
        }
        for param in self._params:
            if param["kind"] == "choice":
                known[param["name"]] = self._values(param)[numbers[param["name"]]]
            elif param["kind"] == "scalar":
                known[param["name"]] = numbers[param["name"]]
        inputs = [
            _value(a["values"][0]) if a["fixed"] else known[a["name"]] for a in self.arguments
        ]
        formula = _Formula(inputs, results, grads)
        found = {
            a["name"]: None if term is None else formula.value(term)
            for a, term in zip(self.arguments, self._formula, strict=True)
        }
        names = zip(self._tensors, present, strict=True)
        return tuple(found[name] for name, is_there in names if is_there)


class _Formula:
    """Evaluates the terms of a backward, each once."""

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any], grads: Sequence[Any]) -> None:
        self._known = {"input": inputs, "output": outputs, "grad": grads}
        self._called: dict[str, Any] = {}

    def value(self, term: list[Any]) -> Any:
        kind = term[0]
        if kind == "value":
            return _value(term[1])
        if kind == "item":
            return self.value(term[1])[term[2]]
        if kind == "call":
            key = json.dumps(term)
            if key not in self._called:
                called = _by_torch_name[term[1]]
                passed = map(self.value, term[2:])
                named = {a["name"]: v for a, v in zip(called.arguments, passed, strict=False)}
                fixed = {a["name"] for a in called.arguments if a["fixed"]}
                given = {name: v for name, v in named.items() if name not in fixed}
                self._called[key] = called(called._bind((), given))  # noqa: SLF001 - its own kind
            return self._called[key]
        return self._known[kind][term[1]]


def _value(flat: Any) -> Any:
    """A value of the manifest: `["dtype", "float16"]` -> the dtype, `["float", "nan"]` -> nan."""
    if not isinstance(flat, list):
        return flat
    if flat[0] == "float":
        return float(flat[1])
    return _jnp.dtype(flat[1]) if flat[0] == "dtype" else tuple(_value(one) for one in flat[1:])


def _typed(value: Any, type_: str) -> Any:
    """As the schema's type has it: a float may be written as an int, a bool as 0 or 1."""
    make = {"float": float, "bool": bool}.get(type_.removesuffix("?"))
    return value if make is None or not isinstance(value, (int, float)) else make(value)


def _literal(text: str) -> Any:
    """A choice of a function that is not a torch operator, as it was written in Python."""
    name = text.removeprefix("torch.")
    if name != text and name in _BY_NAME:
        return _jnp.dtype(name)
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _is_value(expected: Any, given: Any) -> bool:
    if isinstance(expected, _np.dtype):
        try:
            return given is not None and _jnp.dtype(given) == expected
        except TypeError:
            return False
    # To Python 1, 1.0 and True are equal.
    if isinstance(expected, bool) or isinstance(given, (bool, _np.bool_)):
        return (
            isinstance(expected, bool)
            and isinstance(given, (bool, _np.bool_))
            and (expected == bool(given))
        )
    if isinstance(expected, float) and expected != expected:  # noqa: PLR0124 - nan
        return isinstance(given, float) and given != given  # noqa: PLR0124
    return isinstance(expected, str) == isinstance(given, str) and bool(expected == given)


def _sizes(values: Sequence[int] = ()) -> Any:
    return (ctypes.c_int64 * _MAX_RANK)(*values)


def _describe(array: Any, platform: str) -> _Tensor:
    """As far as it is known when a call is traced."""
    code, bits = _BY_NAME[array.dtype.name]
    type_, sizes = _DEVICE_TYPES[platform], _sizes(array.shape)
    return _Tensor(None, type_, 0, array.ndim, code, bits, 1, sizes, None, 0)


def _shown(outputs: Sequence[Any]) -> str:
    return ", ".join("None" if o is None else f"{o.dtype.name} {list(o.shape)}" for o in outputs)


def _platforms() -> list[str]:
    """Those that a call which is traced now may run on; JAX decides when it lowers the call."""
    if len(_built_for) == 1:
        return _built_for
    known = [platform for platform in _built_for if _has(platform)]
    if known:
        return known
    # JAX has the CPU alone: what is traced is run elsewhere, or on memory of the host.
    likely = getattr(_library, f"{LIBRARY}_jax_device_type")()
    return [p for p in _built_for if _DEVICE_TYPES[p] == likely] or _built_for


def _has(platform: str) -> bool:
    try:
        return bool(_jax.devices(platform))
    except RuntimeError:
        return False


def _by_reference(tensor: _Tensor | None) -> Any:
    return None if tensor is None else ctypes.byref(tensor)


def _c_value(param: dict[str, Any], numbers: dict[str, Any]) -> Any:
    number = numbers[param["name"]]
    return ctypes.c_int(number) if param["kind"] == "choice" else _DTYPES[param["dtype"]][3](number)


def _attribute(param: dict[str, Any], numbers: dict[str, Any]) -> Any:
    """As the handler reads it: 64 bits of either kind."""
    number = numbers[param["name"]]
    if isinstance(number, float):
        return _np.float64(number)
    return _np.int64(ctypes.c_int64(number).value)


def _error(status: int) -> Exception:
    text = _library_function("last_error", ctypes.c_char_p)().decode()
    kinds: dict[int, type[Exception]] = {
        _INVALID_ARGUMENT: ValueError,
        _OUT_OF_MEMORY: MemoryError,
    }
    return kinds.get(status, RuntimeError)(text)


def _library_function(ending: str, restype: Any) -> Any:
    function = getattr(_library, f"{LIBRARY}_{ending}")
    function.restype = restype
    return function


def _open() -> ctypes.CDLL:
    files = [place / f"lib{LIBRARY}.so" for place in _PLACES]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise ImportError(
            f"lib{LIBRARY}.so is neither in {_PLACES[0]} nor in {_PLACES[1]}\n"
            "  fix: keep this file in the folder of its build, or install the wheel again"
        )
    opened = ctypes.CDLL(str(file))
    if not hasattr(opened, f"{LIBRARY}_jax_host_memory"):
        raise ImportError(
            f"{file} was built without --jax\n  fix: build it again: opforge build --jax"
        )
    return opened


def _register() -> None:
    """Tell XLA of the handlers; on the CPU they say why they do not run there."""
    table = (_Handlers * (len(_operators) + 1)).in_dll(_library, f"{LIBRARY}_jax_handlers")
    for handlers in table[:-1]:
        for platform, field in _PLATFORMS.items():
            capsule = _jax.ffi.pycapsule(ctypes.c_void_p(getattr(handlers, field)))
            _jax.ffi.register_ffi_target(
                f"{LIBRARY}_{handlers.name.decode()}", capsule, platform=platform
            )


def opforge_host_memory(wanted: bool) -> None:  # noqa: FBT001 - as tvm-ffi's has it
    """Pass CPU memory as that of device 0: for GPUs that reach it, and for tests without one."""
    ctypes.c_int.in_dll(_library, f"{LIBRARY}_jax_host_memory").value = bool(wanted)


def _public() -> types.ModuleType:
    """Make a module of the functions alone.

    An operator may have the name of anything that is used here, such as `any` or `json`.
    """
    made = types.ModuleType(__name__)
    vars(made).update({name: value for name, value in globals().items() if name[:2] == "__"})
    functions = {name: one.function() for name, one in _operators.items()}
    vars(made).update(opforge_host_memory=opforge_host_memory, **functions)
    vars(made)["__all__"] = ["opforge_host_memory", *functions]
    return made


_library = _open()
_manifest = json.loads(_library_function("manifest", ctypes.c_char_p)())
_built_for = sorted({"rocm" if arch[:3] == "gfx" else "cuda" for arch in _manifest["archs"]})
_contents = _manifest["ops"]
_operators = {op["name"]: _Operator(op) for op in _contents}
_by_torch_name = {op["torch_name"]: _operators[op["name"]] for op in _contents}
_register()
sys.modules[__name__] = _public()
