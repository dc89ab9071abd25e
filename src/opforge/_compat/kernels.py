"""Recognizes Triton's kernel objects, without importing Triton where nobody else has."""

from __future__ import annotations

import functools
import hashlib
import linecache
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from . import patches

# What torch's node for a launch carries: it refuses `num_ctas`, and takes the names of all other
# options for parameters (`call_triton_kernel` of triton_kernel_wrap.py, torch 2.13).
CARRIED_OPTIONS = ("num_warps", "num_stages")
_OF_RUN = ("grid", "warmup")


def triton_loaded() -> bool:
    """Whether Triton was imported; if not, there are no kernels."""
    return sys.modules.get("triton") is not None


@functools.cache
def load_triton() -> bool:
    """Import Triton, if it is installed; returns whether it is."""
    try:
        import triton  # noqa: F401  # so that it is in sys.modules
    except ImportError:
        return False
    return True


def is_kernel(value: Any) -> bool:
    """Whether a value is one of Triton's own kernels: jitted, autotuned, heuristics, or Gluon."""
    return _kind(type(value)).is_kernel


def kernel_types() -> tuple[type[Any], ...]:
    """JITFunction (Gluon's is one), Autotuner, Heuristics, and the interpreter's function."""
    if not triton_loaded():
        return ()
    interpreter = sys.modules.get("triton.runtime.interpreter")
    interpreted = getattr(interpreter, "InterpretedFunction", None)
    return _compiled_types() if interpreted is None else (*_compiled_types(), interpreted)


@functools.cache
def _compiled_types() -> tuple[type[Any], ...]:
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    return (JITFunction, Autotuner, Heuristics)


def launched_kernel(value: Any) -> Any:
    """The kernel that `value[grid]` launches: the value itself, the first below wrappers, or None.

    torch's `wrap_triton(k)` holds it as `kernel`, third-party wrappers as `fn`. Attributes are
    read only from the instance, because a property could run code.
    """
    for _ in range(16):
        cls = type(value)
        kind = _kinds.get(id(cls)) or _kind(cls)
        if kind.is_kernel:
            return value
        if kind.below is None or kind.slot is None:
            return None
        held = kind.slot(value)
        value = held.get(kind.below) if type(held) is dict else None
        if value is None:
            return None
    return None


def grid_bound_kernel(fn: types.FunctionType) -> Any:
    """The kernel of a function that `k[grid]` returned, or None."""
    if fn.__code__.co_name != "<lambda>" or fn.__module__ != "triton.runtime.jit":
        return None
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        if name == "self":
            return launched_kernel(cell.cell_contents)
    return None


WRAP_TRITON = frozenset({"wrap_triton", "capture_triton"})


def is_wrap_triton(value: Any) -> bool:
    """Whether a value is `torch.library.wrap_triton`, under any of its names."""
    return id(value) in _wrap_functions()


@functools.cache
def _wrap_functions() -> dict[int, Any]:
    import torch._library.triton as home

    places = (torch.library, torch._library, home)
    found = [vars(place).get(name) for place in places for name in WRAP_TRITON]
    return {id(fn): fn for fn in found if fn is not None}


def instance_dict(value: Any) -> dict[str, Any]:
    """An instance's own attributes, read past any `__getattribute__` of its class."""
    cls = type(value)
    slot = (_kinds.get(id(cls)) or _kind(cls)).slot
    held = slot(value) if slot is not None else None
    return held if type(held) is dict else {}


@dataclass(frozen=True)
class _Kind:
    """What is true of all objects of a class.

    `slot` reads an object's `__dict__`. `below` names the entry that holds the kernel which a
    wrapper launches; it is None if the objects are not wrappers.
    """

    cls: type[Any]
    slot: Callable[[Any], Any] | None
    is_kernel: bool
    below: str | None


# Keyed by id, because hashing a class may run its metaclass's code; the class is kept, so that its
# id is not reused. Classes of Triton and torch exist before anyone asks about their objects.
_kinds: dict[int, _Kind] = {}


def _kind(cls: type[Any]) -> _Kind:
    known = _kinds.get(id(cls))
    if known is None:
        closed = id(cls) in _BARE or issubclass(cls, _NO_WRAPPERS)
        below = "kernel" if cls is _traced_wrapper() else None if closed else "fn"
        slot = None if id(cls) in _BARE else _dict_slot(cls)
        known = _kinds[id(cls)] = _Kind(cls, slot, issubclass(cls, kernel_types()), below)
    return known


def _traced_wrapper() -> Any:
    module = sys.modules.get("torch._higher_order_ops.triton_kernel_wrap")
    return getattr(module, "TraceableTritonKernelWrapper", None)


