"""What Triton's interpreter computes wrongly, mended: kernels are tried there without a GPU.

It keeps bfloat16, which numpy lacks, as bits, and computes with them as with integers: 1 + 1 gives
1.7e38. It gives a comparison the type of what is compared. Seen in 3.6 to 3.9.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import patches


@functools.cache
def mend() -> None:
    """Replace, for good, what the interpreter, which is loaded, computes wrongly."""
    made = {
        "binary_op": _binary,
        "unary_op": _widened,
        "ternary_op": _widened,
        "create_fma": _widened,
        "create_dot": _widened,
        "cast_impl": _cast,
        "create_fp_to_fp": _convert,
        "get_bf16": _constant,
    }
    for name, make in made.items():
        patches.install_for_good(patches.INTERPRETER.by(name, make))
    patches.install_for_good(patches.INTERPRETER_REDUCTION.by("apply", _reduced))
    patches.install_for_good(patches.INTERPRETER_TENSORS.by("_patch_lang_tensor", _with_index))


def _handle(data: Any, dtype: Any) -> Any:
    return sys.modules["triton.runtime.interpreter"].TensorHandle(data, dtype)


def _types() -> Any:
    return sys.modules["triton.runtime.interpreter"].tl


def _is_bf16(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and getattr(dtype.scalar, "name", "") == "bf16"


def _wide(value: Any) -> Any:
    """A bfloat16 as fp32; anything else as it is."""
    if not _is_bf16(value):
        return value
    return _handle((value.data.astype("uint32") << 16).view("float32"), _types().float32)


def _narrow(value: Any) -> Any:
    """A number rounded to bfloat16, to nearest even."""
    wide = torch.from_numpy(value.data.astype("float32"))
    bits = wide.bfloat16().view(torch.int16).numpy().view("uint16")
    return _handle(bits, _types().bfloat16)


def _widened(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compute in fp32 and round once, as a GPU does; the last operand says the result's type."""

    @functools.wraps(original)
    def compute(self: Any, *args: Any) -> Any:
        if not any(map(_is_bf16, args)):
            return original(self, *args)
        found = original(self, *map(_wide, args))
        operands = [one for one in args if hasattr(one, "data") and hasattr(one, "dtype")]
        rounds = _is_bf16(operands[-1]) and found.data.dtype == "float32"
        return _narrow(found) if rounds else found

    return compute


def _binary(original: Callable[..., Any]) -> Callable[..., Any]:
    compute = _widened(original)

    @functools.wraps(original)
    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        found = compute(self, lhs, rhs, op)
        # A scalar one that is spread over a mask became integers, which 3.9 does not take.
        return _handle(found.data, _types().int1) if found.data.dtype == bool else found

    return binary_op


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    """Cuts off where a GPU rounds, and takes the bits for the number."""

    @functools.wraps(original)
    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar.name == "bf16":
            return src if _is_bf16(src) else _narrow(src)
        return original(self, _wide(src), dst_type)

    return cast_impl


def _convert(original: Callable[..., Any]) -> Callable[..., Any]:
    """Loses the carry where a float is rounded up to a power of two."""

    @functools.wraps(original)
    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
        to = dst_type.scalar
        if to.name == "bf16" and src.dtype.scalar.name != "fp32":
            return _narrow(original(self, src, _types().float32, rounding))
        src = _wide(src)
        is_half_or_single = src.dtype.scalar.name in {"fp16", "fp32"}
        if to.name != "fp8e4nv" or not is_half_or_single or "RTZ" in str(rounding):
            return original(self, src, dst_type, rounding)
        # A GPU keeps within the largest number.
        clamped = torch.from_numpy(src.data.astype("float32")).clamp(-448, 448)
        return _handle(clamped.to(torch.float8_e4m3fn).view(torch.uint8).numpy(), to)

    return create_fp_to_fp


def _constant(_original: Any) -> Callable[..., Any]:
    def get_bf16(self: Any, value: float) -> Any:
        return _narrow(self.get_fp32(value))

    return get_bf16


def _with_index(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a scalar an index: numpy 2.4 takes no array of one element for one, as Triton 3.6 asks.

    Since 3.7 Triton asks otherwise.
    """

    @functools.wraps(original)
    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch_lang_tensor


def _reduced(original: Callable[..., Any]) -> Callable[..., Any]:
    """Reductions and scans, which numpy does on the data as it is kept."""

    @functools.wraps(original)
    def apply(self: Any, input: Any) -> Any:  # noqa: A002  # Triton's name
        if not isinstance(input, tuple):
            return apply(self, (input,))[0]
        rounds = [_is_bf16(one) for one in input]
        if not any(rounds):
            return original(self, input)
        found = original(self, tuple(map(_wide_tensor, input)))
        return tuple(
            _narrow_tensor(self, one) if is_bf16 else one
            for one, is_bf16 in zip(found, rounds, strict=True)
        )

    return apply


def _narrow_tensor(interface: Any, value: Any) -> Any:
    # A scalar is kept as an array of one element, which would become a block.
    shape = tuple(map(int, value.shape))
    return interface.to_tensor(_narrow(value.handle).data.reshape(shape), _types().bfloat16)


def _wide_tensor(value: Any) -> Any:
    if not _is_bf16(value):
        return value
    tl = _types()
    shape = [int(size) for size in value.shape]
    kind = tl.block_type(tl.float32, shape) if shape else tl.float32
    return tl.core.tensor(_wide(value.handle), kind)
