"""Kernel launches of a traced body: which function, with which arguments, over which grid."""

from __future__ import annotations

import functools
import itertools
import operator
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ... import _compat
from ..._compat import tracing
from ..._compat.tracing import Traced
from ...arch import HOPPER
from ...capture import LaunchRouter, correct_launch
from ...errors import UnsupportedBody
from ...tuning.choose import Choice, choose, table_in_use
from ...tuning.table import TuningTable, load
from ..ir.abi import MAJOR
from ..ir.cases import ONE, Argument, Descriptor, Launch, Pointer, ScalarValue, Variant
from ..ir.dtypes import ALIASES
from ..ir.expr import Expr, Term, Var, is_float, is_stride, variables
from ..ir.kernel_request import Request
from ..ir.places import Place, Told, told
from ..symbolic.algebra import Algebra
from ..symbolic.symint import NotConstant, dense, is_symbolic, term_of
from .recorder import Buffer, Recorder, locate
from .traced_gpu import archs_left

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


_I32 = 2**31 - 1


@dataclass(frozen=True)
class Slot:
    """A run-time parameter of one launch; `type` is fixed, or None for an int of either width."""

    position: int
    name: str
    argument: Argument
    type: str | None
    # Whether the JIT would check its alignment, and whether it is known to be a multiple of 16.
    aligns: bool = False
    multiple: bool = False
    wide: bool = False
    is_stride: bool = False
    # Whether the JIT would make it a constant if it is 1.
    folds: bool = False


