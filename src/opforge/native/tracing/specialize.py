"""From a launch to its kernel variants, specialized as Triton's JIT would.

The JIT recompiles for what it sees: addresses and integers that are multiples of 16, integers that
need 64 bits, integers that are 1. A library must have all of these variants in advance:

    i32, addresses and integers multiples of 16  |  addresses and strides  |  addresses  |  nothing
    i64 where a size may exceed 32 bits: multiples of 16  |  nothing
    before these, where strides are symbolic: one stride of every such tensor is 1

Memory that is known to be dense is read in wide words, so strides matter most. Block counts such as
`n // 128` are never checked: they are seldom multiples of 16, and address nothing.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import torch

from ... import _compat
from ..ir.cases import ONE, Argument, Descriptor, Launch, Pointer, ScalarValue, Variant
from ..ir.expr import Expr, Term, Var, is_float, is_stride, variables
from ..ir.kernel_request import Request
from ..symbolic.algebra import Algebra
from ..symbolic.symint import is_symbolic, term_of
from .launches import Described, Pointed, TracedLaunch
from .recorder import Buffer

_kernels = _compat.kernels
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
    """Turns launches into variants and keeps the kernels that they need."""

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
