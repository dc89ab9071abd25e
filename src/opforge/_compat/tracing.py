"""Tensors that have only metadata, which the tracer supplies."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import logging
import math
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from . import described, driver, patches, tma

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Memory(Protocol):
    """Memory that tensors share; `count` is its number of elements, in the tracer's terms."""

    count: Any
    # What recorded its allocation; None if something keeps it for other calls.
    trace: Any

    def address(self) -> Any:
        """A symbol for its address; None if it has none before the body runs."""

    def told(self, stride: Any) -> Any:
        """A stride as torch tells it."""


class NoAddress(described.NeedsRealGpu):
    """A traced tensor has no address."""


class Address:
    """What `data_ptr()` returns: not a number, but it takes an offset and a kernel takes it."""

    def __init__(self, memory: Memory, offset: Any) -> None:
        self.memory, self.offset = memory, offset

    def __add__(self, count: Any) -> Address:
        return Address(self.memory, self.offset + count)

    __radd__ = __add__

    def __sub__(self, count: Any) -> Address:
        return Address(self.memory, self.offset - count)

    def __mod__(self, number: Any) -> Any:
        """`x.data_ptr() % 16` is a question that a library can answer for a caller's tensors."""
        address = self.memory.address()
        return self._refuse() if address is None else (address + self.offset) % number

    def _refuse(self, *_: Any) -> Any:
        raise NoAddress("the body asks for a tensor's address, which is known only at run time")

    __int__ = __index__ = __bool__ = __and__ = __floordiv__ = __mul__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __rsub__ = _refuse


