"""Recognizes and finds operators; looking one up never raises or registers anything."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace

# The namespaces that torch itself fills, some only once a part of torch is imported.
BUILT_IN = frozenset(
    """
    _c10d_functional _c10d_functional_autograd _dtensor _inductor_debug _inductor_test _native
    _prim _quantized _test _torch_testing ao aten aten_ bucketing c10d c10d_functional cuda
    debug_mode_ops debugprims device_mesh export fsdp higher_order inductor inductor_prims metal
    mkl mkldnn mkldnn_prepacked mkldnn_prims nvprims onednn onnx prepacked prim prims profiler
    quantization quantized quantized_decomposed rngprims rpc semi_structured sparse
    static_runtime streams symm_mem tensorexpr torch_attn vulkan xnnpack
    """.split()  # noqa: SIM905  # one a line would fill a page
)


# Where a function keeps the overload that it calls. The name is MagiCompiler's, so that each finds
# the other's ops.
MARK = "_magi_torch_registered_op"

_NAMES: dict[type[Any], Callable[[Any], str]] = {
    OpOverload: lambda op: str(op._schema.name if op.namespace in BUILT_IN else op.name()),
    OpOverloadPacket: lambda op: str(op._qualified_op_name),
    CustomOpDef: lambda op: str(op._qualname),
    HigherOrderOperator: lambda op: f"higher_order::{op.name()}",
}
# What names the objects of a class, cached because every called function is asked. Keyed by id,
# because hashing a class may run its metaclass's code; the class is kept, so that its id is not
# reused.
_kinds: dict[int, tuple[type[Any], Callable[[Any], str] | None]] = {}


def is_built_in(name: str) -> bool:
    """Whether an operator of that name is torch's own."""
    return name.partition("::")[0] in BUILT_IN


def is_root(value: Any) -> bool:
    """Whether a value is `torch.ops`."""
    return value is torch.ops


def namespace_name(value: Any) -> str | None:
    """The "ns" of `torch.ops.ns`."""
    return str(value.name) if issubclass(type(value), _OpNamespace) else None


def operator_name(value: Any) -> str | None:
    """The "ns::op" of an overload, a packet, a `CustomOpDef` or a higher-order operator.

    An overload that is neither the default nor torch's own is an "ns::op.overload".
    """
    cls = type(value)
    known = _kinds.get(id(cls))
    if known is None:
        # Past `issubclass`, which hashes a class where the other one is abstract.
        bases = {*map(id, type.__getattribute__(cls, "__mro__"))}
        named = next((name for kind, name in _NAMES.items() if id(kind) in bases), None)
        known = _kinds[id(cls)] = (cls, named)
    return None if known[1] is None else known[1](value)


def marked_overload(value: Any) -> Any:
    """The overload that a function says it calls, or None."""
    return vars(value).get(MARK) if issubclass(type(value), types.FunctionType) else None


def triton_op_body(overload: Any) -> Any:
    """The Python function behind an operator of `torch.library.triton_op`, or None."""
    from torch._library.custom_ops import OPDEFS
    from torch._library.triton import triton_ops_to_kernels

    name = operator_name(overload)
    if name not in triton_ops_to_kernels or name not in OPDEFS:
        return None
    return body_of(OPDEFS[name])


def body_of(value: Any) -> Any:
    """The Python function behind a `CustomOpDef`, or None."""
    return value._init_fn if issubclass(type(value), CustomOpDef) else None


def definition(name: str) -> Any:
    """The `CustomOpDef` of an op made by `torch.library`, or None."""
    return torch._library.custom_ops.OPDEFS.get(name)


def find(name: str) -> Any:
    """The packet registered as "ns::op", or the overload as "ns::op.overload"; or None.

    `torch.ops.ns.op` would create a namespace, and raise if there is no such operator.
    """
    name, _, overload = name.partition(".")
    try:
        found, _ = torch._C._jit_get_operation(name)
    except RuntimeError:
        return None
    space, _, op = name.partition("::")
    packet = None if found is None else getattr(getattr(torch.ops, space), op, None)
    return getattr(packet, overload, None) if overload else packet
