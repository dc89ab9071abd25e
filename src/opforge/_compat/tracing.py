"""Tensors that have only metadata, and that metadata from whoever traces."""

from __future__ import annotations

import contextlib
import contextvars
import math
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import driver

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Memory(Protocol):
    """What tensors that share memory have in common; `count` elements, as whoever traces has it."""

    count: Any


class NoAddress(driver.NoGpu):
    """A tensor of a trace lies nowhere."""


class Address:
    """What `data_ptr()` gives: it can be moved and handed to a kernel, and is no number."""

    def __init__(self, memory: Memory, offset: Any) -> None:
        self.memory, self.offset = memory, offset

    def __add__(self, count: Any) -> Address:
        return Address(self.memory, self.offset + count)

    __radd__ = __add__

    def __sub__(self, count: Any) -> Address:
        return Address(self.memory, self.offset - count)

    def _refuse(self, *_: Any) -> Any:
        raise NoAddress("the body asks for a tensor's address, which a library gets at run time")

    __int__ = __index__ = __bool__ = __mod__ = __and__ = __floordiv__ = __mul__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __rsub__ = _refuse


class Traced(torch.Tensor):
    """A tensor on a GPU that need not be there; sizes, strides and offset may be symbolic."""

    memory: Memory
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any

    @staticmethod
    def __new__(  # noqa: PYI034, PLR0917  # a tensor's constructor gives what torch made
        cls: type[Traced],
        memory: Memory,
        sizes: Sequence[Any],
        strides: Sequence[Any],
        offset: Any,
        dtype: torch.dtype,
    ) -> Traced:
        # What torch keeps in C++ is only the rank: every question about sizes comes to Python.
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
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    def data_ptr(self) -> Any:
        # A descriptor looks whether its base is aligned; the launch it is made for is refused.
        if sys._getframe(1).f_globals.get("__name__") == "triton.tools.tensor_descriptor":
            return 0
        return Address(self.memory, self.offset * self.dtype.itemsize)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Traced({self.dtype}, shape={self.sizes}, strides={self.strides})"

    def __format__(self, _spec: str) -> str:
        return repr(self)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = about(func, args)
        if found is not NotImplemented:
            return found
        raise RuntimeError(f"{func} was called on a tensor of a trace that is over")

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def about(func: Any, args: tuple[Any, ...]) -> Any:
    """Answers to questions about a tensor that need no tracing, or NotImplemented."""
    tensor = args[0] if args else None
    if not isinstance(tensor, Traced):
        return NotImplemented
    if func is torch.ops.prim.device.default:
        return torch.device("cuda", 0)
    if func in {_ATEN.sym_size.default, _ATEN.size.default}:
        return list(tensor.sizes)
    if func in {_ATEN.sym_stride.default, _ATEN.stride.default}:
        return list(tensor.strides)
    if func in {_ATEN.sym_storage_offset.default, _ATEN.storage_offset.default}:
        return tensor.offset
    if func in {_ATEN.sym_numel.default, _ATEN.numel.default}:
        return math.prod(tensor.sizes)
    if func is _ATEN.dim.default:
        return len(tensor.sizes)
    return NotImplemented


_ATEN = torch.ops.aten


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


@contextlib.contextmanager
def tracing(handler: Handler) -> Iterator[None]:
    """Hand every operator that this thread calls to a handler.

    A fake mode lies below and sees nothing: while one is there, `device="cuda"` does not start
    CUDA, which a machine without a GPU could not.
    """
    driver.ensure_device_guard()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), _Mode(handler):
        yield


@contextlib.contextmanager
def powers_of_two(answer: Callable[[Any], int]) -> Iterator[None]:
    """Answer this thread's `triton.next_power_of_2` of symbolic sizes.

    Host code may hold the function under any name, so its code is replaced, once and for good;
    for plain numbers, and outside of this, it does what it did.
    """
    import triton

    function = triton.next_power_of_2
    while not isinstance(function, types.FunctionType):
        function = function.fn
    if not hasattr(_power_of_two, "original"):
        _power_of_two.original = types.FunctionType(  # type: ignore[attr-defined]
            function.__code__, function.__globals__
        )
        function.__code__ = _power_of_two.__code__
    token = _answers.set(answer)
    try:
        yield
    finally:
        _answers.reset(token)


_answers: contextvars.ContextVar[Callable[[Any], int] | None] = contextvars.ContextVar(
    "opforge_powers_of_two", default=None
)


def _power_of_two(n: Any) -> Any:
    # Runs with Triton's globals, which know nothing of this module.
    import torch

    from opforge._compat import tracing  # noqa: PLW0406  # see above

    answer = tracing._answers.get()
    if answer is not None and isinstance(n, torch.SymInt):
        return answer(n)
    return tracing._power_of_two.original(n)  # type: ignore[attr-defined]


_MATH = {"sqrt": "sym_sqrt", "log2": "sym_log2", "log": "sym_log", "exp": "sym_exp"}
_math_lock = threading.Lock()
_math_before: dict[str, Any] = {}
_math_users = 0


@contextlib.contextmanager
def symbolic_math() -> Iterator[None]:
    """Let `math.sqrt` and the like take symbolic numbers, which Python would make plain ones."""
    global _math_users  # noqa: PLW0603  # one count per process, as the module is
    with _math_lock:
        _math_users += 1
        if _math_users == 1:
            for name, method in _MATH.items():
                _math_before[name] = getattr(math, name)
                setattr(math, name, _on_nodes(_math_before[name], method))
    try:
        yield
    finally:
        with _math_lock:
            _math_users -= 1
            if not _math_users:
                for name in _MATH:
                    setattr(math, name, _math_before.pop(name))


def _on_nodes(original: Callable[..., Any], method: str) -> Callable[..., Any]:
    def function(x: Any, *rest: Any) -> Any:
        if rest or not isinstance(x, (torch.SymInt, torch.SymFloat)):
            return original(x, *rest)
        return torch.SymFloat(getattr(x.node, method)())

    return function


def on_fakes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
    """What an operator gives for tensors of the sizes that `value` gives for symbolic ones."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def plain(one: Any) -> Any:
        if isinstance(one, Traced):
            sizes, strides = [value(s) for s in one.sizes], [value(s) for s in one.strides]
            with mode:
                return torch.empty_strided(sizes, strides, dtype=one.dtype, device="cuda")
        return value(one) if isinstance(one, (torch.SymInt, torch.SymFloat, torch.SymBool)) else one

    args, kwargs = pytree.tree_map(plain, (args, kwargs))
    with mode:
        return func(*args, **kwargs)


def map_tensors(fn: Callable[[torch.Tensor], Any], value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, fn, value)


def is_view(func: Any) -> bool:
    """Whether an operator only gives other metadata to the memory of an argument."""
    returns = func._schema.returns
    return bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )


def writes(func: Any) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)


def defining_name(func: Any) -> str:
    """`aten.mm.default` -> "aten.mm"."""
    return str(func).removesuffix(".default")