class Traced(torch.Tensor):
    """A tensor on a GPU that need not exist; sizes, strides and offset may be symbolic."""

    memory: Memory
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    _dtype: torch.dtype

    @staticmethod
    def __new__(  # noqa: PYI034, PLR0917  # a tensor's constructor returns what torch made
        cls: type[Traced],
        memory: Memory,
        sizes: Sequence[Any],
        strides: Sequence[Any],
        offset: Any,
        dtype: torch.dtype,
    ) -> Traced:
        # torch keeps only the rank in C++; every question about sizes comes to Python.
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            (1,) * len(sizes),
            strides=(1,) * len(sizes),
            dtype=dtype,
            device=torch.device("meta"),
            dispatch_sizes_strides_policy="sizes",
            dispatch_device=True,
        )
        made.memory = memory
        made.sizes, made.strides, made.offset = tuple(sizes), tuple(strides), offset
        made._dtype = dtype
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    # Bodies ask for these all the time. Torch would answer, too, but only after it has gone through
    # both modes of a trace: a third of the time that a trace took.
    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self._dtype

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return torch.Size(self.sizes)

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self.sizes)

    def dim(self) -> int:
        return len(self.sizes)

    def numel(self) -> int:
        return math.prod(self.sizes)

    nelement = numel

    def size(self, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            found = self._at(self.sizes, args, kwargs)
            return super().size(*args, **kwargs) if found is None else found
        return self.shape

    def stride(self, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            found = self._at(self.strides, args, kwargs)
            return super().stride(*args, **kwargs) if found is None else self.memory.told(found)
        return tuple(map(self.memory.told, self.strides))

    @staticmethod
    def _at(numbers: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """That of a dimension; None where torch has more to say about the arguments."""
        dim = args[0] if len(args) == 1 and not kwargs else None
        return numbers[dim] if type(dim) is int and -len(numbers) <= dim < len(numbers) else None

    def data_ptr(self) -> Any:
        # A descriptor checks its base's alignment; a library does so when it is called.
        if tma.is_checking():
            return 0
        return Address(self.memory, self.offset * self.dtype.itemsize)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        # Triton puts a descriptor that it refuses into its message.
        if not tma.is_checking():
            _ask_for_text(self)
        return f"Traced({self.dtype}, shape={self.sizes}, strides={self.strides})"

    def __format__(self, spec: str) -> str:
        found = _ask_for_text(self)
        return repr(self) if found is None or isinstance(found, list) else format(found, spec)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = about(func, args)
        if found is not NotImplemented:
            return found
        raise RuntimeError(f"{func} was called on a tensor of a trace that has ended")

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def _ask_for_text(tensor: Traced) -> Any:
    """A tensor's text has its elements: a body that asks for it asks for data, as by `tolist`."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    modes = torch.overrides._get_current_function_mode_stack()
    is_body = not caller.startswith(("opforge", "torch")) and any(
        isinstance(mode, _Functions) for mode in modes
    )
    return tensor.tolist() if is_body else None


def about(func: Any, args: tuple[Any, ...]) -> Any:
    """The answer to a question about a tensor's metadata, or NotImplemented."""
    tensor = args[0] if args else None
    if not isinstance(tensor, Traced):
        return NotImplemented
    answer = _ANSWERS.get(func)
    return NotImplemented if answer is None else answer(tensor)


_ATEN = torch.ops.aten
_ANSWERS: dict[Any, Callable[[Traced], Any]] = {
    torch.ops.prim.device.default: lambda t: t.device,
    _ATEN.sym_size.default: lambda t: list(t.sizes),
    _ATEN.size.default: lambda t: list(t.sizes),
    _ATEN.sym_stride.default: lambda t: list(t.strides),
    _ATEN.stride.default: lambda t: list(t.strides),
    _ATEN.sym_storage_offset.default: lambda t: t.offset,
    _ATEN.storage_offset.default: lambda t: t.offset,
    _ATEN.sym_numel.default: lambda t: math.prod(t.sizes),
    _ATEN.numel.default: lambda t: math.prod(t.sizes),
    _ATEN.dim.default: lambda t: len(t.sizes),
}


class _Mode(TorchDispatchMode):
    def __init__(self, handler: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.handler = handler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = about(func, args)
        if found is not NotImplemented:
            return found
        return self.handler(func, args, kwargs or {})


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _Functions(TorchFunctionMode):
    """Functions that torch would take apart in C++, where 2.11 asks for sizes as plain numbers.

    Nor does a custom operator take a SymFloat for a float there: its calls go to the handler.
    """

    def __init__(
        self,
        instead: Mapping[Any, Callable[..., Any]],
        of: type[torch.Tensor] = Traced,
        handler: Handler | None = None,
        refuse: Handler | None = None,
    ) -> None:
        super().__init__()
        self.instead, self.of, self.handler, self.refuse = instead, of, handler, refuse

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        token = _calling.set((func, func in self.instead))
        try:
            return self._call(func, args, kwargs or {})
        finally:
            _calling.reset(token)

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = self.instead.get(func)
        if own is not None and any(isinstance(a, (self.of, *_SYMBOLIC)) for a in args):
            return own(*args, **kwargs)
        given = (*args, *kwargs.values())
        if self.handler is not None and any(isinstance(one, torch.SymFloat) for one in given):
            overload = getattr(func, "default", func)
            is_op = isinstance(overload, torch._ops.OpOverload)
            if is_op and overload.namespace not in {"aten", "prims"}:
                return self.handler(overload, args, kwargs)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            if self.refuse is None or "SymInt" not in str(error):
                raise
        # They would take the answer on fakes for calls of the body.
        with _disable_current_modes():
            return self.refuse(func, args, kwargs)


# The function of torch's that the body is calling, and whether opforge takes it apart itself.
_calling: contextvars.ContextVar[tuple[Any, bool]] = contextvars.ContextVar(
    "opforge_calling", default=(None, False)
)


@contextlib.contextmanager
def tracing(
    handler: Handler,
    instead: Mapping[Any, Callable[..., Any]] | None = None,
    refuse: Handler | None = None,
) -> Iterator[None]:
    """Pass every operator that this thread calls to a handler, and some functions to others.

    `refuse` answers functions that want sizes as plain numbers.

    The fake mode below it sees nothing. It is there because under one, `device="cuda"` does not
    initialize CUDA, which would fail on a machine without a GPU.
    """
    driver.ensure_device_guard()
    functions = _Functions(instead or {}, handler=handler, refuse=refuse)
    with _fake_mode(), torch.no_grad(), functions, _Mode(handler):
        yield


@contextlib.contextmanager
def watching(handler: Handler, instead: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Pass every operator that this thread calls on real tensors to a handler, and some functions
    to others.
    """
    with _Functions(instead, torch.Tensor), _Mode(handler):
        yield


def _fake_mode() -> FakeTensorMode:
    """One for each thread: making it reads the stack, line by line, which takes a millisecond."""
    if not hasattr(_state, "fake_mode"):
        _state.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    return cast("FakeTensorMode", _state.fake_mode)


_state = threading.local()


@contextlib.contextmanager
def symbolic_host_functions(next_power_of_2: Callable[[Any], int]) -> Iterator[None]:
    """Let this thread's `triton.next_power_of_2`, `math.sqrt` and the like take symbolic numbers.

    Python and Triton would turn them into plain ones.
    """
    token = _power_of_two.set(next_power_of_2)
    try:
        with HOST_FUNCTIONS:
            yield
    finally:
        _power_of_two.reset(token)


_power_of_two: contextvars.ContextVar[Callable[[Any], int] | None] = contextvars.ContextVar(
    "opforge_power_of_two", default=None
)


def _host_functions() -> list[patches.Replacement]:
    power, block = _original_power_of_two()[0], _original_validate()[0]
    return [
        patches.POWER_OF_TWO.by("__code__", lambda _: _next_power_of_2.__code__, power),
        patches.BLOCK_SHAPE.by("__code__", lambda _: _validate_block_shape.__code__, block),
        *(patches.MATH.by(name, _on_nodes(method)) for name, method in _MATH.items()),
        patches.AUTOCAST.by("__init__", _without_autocast),
    ]


def _without_autocast(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(make).bind(self, *args, **kwargs).arguments
        if given.get("enabled", True) and _power_of_two.get() is not None:
            raise RuntimeError("a library does not cast as autocast does; cast with .to(dtype)")
        make(self, *args, **kwargs)

    return refuse


HOST_FUNCTIONS = patches.PatchScope(_host_functions, finds_the_same=True)
_MATH = {"sqrt": "sym_sqrt", "log2": "sym_log2", "log": "sym_log", "exp": "sym_exp"}


@functools.cache
def _original_power_of_two() -> tuple[types.FunctionType, types.FunctionType]:
    """Triton's function, and another with its code."""
    import triton

    function = triton.next_power_of_2
    while not isinstance(function, types.FunctionType):
        function = function.fn
    return function, types.FunctionType(function.__code__, function.__globals__)


@functools.cache
def _original_validate() -> tuple[types.FunctionType, types.FunctionType]:
    from triton._utils import validate_block_shape as function

    return function, types.FunctionType(function.__code__, function.__globals__)


def _validate_block_shape(shape: Any) -> Any:
    # Runs with Triton's globals, which do not include this module.
    from opforge._compat import tracing  # noqa: PLW0406  # see above

    return tracing.validate_block_shape(shape)


def validate_block_shape(shape: Any) -> Any:
    """Triton's check of a descriptor's block; in a trace, sizes that are symbolic pass it."""
    if _power_of_two.get() is not None:
        shape = [1 if isinstance(size, torch.SymInt) else size for size in shape]
    return _original_validate()[1](shape)


def _next_power_of_2(n: Any) -> Any:
    # Runs with Triton's globals, which do not include this module.
    from opforge._compat import tracing  # noqa: PLW0406  # see above

    return tracing.next_power_of_2(n)


def next_power_of_2(n: Any) -> Any:
    answer = _power_of_two.get()
    if answer is not None and isinstance(n, torch.SymInt):
        return answer(n)
    return _original_power_of_two()[1](n)


def _on_nodes(method: str) -> patches.Make:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(x: Any, *rest: Any) -> Any:
            symbolic = isinstance(x, (torch.SymInt, torch.SymFloat))
            if rest or not symbolic or _power_of_two.get() is None:
                return original(x, *rest)
            return torch.SymFloat(getattr(x.node, method)())

        return function

    return make


def on_fakes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
    """An operator's result on fakes, with `value` in place of each symbolic number."""
    return _on_fakes(_fake_mode(), func, args, kwargs, value)


def on_fakes_of_unknown_size(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any, *, size: int
) -> Any:
    """The same where sizes of the result depend on data, as of `nonzero`; they are `size`."""
    # Its import takes half a second.
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    found = _on_fakes(mode, func, args, kwargs, value)

    def known(number: Any) -> int:
        if not isinstance(number, torch.SymInt):
            return int(number)
        expression = number.node.expr
        return int(expression.xreplace(dict.fromkeys(expression.free_symbols, size)))

    def sized(x: torch.Tensor) -> torch.Tensor:
        sizes, strides = map(known, x.shape), map(known, x.stride())
        with _fake_mode():
            return torch.empty_strided([*sizes], [*strides], dtype=x.dtype, device=x.device)

    return map_tensors(sized, found)


# What fakes raise where a result depends on data.
UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException)


def _on_fakes(
    mode: FakeTensorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
) -> Any:
    def plain(one: Any) -> Any:
        if isinstance(one, Traced):
            sizes, strides = [value(s) for s in one.sizes], [value(s) for s in one.strides]
            with mode:
                return torch.empty_strided(sizes, strides, dtype=one.dtype, device="cuda")
        return value(one) if isinstance(one, _SYMBOLIC) else one

    args, kwargs = pytree.tree_map(plain, (args, kwargs))
    with _without_logs(), mode:
        return func(*args, **kwargs)


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Torch logs the traceback of a fake that fails, which opforge reports in its own words."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    # A function of its own: traces in other threads remove theirs.
    log.addFilter(drop := lambda _: False)
    try:
        yield
    finally:
        log.removeFilter(drop)


def returned_types(func: Any) -> list[str]:
    """`aten.equal.default` -> ["bool"]; of a function nothing is known."""
    schema = getattr(func, "_schema", None)
    return [] if schema is None else [str(one.type) for one in schema.returns]


def number_in(value: torch.Tensor) -> Any:
    """The number of a tensor that torch made of one, or None: `x[0] = 1`, `torch.tensor(0.5)`."""
    if type(value) is not torch.Tensor or value.dim() or value.is_complex():
        return None
    # Modes that are active would take the question for one about traced data.
    with no_dispatch():
        return value.item()


def keep(value: Any) -> None:
    """Say of the tensors in a value that host code keeps them between calls."""
    for one in pytree.tree_leaves(value):
        if isinstance(one, Traced):
            one.memory.trace = None


def map_tensors(fn: Callable[[torch.Tensor], Any], value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, fn, value)


def writes(func: Any) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)


def defining_name(func: Any) -> str:
    """`aten.mm.default` -> "aten.mm"."""
    return str(func).removesuffix(".default")


def name_in_body(func: Any) -> str:
    """What people call an operator: `aten.mm`, but `.item()` for `aten._local_scalar_dense`.

    Of those that no one calls by their names, and of parts of another function, it is the name of
    the function which the body calls.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return function_name(func)
    operator = defining_name(func)
    name = operator.removeprefix("aten.")
    calling, is_apart = _calling.get()
    is_known = not (name.startswith("_") or name in _UNKNOWN) or name.startswith("__")
    return operator if is_known and not is_apart else function_name(calling) or operator


@functools.lru_cache(maxsize=1024)
def function_name(func: Any) -> str:
    """`torch.Tensor.item` -> ".item()", `torch.tensor` -> "torch.tensor"; empty if unknown."""
    name = None if func is None else torch.overrides.resolve_name(func)
    if not name or not name.startswith("torch.Tensor."):
        return (name or "").replace("torch.functional.", "torch.")
    method = name.removeprefix("torch.Tensor.")
    if method.endswith(".__get__"):
        return f".{method.removesuffix('.__get__')}"
    return _CONVERSIONS.get(method, f".{method}()")


_UNKNOWN = {"lift_fresh", "scalar_tensor"}
_CONVERSIONS = {f"__{name}__": f"{name}(tensor)" for name in ("bool", "int", "float", "len")}
_CONVERSIONS |= {"__index__": "int(tensor)", "__contains__": "in", "__setitem__": "x[...] = ..."}
_CONVERSIONS["__getitem__"] = "x[...]"


def promoted_dtypes(operands: tuple[Any, ...], kind: str) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes to compute in and of the result: `(float32, float16)` for `x.half() * 2`."""
    return elementwise_dtypes(*operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND[kind])


def _saturates() -> bool:
    try:
        torch.zeros(1, dtype=torch.int8).clamp(max=128)
    except RuntimeError:
        return False
    return True


# Whether `clamp` takes ends beyond an integer dtype that exclude nothing, as it does since 2.15.
SATURATES = _saturates()
