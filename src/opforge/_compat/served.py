"""Where served launches meet Triton: its streams and allocator, and what must stay its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import torch
import triton.language as tl
from triton import knobs
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime._allocation import _allocator
from triton.runtime.jit import JITCallable, JITFunction, KernelInterface, TensorWrapper

from . import patches, settings
from .compiled import torch_dtype
from .kernel_hash import Watched


def configure(extension: ModuleType) -> None:
    """Tell an extension where launches go, and what keeps one from being served."""
    vendor = int(torch.version.hip is not None)
    extension.configure(*device_functions(), _allocate, tuple(_watches()), vendor)


def device_functions() -> tuple[Any, Any]:
    """What returns the current stream of a device, and the current device.

    They are those of torch that Triton's driver calls: making the driver compiles C.
    """
    return torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice


class _LateUtils:
    """In place of what Triton's driver compiles: made when something needs it."""

    def __init__(self, kind: type) -> None:
        self._kind: Any = kind
        self._made: Any = None

    def get_device_properties(self, device: int) -> dict[str, int]:
        from .driver import triton_properties

        return triton_properties(torch.cuda.get_device_properties(device))

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            # Its `__new__` names the class by what the module calls so, which is `late_utils`.
            self._made = object.__new__(self._kind)
            self._kind.__init__(self._made)
        return getattr(self._made, name)


def late_utils(kind: type) -> Callable[[], Any]:
    """What Triton's driver makes its utilities of, which compiles nothing yet."""
    return lambda: _LateUtils(kind)


def _allocate(size: int, align: int, stream: int) -> Any:
    """Scratch memory, by whatever allocator the caller has set."""
    return _allocator.get()(size, align, stream)


def _watches() -> list[tuple[Any, ...]]:
    """Hooks and switches that only Triton's own launch honours."""
    runtime = knobs.runtime
    found: list[tuple[Any, ...]] = []
    for name in ("launch_enter_hook", "launch_exit_hook"):
        chain = getattr(runtime, name)
        reason = f"triton.knobs.runtime.{name} is set"
        if chain is not None and hasattr(chain, "calls"):
            found.append((chain.calls, reason))
            # Somebody may put a function in the place of the chain.
            found.append((vars(runtime), name, (chain, None), reason))
    found.append(
        (vars(runtime), "add_stages_inspection_hook", (None,), "Triton's compiler is inspected")
    )
    return [*found, *settings.watches()]


class _Pointer(NamedTuple):
    """What a launch asks of a tensor."""

    dtype: Any
    address: int

    def data_ptr(self) -> int:
        return self.address


def plain(value: Any) -> Any:
    """An argument as Triton takes it: numpy's numbers, enums and constexprs are numbers."""
    if isinstance(value, tl.constexpr):
        return plain(value.value)
    if isinstance(value, TensorWrapper):
        dtype = torch_dtype(value.dtype)
        return value if dtype is None else _Pointer(dtype, value.data_ptr())
    if isinstance(value, (tuple, list)):
        return tuple(map(plain, value))
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    return value


def plain_constant(value: Any) -> Any:
    """A constant as recordings have it: kernels may ask which type it has."""
    if isinstance(value, tl.constexpr):
        return plain_constant(value.value)
    if isinstance(value, (tuple, list)):
        return tuple(map(plain_constant, value))
    return value


def plain_for(param: Any, value: Any) -> Any:
    """An argument in plain types, or what it is where Triton compiles it in."""
    if param.is_constexpr:
        return plain_constant(value)
    if is_undeclared_constant(param, value):
        return value
    return _as_annotated(plain(value), param.annotation_type)


def is_undeclared_constant(param: Any, value: Any) -> bool:
    """Whether Triton compiles a value in, though the parameter is no `tl.constexpr`."""
    if param.is_constexpr or param.annotation_type:
        return False
    return isinstance(value, (tl.constexpr, JITCallable)) and plain(value) is not None


def plain_arguments(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a launch in plain types; None if they are."""
    params = {param.name: param for param in fn.params}

    def made_plain(name: str, value: Any) -> Any:
        return plain_for(params[name], value) if name in params else plain(value)

    made = (
        # There may be more than the kernel takes, which Triton will refuse.
        tuple(made_plain(*pair) for pair in zip((*fn.arg_names, *args), args, strict=False)),
        {name: made_plain(name, value) for name, value in kwargs.items()},
    )
    pairs = zip((*args, *kwargs.values()), (*made[0], *made[1].values()), strict=True)
    return made if any(type(one) is not type(other) for one, other in pairs) else None


def _as_annotated(value: Any, annotation: str) -> Any:
    """A number as Triton's launcher passes it where the parameter has a type."""
    if annotation.startswith("fp") and type(value) in {bool, int}:
        return float(value)
    if annotation.startswith(("i", "u")) and annotation != "u1" and type(value) is bool:
        return int(value)
    return value


@functools.cache
def _option_names() -> frozenset[str]:
    return frozenset(CUDAOptions.__dataclass_fields__)


# Those that no environment and no target decides.
_PLAIN_OPTIONS = (
    "num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override", "launch_cooperative_grid",
    "launch_pdl", "instrumentation_mode", "fpsan_homomorphic_casts",
)  # fmt: skip
_ALWAYS_TOLD = ("num_warps", "num_ctas", "num_stages")


def default_options(fn: Any) -> dict[str, Any]:
    """What Triton takes where a launch of a kernel has no such option."""
    found = {n: getattr(CUDAOptions, n) for n in _PLAIN_OPTIONS if n in _option_names()}
    found["debug"] = bool(fn.debug)
    return {name: value for name, value in found.items() if name not in fn.arg_names}


def told_options(fn: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a launch, the same for all that Triton takes for the same."""
    defaults = default_options(fn)
    told = {name: defaults[name] for name in _ALWAYS_TOLD if name in defaults}
    return told | {
        name: value
        for name, value in given.items()
        if value is not None and (name in told or not _is(defaults, name, value))
    }


def other_options(fn: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Those options of a launch that Triton would not take anyway."""
    defaults = default_options(fn)
    return {n: v for n, v in given.items() if v is not None and not _is(defaults, n, v)}


def _is(defaults: dict[str, Any], name: str, value: Any) -> bool:
    taken = defaults.get(name, defaults)
    return type(taken) is type(value) and bool(taken == value)


def options_of_parameters(fn: Any) -> frozenset[str]:
    """Parameters that Triton takes for options, too, where a launch names them: num_stages=4."""
    return _option_names().intersection(fn.arg_names)


def has_unknown_options(fn: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a launch has a keyword that Triton refuses."""
    return not kwargs.keys() <= {*_option_names(), *fn.arg_names}


def watches_of(fn: Any, watched: Iterable[Watched]) -> list[tuple[Any, ...]]:
    """What to look at before every launch of one kernel: its hooks, and globals that it uses."""
    # In its dict, because a program may also put another list there.
    none: tuple[list[Any]] = ([],)
    return [
        (vars(fn), "pre_run_hooks", none, "it has pre_run_hooks"),
        *((w.holder, w.name, (w.value,), f"{w.told}, which it uses, has changed") for w in watched),
    ]


def subscripted() -> type:
    """The class whose `kernel[grid]` all kernels have."""
    cls: type = KernelInterface
    return cls


def run_jitted(
    fn: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, warmup: bool = False
) -> Any:
    """Launch as Triton does."""
    original = patches.original(JITFunction, "run")
    return original(fn, *args, grid=grid, warmup=warmup, **kwargs)