def _dict_slot(cls: type[Any]) -> Callable[[Any], Any] | None:
    """A reader of `__dict__`, or None if the class defines its own, which would run code."""
    for base in type.__getattribute__(cls, "__mro__"):
        slot = type.__getattribute__(base, "__dict__").get("__dict__")
        if slot is not None:
            made_in_c = (types.GetSetDescriptorType, types.MemberDescriptorType)
            return slot.__get__ if type(slot) in made_in_c else None
    return None


_NO_WRAPPERS = (type, types.FunctionType, types.ModuleType)
# Common types whose instances have no attributes of their own.
_BARE = frozenset(
    map(
        id,
        (
            str, int, float, bool, bytes, type(None), list, tuple, dict, set, frozenset, type,
            types.BuiltinFunctionType, types.MethodType, torch.dtype, torch.device,
        ),
    )
)  # fmt: skip


def unwrap_constexpr(value: Any) -> Any:
    import triton.language as tl

    return value.value if isinstance(value, tl.constexpr) else value


def chain(kernel: Any) -> list[Any]:
    """A kernel and those below it: Autotuner, Heuristics, JITFunction."""
    found = [kernel]
    while not _is_base(kernel) and hasattr(kernel, "fn"):
        kernel = kernel.fn
        found.append(kernel)
    return found


def dropped_options(kernel: Any, keywords: Iterable[str]) -> list[str]:
    """The keywords of a launch that are options, and that torch's node for it does not carry."""
    known = {*(getattr(innermost(kernel), "arg_names", None) or ()), *CARRIED_OPTIONS, *_OF_RUN}
    return [name for name in keywords if name not in known]


def innermost(kernel: Any) -> Any:
    """The jitted (or interpreted) function below autotuners and heuristics."""
    return chain(kernel)[-1]


def is_interpreted(kernel: Any) -> bool:
    """Whether a kernel was made under TRITON_INTERPRET=1."""
    return _is_base(kernel := innermost(kernel)) and not isinstance(kernel, _compiled_types())


def is_heuristics(kernel: Any) -> bool:
    return isinstance(kernel, _compiled_types()[2])


def is_gluon(kernel: Any) -> bool:
    module = sys.modules.get("triton.experimental.gluon._runtime")
    return module is not None and isinstance(innermost(kernel), module.GluonJITFunction)


def bound(kernel: Any, grid: Any) -> Any:
    """`kernel[grid]` as Triton makes it, which leads to `run`."""
    from triton.runtime.jit import KernelInterface

    return patches.original(KernelInterface, "__getitem__")(kernel, grid)


def kernel_name(kernel: Any) -> str:
    return name_and_location(kernel)[0]


def kernel_location(kernel: Any) -> str:
    """`file:line` where a kernel is defined."""
    return name_and_location(kernel)[1]


def name_and_location(kernel: Any) -> tuple[str, str]:
    base = innermost(kernel)
    fn = getattr(base, "fn", None)
    name = str(getattr(base if fn is None else fn, "__name__", type(kernel).__name__))
    code = getattr(fn, "__code__", None)
    return name, f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "unknown"


def _is_base(kernel: Any) -> bool:
    # Autotuners and heuristics wrap another kernel; the other kinds hold the function.
    jitted, tuned, heuristics = _compiled_types()
    if isinstance(kernel, jitted):
        return True
    return is_kernel(kernel) and not isinstance(kernel, (tuned, heuristics))


def jit_text(name: str, text: str, names: dict[str, Any]) -> Any:
    """A jitted function from its source: Triton reads the text again, through `linecache`."""
    import triton

    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    filename = f"<opforge {name} {digest}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope = {**names, "__name__": "opforge"}
    exec(compile(text, filename, "exec"), scope)  # noqa: S102  # opforge wrote it
    return triton.JITFunction(scope[name])


def jit_again(
    function: Any, unspecialized: list[str], unaligned: list[str], *, noinline: bool,
    debug: bool | None, gluon: bool,
) -> Any:  # fmt: skip
    """A jitted function of a Python function, as its decorator made it."""
    home = "triton.experimental.gluon._runtime:GluonJITFunction" if gluon else "triton:JITFunction"
    return pkgutil.resolve_name(home)(
        function,
        do_not_specialize=unspecialized,
        do_not_specialize_on_alignment=unaligned,
        noinline=noinline,
        debug=debug,
    )


def written_source(fn: Any) -> tuple[str, str] | None:
    """The file name and text that `jit_text` made a function from; None for any other function."""
    file = fn.fn.__code__.co_filename
    return (file, "".join(linecache.getlines(file))) if file.startswith("<opforge ") else None
