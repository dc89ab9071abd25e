"""Host-side tensor descriptors (TMA): what Triton makes of one, and what its kernels expect."""

from __future__ import annotations

import copy
import importlib
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

_TRITON = "triton.tools.tensor_descriptor"
_GLUON = "triton.experimental.gluon.nvidia.hopper"
_MODULES = (_TRITON, _GLUON)
# By Triton's number for an element's type, CUDA's.
_ELEMENTS = {**{number: number for number in range(16)}, 8: 10, 9: 8, 10: 9}


_TYPE = re.compile(r"tensordesc<(\w+)\[(\d+(?:, \d+)*)\](?:,(.+))?>")


class DescriptorClass(NamedTuple):
    """A class of descriptors, and which fields it has beyond those that all have."""

    cls: type[Any]
    has_layout: bool
    has_tf32: bool


class ExpectedMap(NamedTuple):
    """A tensor map as a compiled kernel expects it: types and swizzle in CUDA's numbers."""

    element: int
    element_size: int
    swizzle: int
    block: tuple[int, ...]
    is_padded_fp4: bool


def descriptor_types() -> tuple[type[Any], ...]:
    """The classes of descriptors whose modules are imported: Triton's and Gluon's."""
    modules = [sys.modules[name] for name in _MODULES if name in sys.modules]
    return tuple(module.TensorDescriptor for module in modules)


def descriptor_classes(*, gluon: bool) -> tuple[DescriptorClass, ...]:
    """Triton's class, and Gluon's if it is imported or asked for."""
    modules = [importlib.import_module(_TRITON)]
    if gluon or _GLUON in sys.modules:
        modules.append(importlib.import_module(_GLUON))
    found = [(m.TensorDescriptor, m.TensorDescriptor.__dataclass_fields__) for m in modules]
    return tuple(
        DescriptorClass(cls, "layout" in fields, "round_f32_to_tf32" in fields)
        for cls, fields in found
    )


def with_base(descriptor: Any, base: Any) -> Any:
    """A descriptor of another tensor, unchecked."""
    made = copy.copy(descriptor)
    made.base = base
    return made


def is_checking() -> bool:
    """Whether the caller's caller is a descriptor that is being made."""
    return sys._getframe(2).f_globals.get("__name__") in _MODULES


def refused_base(error: BaseException) -> Any:
    """The tensor whose descriptor an error is about; None if it is about something else."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_globals.get("__name__") not in _MODULES:
        return None
    return getattr(trace.tb_frame.f_locals.get("self"), "base", None)


def signature(dtype: str, block: list[int], descriptor: Any) -> str:
    """The type of a parameter: `tensordesc<fp16[64, 64]>`."""
    layout = getattr(descriptor, "layout", None)
    return f"tensordesc<{dtype}{block}{'' if layout is None else f',{layout!r}'}>"


def rank(kind: str) -> int:
    """How many dimensions a parameter of a type has; 0 if it is not a descriptor.

    tensordesc<fp16[64, 64]>  ->  2
    """
    if not kind.startswith("tensordesc<"):
        return 0
    return kind.partition("[")[2].partition("]")[0].count(",") + 1


def parts(kind: str) -> tuple[str, tuple[int, ...], str | None]:
    """The element, block and layout of a type; raises `ValueError`.

    tensordesc<fp16[64, 32]>  ->  "fp16", (64, 32), None
    """
    match = _TYPE.fullmatch(kind)
    if match is None:
        raise ValueError(f"{kind!r} is not the type of a tensor descriptor")
    return match[1], tuple(map(int, match[2].split(", "))), match[3]


def is_tf32(descriptor: Any) -> bool:
    """Whether fp32 elements are rounded when they are loaded; Triton 3.6 cannot."""
    return bool(getattr(descriptor, "round_f32_to_tf32", False))


def flags() -> int:
    """How many flags a kernel without tensor maps takes with a descriptor: of padding, and of tf32.

    Triton 3.6 does not have the second.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    return 2 if "round_f32_to_tf32" in TensorDescriptor.__dataclass_fields__ else 1


def expected(metadata: Mapping[str, Any]) -> tuple[ExpectedMap, ...]:
    """The maps that a compiled kernel takes, in the order of its descriptors."""
    return tuple(
        ExpectedMap(
            _ELEMENTS[one["elem_type"]],
            one["elem_size"],
            one["swizzle"],
            tuple(one["block_size"]),
            bool(one["fp4_padded"]),
        )
        for one in metadata.get("tensordesc_meta") or ()
    )