class Specializer:
    """Turns launches into variants, specialized as Triton's JIT would.

    The JIT recompiles for what it sees: addresses and integers that are multiples of 16, integers
    that need 64 bits, integers that are 1. A library must have all of these variants in advance:

        i32, addresses and integers multiples of 16  |  addresses and strides  |  addresses  | none
        i64 where a size may exceed 32 bits: multiples of 16  |  none
        before these, where strides are symbolic: one stride of every such tensor is 1

    Memory that is known to be dense is read in wide words, so strides matter most. Block counts
    such as `n // 128` are never checked: they are seldom multiples of 16, and address nothing.
    """

    def __init__(self, algebra: Algebra, scalars: dict[str, str]) -> None:
        self.algebra = algebra
        self.scalars = scalars
        # Strides of the tensors of the current launch.
        self.strides: set[Term] = set()
        # Sizes of its descriptors, which have 32 bits.
        self.narrow: set[Term] = set()

    def launch(
        self, called: TracedLaunch, names: dict[Buffer, str]
    ) -> tuple[Launch, list[Request]]:
        """A launch and a request per variant; `names` gives the library's name of each buffer."""
        slots: list[Slot] = []
        constants: dict[str, Any] = {}
        pointed = [value for value in called.arguments.values() if isinstance(value, Pointed)]
        self.strides = {term_of(stride) for value in pointed for stride in value.strides}
        described = [value for value in pointed if isinstance(value, Described)]
        self.narrow = {term_of(size) for value in described for size in value.sizes}
        for param in called.fn.params:
            value = called.arguments[param.name]
            if isinstance(value, Described):
                slots += _descriptor_slots(param, value, names)
                continue
            slot = None if param.is_constexpr else self._slot(param, value, names)
            if slot is None:
                constants[param.name] = 1 if _is_one(param, value) else value
            else:
                slots.append(slot)
        variants, requests = [], []
        source = _compat.kernel_hash.hash_or_unique(called.fn).digest
        for types, aligned, divisible in _forms(slots):
            conditional = (*aligned, *divisible)
            request = self._request(called, slots, constants, types, conditional, source=source)
            variant = Variant(request.key, types, aligned, divisible)
            if variant not in variants:
                variants.append(variant)
                requests.append(request)
        launch = Launch(
            _kernels.kernel_name(called.fn),
            _kernels.kernel_location(called.fn),
            called.grid,
            tuple(s.argument for s in slots),
            tuple(variants),
            tuple((n, _spelled(v)) for n, v in constants.items()),
            called.location,
        )
        return launch, requests

    def _slot(self, param: Any, value: Any, names: dict[Buffer, str]) -> Slot | None:
        """The run-time parameter that an argument becomes, or None for a constant."""
        if value is None:
            return None
        looks = not param.do_not_specialize
        aligns = looks and not param.do_not_specialize_on_alignment
        slot = functools.partial(Slot, param.num, param.name)
        if isinstance(value, Pointed):
            offset = term_of(value.offset)
            pointer = Pointer(param.name, names[value.memory], offset, value.dtype)
            annotated = param.annotation_type
            # Triton has another name for a bool in memory.
            held = "u1" if pointer.dtype == "i1" else pointer.dtype
            type_ = annotated if annotated.startswith("*") else f"*{held}"
            if param.is_const and not type_.startswith("*k"):
                type_ = f"*k{type_[1:]}"
            return slot(pointer, type_, aligns)
        if _is_one(param, value):
            return None
        term = term_of(value)
        argument = ScalarValue(param.name, term)
        if isinstance(value, (bool, torch.SymBool)):
            return slot(argument, "u1")
        fixed = param.annotation_type or self._declared_type(term)
        if fixed is None and (is_float(term) or isinstance(value, torch.SymFloat)):
            fixed = "fp64" if self._mentions_double(term) else "fp32"
        if fixed is not None and fixed.startswith(("fp", "bf", "u1")):
            return slot(argument, fixed)
        multiple = aligns and self.algebra.is_multiple(term, 16)
        low, high = self.algebra.range(term)
        wide = (low < -_I32 - 1 or high > _I32) and term not in self.narrow
        if fixed is None and isinstance(term, int):
            fixed = "i64" if wide else "i32"
        if fixed is not None:
            return slot(argument, fixed, aligns, multiple)
        is_stride = term in self.strides
        aligns = aligns and (is_stride or not _divides(term))
        return slot(argument, None, aligns, multiple, wide, is_stride, folds=looks)

    def _declared_type(self, term: Term) -> str | None:
        """A scalar that is passed on unchanged keeps its declared type."""
        return self.scalars.get(term.name) if isinstance(term, Var) else None

    def _mentions_double(self, term: Term) -> bool:
        return any(self.scalars.get(v.name) == "fp64" for v in variables(term))

    def _request(
        self,
        called: TracedLaunch,
        slots: list[Slot],
        constants: dict[str, Any],
        types: tuple[str, ...],
        conditional: tuple[int, ...],
        *,
        source: str,
    ) -> Request:
        by_name = {s.name: t for s, t in zip(slots, types, strict=True) if t != ONE}
        constants = constants | {s.name: 1 for s in slots if s.name not in by_name}
        in_order = [p.name for p in called.fn.params if p.name in constants]
        fn = called.fn
        always = [s.position for s in slots if s.multiple]
        divisible = sorted({*always, *(slots[i].position for i in conditional)})
        return Request(
            fn,
            _kernels.kernel_name(fn),
            _kernels.kernel_location(fn),
            f"{fn.fn.__module__}:{fn.fn.__qualname__}",
            source,
            tuple((p.name, by_name.get(p.name, "constexpr")) for p in fn.params),
            tuple((n, constants[n]) for n in in_order),
            tuple(divisible),
            tuple(sorted(called.options.items())),
        )


def _descriptor_slots(param: Any, value: Described, names: dict[Buffer, str]) -> list[Slot]:
    """A descriptor, then the sizes and strides that Triton's launcher passes with it."""
    base = Descriptor(
        param.name,
        names[value.memory],
        term_of(value.offset),
        value.dtype,
        len(value.sizes),
        value.is_nan,
        value.is_tf32,
    )
    numbers = [
        Slot(param.num, f"{param.name}.{what}[{d}]", ScalarValue(f"{param.name}.{what}[{d}]", n), t)
        for what, terms, t in (("shape", value.sizes, "i32"), ("strides", value.strides, "i64"))
        for d, n in enumerate(map(term_of, terms))
    ]
    return [Slot(param.num, param.name, base, value.type), *numbers]


