"""Kernel launches of a traced body: which function, with which arguments, over which grid."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ... import _compat
from ..._compat import tracing
from ..._compat.tracing import Traced
from ...arch import HOPPER
from ...capture import LaunchRouter, correct_launch
from ...errors import UnsupportedBody
from ...tuning.choose import Choice
from ..ir.device_attributes import MAJOR
from ..ir.dtypes import ALIASES
from ..ir.expr import Term, Var
from ..ir.places import Place, Told, told
from ..symbolic.symint import NotConstant, dense, is_symbolic, term_of
from .recorder import Recorder, locate

_kernels = _compat.kernels


@dataclass(frozen=True)
class Config:
    """The autotuning configuration that a launch takes, and how many there are."""

    index: int
    count: int
    text: str
    # Why it is not a measured one; empty if it is.
    why: str = ""


@dataclass(frozen=True)
class Pointed:
    """A tensor as a kernel sees it: memory, byte offset and element type."""

    memory: Any
    offset: Any
    dtype: str
    # The tensor's strides, to recognize which of the kernel's arguments are strides.
    strides: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Described(Pointed):
    """A tensor descriptor: its tensor, sizes, and `type` as Triton specializes for it."""

    sizes: tuple[Any, ...] = ()
    type: str = ""
    is_nan: bool = False
    is_tf32: bool = False


@dataclass
class TracedLaunch:
    """One launch: every parameter of the function has an argument."""

    fn: Any
    arguments: dict[str, Any]
    grid: tuple[Term, Term, Term]
    options: dict[str, Any] = field(default_factory=dict)
    location: str = ""
    config: Config | None = None
    # The parameters that the kernel writes to, where that is known without looking at it.
    writes: frozenset[str] | None = None

    def memories(self) -> Iterator[Any]:
        yield from (a.memory for a in self.arguments.values() if isinstance(a, Pointed))


Choose = Callable[[Any, dict[str, Any]], Choice]
# Ends the reason of a launch that only other GPUs can make.
UNDER_A_CHECK = "; launch it under a check of "


@dataclass(frozen=True)
class LaunchOptions:
    """Keywords of launches that Triton takes for options: on the GPUs of a trace, and on others."""

    here: frozenset[str]
    elsewhere: frozenset[str]

    def __contains__(self, name: str) -> bool:
        return name in self.here or name in self.elsewhere


class Calls(LaunchRouter):
    """Records the launches of a body instead of running them."""

    def __init__(
        self, owner: Any, recorder: Recorder, choose: Choose, options: LaunchOptions
    ) -> None:
        super().__init__(owner)
        self.recorder = recorder
        self._choose = choose
        self._options = options

    def on_launch(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        where = locate()
        if _kernels.is_interpreted(kernel):
            what = "it runs in Triton's interpreter, which compiles nothing"
            fix = "unset TRITON_INTERPRET for the build"
            raise self.error(what, kernel, found=f"launched at {where}", fix=fix)
        grid = kwargs.pop("grid", None)
        for name in ("warmup", "debug", "instrumentation_mode"):
            kwargs.pop(name, None)
        base = _kernels.innermost(kernel)
        for setting, hook in _compat.launches.launch_hooks(base):
            self.recorder.notes.append(_not_called(setting, hook))
        named = dict(zip(base.arg_names, args, strict=False))
        if len(args) > len(base.arg_names):
            what = f"it takes {len(base.arg_names)} arguments, got {len(args)}"
            raise self._mistake(what, base, where)
        config = self._choose_config(kernel, named, kwargs)
        given = {**named, **kwargs}
        unknown = [n for n in given if n not in base.arg_names and n not in self._options]
        if unknown:
            raise self._mistake(f"it has no parameter {unknown[0]!r}", base, where)
        arguments = dict(self._arguments_of(base, given, where))
        # Triton takes a keyword for an option, also where a parameter has the same name.
        options = {n: _plain(v) for n, v in kwargs.items() if n in self._options}
        options = {n: v for n, v in options.items() if v is not None}
        self._refuse_lacking_gpus(base, options, where)
        if callable(grid):
            grid = grid({**given, **arguments})
        sizes = [term_of(_compat.kernels.unwrap_constexpr(n)) for n in _as_tuple(grid)]
        x, y, z = [*sizes, 1, 1, 1][:3]
        passed = {n: _passed(n, v, base) for n, v in arguments.items()}
        for argument in passed.values():
            if isinstance(argument, Pointed):
                self.recorder.refuse_kept(argument.memory)
        called = TracedLaunch(base, passed, (x, y, z), options, where, config)
        self.recorder.steps.append(called)

    def _refuse_lacking_gpus(self, base: Any, options: dict[str, Any], where: str) -> None:
        """Raise on paths of GPUs that lack what a launch asks for."""
        gpu = _compat.driver.current()
        assert gpu is not None
        asked = [f"num_ctas={options['num_ctas']}"] if options.get("num_ctas", 1) > 1 else []
        asked += ["launch_pdl=True"] if options.get("launch_pdl") else []
        if asked and (
            gpu.is_amd or self.recorder.symbols.integer(Var(MAJOR)) < HOPPER.capability[0]
        ):
            # AMD's may have capability 9 as well.
            asking = "torch.version.hip" if gpu.is_amd else "the capability"
            what = f"{' and '.join(asked)} needs sm_90"
            raise UnsupportedBody(_of_launch(base, where, f"{what}{UNDER_A_CHECK}{asking}"))
        others = [n for n in options if n not in self._options.here and n != "launch_pdl"]
        if others:
            vendor = "NVIDIA" if gpu.is_amd else "AMD"
            what = f"{others[0]} is an option of launches on {vendor} GPUs"
            raise UnsupportedBody(
                _of_launch(base, where, f"{what}{UNDER_A_CHECK}torch.version.hip")
            )

    def _choose_config(
        self, kernel: Any, named: dict[str, Any], kwargs: dict[str, Any]
    ) -> Config | None:
        """Adds what autotuners and heuristics add, from the outside in, as a real launch does."""
        config = None
        for part in _kernels.chain(kernel)[:-1]:
            if _kernels.is_heuristics(part):
                for name in part.values:
                    kwargs[name] = self.evaluate_heuristic(part, name, {**named, **kwargs})
                continue
            choice = self._choose(part, {**named, **kwargs})
            index = choice.index or 0
            chosen = part.configs[index]
            kwargs.update(chosen.all_kwargs())
            if chosen.pre_hook is not None:
                # Traced like the body: it may set block shapes, and what it fills is filled.
                given = {**named, **kwargs}
                before = self._left_by_hooks(given)
                chosen.pre_hook(dict(given))
                # By identity: a comparison of sizes would become a guard.
                if all(map(operator.is_, before, self._left_by_hooks(given))):
                    setting = f"pre_hook of a triton.Config of {_kernels.kernel_name(part)}"
                    self.recorder.notes.append(_not_called(setting, chosen.pre_hook))
            config = Config(index, len(part.configs), str(chosen), choice.why)
        return config

    def _left_by_hooks(self, given: dict[str, Any]) -> list[Any]:
        """What a library has of a hook: the last step, the last offence, and block shapes."""
        types = _compat.tma.descriptor_types()
        shapes = [value.block_shape for value in given.values() if isinstance(value, types)]
        last = [
            listed[-1] if listed else None
            for listed in (self.recorder.steps, self.recorder.offences)
        ]
        return [*last, *shapes, *(size for shape in shapes for size in shape)]

    def _arguments_of(
        self, base: Any, given: dict[str, Any], where: str
    ) -> Iterator[tuple[str, Any]]:
        for param in base.params:
            if param.name in given:
                value = _compat.kernels.unwrap_constexpr(given[param.name])
            elif param.has_default:
                value = _compat.kernels.unwrap_constexpr(param.default)
            else:
                raise self._mistake(f"argument {param.name!r} is missing", base, where)
            if param.is_constexpr:
                value = _plain(value)
            elif what := _unpassed(value):
                said = f"argument {param.name!r} is a {what}, which a native library cannot pass"
                self.recorder.note(_of_launch(base, where, said))
            yield param.name, value

    def _mistake(self, what: str, base: Any, where: str) -> UnsupportedBody:
        fix = correct_launch(base.arg_names)
        return self.error(what, base, found=f"launched at {where}", fix=fix)


def _of_launch(kernel: Any, where: Place, what: str) -> Told:
    name, location = _kernels.kernel_name(kernel), _kernels.kernel_location(kernel)
    return told(lambda at: f"kernel {name} ({at(location)}), launched at {at(where)}: {what}")


def _not_called(setting: str, hook: Any) -> Told:
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    name = getattr(hook, "__qualname__", type(hook).__qualname__)

    def text(at: Callable[[Place], str]) -> str:
        where = f" ({at(f'{code.co_filename}:{code.co_firstlineno}')})" if code else ""
        return f"{name}{where}, in {setting}, is Python, and the library's launches do not call it"

    return told(text)


def _unpassed(value: Any) -> str:
    """What an argument is that a library cannot pass; empty if it can."""
    if isinstance(value, torch.Tensor) and not isinstance(value, Traced):
        return "tensor that is not a parameter"
    return type(value).__name__ if isinstance(value, (tuple, list)) else ""


def _plain(value: Any) -> Any:
    """The value that a size has on this path, which it is specialized to."""
    value = _compat.kernels.unwrap_constexpr(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value.node.guard_float("", 0))
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(v) for v in value)
    return value


def pointed(value: Any) -> Any:
    """Triton accepts anything with an address and a dtype as a tensor."""
    if isinstance(value, _compat.tma.descriptor_types()):
        return _described(value)
    if isinstance(value, type) or not callable(getattr(value, "data_ptr", None)):
        return dense(value)
    address = value.data_ptr()
    if not isinstance(address, tracing.Address):
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    strides = value.strides if isinstance(value, Traced) else ()
    return Pointed(address.memory, address.offset, ALIASES.get(dtype, dtype), strides)


def _passed(name: str, value: Any, kernel: Any) -> Any:
    try:
        return pointed(value)
    except NotConstant as error:
        of = f"kernel {_kernels.kernel_name(kernel)} ({_kernels.kernel_location(kernel)})"
        error.purpose = f"a block of {name}, a tensor descriptor, of {of}"
        raise


def _described(value: Any) -> Described:
    base = pointed(value.base)
    block = [_plain(n) for n in value.block_shape]
    # Not before: these sizes were symbolic when the descriptor was made.
    tracing.validate_block_shape(block)
    return Described(
        base.memory,
        base.offset,
        base.dtype,
        tuple(map(dense, value.strides)),
        tuple(value.shape),
        _compat.tma.signature(base.dtype, block, value),
        value.padding == "nan",
        _compat.tma.is_tf32(value),
    )


def _as_tuple(grid: Any) -> tuple[Any, ...]:
    return (grid,) if isinstance(grid, int) or is_symbolic(grid) else tuple(grid)
