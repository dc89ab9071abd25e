"""What Triton specializes a launch for: types, constants, and what it assumes of integers."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

from triton import knobs
from triton._utils import type_canonicalisation_dict
from triton.compiler.compiler import make_backend
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from ..arch import CUDA, HIP, Arch
from . import patches, settings, tma


class Specialization(NamedTuple):
    """`types` has the parameters that are passed, and those whose value 1 Triton compiles in.

    Of a tuple it has the items, as `xs.0`.

    add_kernel[grid](x, out, 1, BLOCK=64)  ->  types {"x_ptr": "*fp32", "out_ptr": "*fp32",
    "n": "i32"}, ones ("n",), divisible ("x_ptr", "out_ptr"), constants {"BLOCK": 64}
    """

    types: dict[str, str]
    ones: tuple[str, ...]
    divisible: tuple[str, ...]
    constants: dict[str, Any]
    arch: Arch


_NEAR = 5
_INDUCTOR = "torch._inductor."


class NotPlain(Exception):
    """A launch with arguments that a record cannot describe; the text says which."""


def of_kernel(fn: Any, compiled: Any) -> Specialization:
    """What a launch of `fn` returned, as `Specialization`."""
    source = compiled.src
    return specialized(
        fn, source.signature, source.constants, source.attrs, compiled.metadata.target
    )


def of_launch(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Specialization:
    """What a launch would be specialized for, for the driver's current target; compiles nothing."""
    *_, target, _, binder = fn.create_binder()
    given = {name: value for name, value in kwargs.items() if name not in {"grid", "warmup"}}
    bound, specialization, options = binder(*args, **given)
    _, signature, constants, attrs = fn._pack_args(
        make_backend(target), settings.with_fusion(given), bound, specialization, options
    )
    return specialized(fn, signature, constants, attrs, target)


def specialized(
    fn: Any, signature: Mapping[str, Any], found: Any, attrs: Any, target: Any
) -> Specialization:
    """What Triton's compiler is given for a launch, as `Specialization`."""
    if target.backend not in {CUDA, HIP}:
        raise NotPlain(f"it was compiled for {target.backend}, not for CUDA or HIP")
    types, ones, constants, places = {}, [], {}, {}
    leaves = ((p, leaf) for i, p in enumerate(fn.params) for leaf in _leaves(p, i, signature))
    for param, (name, kind, path) in leaves:
        places[path] = name
        if kind.startswith("nvTmaDesc"):
            raise NotPlain(f"{name} is a tensor map that the program has encoded itself")
        if kind != "constexpr":
            types[name] = kind
        elif not param.is_constexpr and type(found[path]) is int and found[path] == 1:
            types[name] = param.annotation_type or "i32"
            ones.append(name)
        else:
            constants[name] = found[path]
    divisible = [
        places[path]
        for path, said in attrs.items()
        if any(key == "tt.divisibility" for key, _ in said) and places.get(path) in types
    ]
    return Specialization(types, tuple(ones), tuple(divisible), constants, Arch.of_target(target))


def _leaves(
    param: Any, index: int, signature: Mapping[str, Any]
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The name, the type and Triton's path of a parameter, or of each item of a tuple."""
    waiting: list[tuple[str, Any, tuple[int, ...]]]
    waiting = [(param.name, signature[param.name], (index,))]
    while waiting:
        name, kind, path = waiting.pop(0)
        if isinstance(kind, str):
            yield name, kind, path
        elif hasattr(kind, "_fields") or not kind:
            raise NotPlain(f"{name} is {'a NamedTuple' if kind else 'an empty tuple'}")
        else:
            items = [(f"{name}.{i}", item, (*path, i)) for i, item in enumerate(kind)]
            waiting[:0] = items


def jitted(compiled: Any) -> Any:
    """The jitted function of a compiled kernel."""
    return compiled.src.fn


def launch_under_way() -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The jitted function and the arguments that Triton is launching, as this thread's frames say.

    None if something else asks for what launches.
    """
    own = patches.original(JITFunction, "run").__code__
    frame = _near(lambda frame: frame.f_code is own)
    if frame is None:
        return None
    here = frame.f_locals
    fn, kwargs = here["self"], dict(here["kwargs"])
    # Triton sets them itself.
    kwargs.pop("instrumentation_mode", None)
    kwargs.pop("fpsan_homomorphic_casts", None)
    if not kwargs.get("debug") or fn.debug or knobs.runtime.debug:
        kwargs.pop("debug", None)
    return fn, here["args"], kwargs


def is_asked_by_inductor() -> bool:
    """Whether Inductor asks for what launches, which it does when it makes its own launcher."""
    return (
        _near(lambda frame: str(frame.f_globals.get("__name__")).startswith(_INDUCTOR)) is not None
    )


def _near(is_wanted: Callable[[FrameType], bool]) -> FrameType | None:
    """A frame that has called opforge; one further out is another launch's."""
    frame: FrameType | None = inspect.currentframe()
    for _ in range(_NEAR):
        frame = frame and frame.f_back
        if frame is not None and is_wanted(frame):
            return frame
    return None


def is_jitted(fn: Any) -> bool:
    return isinstance(fn, JITFunction)


def function_of(fn: Any) -> Any:
    """The Python function of a jitted one."""
    return fn.fn


def dtype_of(kind: str) -> Any:
    """`"*fp32"` -> torch.float32, as a tensor has it; other kinds as they are.

    Of a descriptor: its tensor's, the block, and the layout's text. Raises `ValueError`.
    """
    if tma.rank(kind):
        element, *rest = tma.parts(kind)
        if element not in _torch_dtypes():
            raise ValueError(f"{kind!r} has elements that torch does not have")
        return (_torch_dtypes()[element], *rest)
    return _torch_dtypes()[kind.removeprefix("*").removeprefix("k")] if kind[:1] == "*" else kind


def torch_dtype(dtype: Any) -> Any:
    """`tl.int32` -> torch.int32; None where torch has no such type."""
    name = str(dtype)
    return _torch_dtypes().get(type_canonicalisation_dict.get(name, name))


@functools.cache
def _torch_dtypes() -> dict[str, Any]:
    import torch

    dtypes = {
        str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)
    }
    known = type_canonicalisation_dict
    found = {known[name]: dtype for name, dtype in dtypes.items() if name in known}
    # torch.int1 goes by the same name, and no tensor has it.
    return found | {known["bool"]: torch.bool}


def first_config(tuner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The first configuration of an autotuner that its pruning leaves, unmeasured."""
    asked = copy.copy(tuner)
    asked.nargs = dict(zip(tuner.arg_names, args, strict=False))
    return asked.prune_configs(dict(kwargs))[0]


def current_arch() -> Arch:
    return Arch.of_target(driver.active.get_current_target())