def _forms(
    slots: list[Slot],
) -> list[tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]]:
    """Types, aligned arguments and divisible arguments of each variant, most specialized first."""
    aligning = [(i, s, s.argument) for i, s in enumerate(slots) if s.aligns]
    pointers = tuple(i for i, _, argument in aligning if isinstance(argument, Pointer))
    integers = tuple(
        i
        for i, slot, argument in aligning
        if isinstance(argument, ScalarValue)
        and not slot.multiple
        and not isinstance(argument.value, int)
    )
    strides = tuple(i for i in integers if slots[i].is_stride)
    narrow = tuple(s.type or "i32" for s in slots)
    wide = tuple(s.type or ("i64" if s.wide else "i32") for s in slots)
    forms = []
    for ones in [*_unit_strides(slots), frozenset[int]()]:
        types = tuple(ONE if i in ones else type_ for i, type_ in enumerate(narrow))
        forms += [
            (types, pointers, tuple(i for i in divisible if i not in ones))
            for divisible in (integers, strides, ())
        ]
    forms.append((narrow, (), ()))
    if wide != narrow:
        forms += [(wide, pointers, integers), (wide, (), ())]
    return list(dict.fromkeys(forms))


# At most this many combinations of unit strides; each makes two variants.
_MOST_DENSE = 16


def _unit_strides(slots: list[Slot]) -> list[frozenset[int]]:
    """Which arguments are 1 in the variants for dense tensors: one stride of each tensor.

    (a.stride[0], a.stride[1], b.stride[0], b.stride[1]) -> {1, 3}, {1, 2}, {0, 3}, {0, 2}
    """
    strides: dict[str, list[int]] = {}
    for i, slot in enumerate(slots):
        value = slot.argument.value if isinstance(slot.argument, ScalarValue) else None
        if isinstance(value, Var) and is_stride(value) and slot.folds:
            strides.setdefault(value.name.partition(".")[0], []).append(i)
    if not strides:
        return []
    # Rows are dense more often than columns; other dimensions hardly ever are.
    chosen = list(itertools.product(*(found[:-3:-1] for found in strides.values())))
    if len(chosen) > _MOST_DENSE:
        chosen = [chosen[0], chosen[-1]]
    return [frozenset(one) for one in chosen]


def _divides(term: Term) -> bool:
    return isinstance(term, Expr) and (term.op in {"//", "%"} or any(map(_divides, term.args)))


def _is_one(param: Any, value: Any) -> bool:
    """The JIT makes an integer 1 a constant unless the parameter opts out or has a type."""
    if param.do_not_specialize or param.annotation_type or isinstance(value, bool):
        return False
    return isinstance(value, int) and value == 1 and not is_symbolic(value)


def _spelled(value: Any) -> str:
    name = getattr(value, "__name__", None)
    return name if callable(value) and name else repr(value)


# The configuration of a launch, from a tuning table: the lookup runs on symbolic sizes, so its
# comparisons become guards of the library's paths, and so does its choice by GPU.


def first_config(_tuner: Any, _arguments: dict[str, Any]) -> Choice:
    """The configuration that a build without a tuning table takes."""
    return Choice(None, "without a tuning table")


def by_table(path: str | os.PathLike[str] | None) -> Choose:
    """The rule that picks configurations in a build, with or without a table."""
    if path is None:
        return first_config
    return from_table(load(path), Path(path).name)


def in_use() -> Choose:
    """The same with the tables of `opforge.use_tuning`."""
    table, name = table_in_use()
    return from_table(table, name) if len(table) else first_config


def from_table(table: TuningTable, name: str) -> Choose:
    return lambda tuner, arguments: replace(_chosen(table, tuner, arguments), table=name)


def _chosen(table: TuningTable, tuner: Any, arguments: dict[str, Any]) -> Choice:
    if not _compat.autotuning.has_choice(tuner):
        return Choice(0)
    names = _compat.autotuning.key_names(tuner, arguments)
    values = [_compat.autotuning.plain(arguments[n]) for n in names]
    dtypes = _compat.autotuning.dtypes_of(tuner, arguments)
    gpu = _compat.driver.current()
    assert gpu is not None
    found = choose(table, tuner, gpu.arch, dtypes, values, archs=archs_left)
    if found.index is not None:
        return found
    return Choice(None, f"the tuning table has {found.why}, so")
