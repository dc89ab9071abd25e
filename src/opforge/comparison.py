"""How two results differ: torch.testing.assert_close, with one rule for tolerances.

A result is a tensor, or any nest of records, tuples, lists and dicts. Its leaves have paths:
`output[1]`, `cfg.weight`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .notebook import counted

Tensor = torch.Tensor
Tolerance = float | tuple[float, float] | None

# Relative; a little wider than torch.testing's for float32, because sums are taken in a different
# order. The absolute part is the same share of the expected values' root mean square.
_RELATIVE = {
    torch.float64: 1e-7,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.complex128: 1e-7,
    torch.complex64: 1e-5,
}
_COARSE = 0.125  # the rest are 8-bit floats
# How much wider it is where every step rounds, and the steps are not the other's: a backward, or
# a model that was compiled as a whole.
MANY_STEPS = 4


def difference(  # noqa: PLR0917  # two values, their name, and how far they may be off
    found: Any,
    expected: Any,
    path: str,
    tolerance: Tolerance = None,
    steps: int = 1,
    floor: float = 0.0,
) -> str:
    """How two values differ beyond the tolerance; empty if they do not.

    Without a tolerance, it follows from the dtype, `steps` times; errors up to `floor` pass.
    """
    pairs = paired(found, expected, path)
    if pairs is None:
        return f"{path}: {unlike(found, expected, ', expected')}"
    for where, a, b in pairs:
        text = _leaf_difference(a, b, tolerance, steps, floor)
        if text:
            return f"{where}: {text}"
    return ""


def largest_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Of tensors that `difference` finds alike: what is NaN or infinite in both does not differ."""
    pairs = [(_wide(a), _wide(b)) for a, b in zip(found, expected, strict=True) if a.numel()]
    # Numbers of other kinds are equal.
    gaps = [(a - b).abs() for a, b in pairs if a.is_floating_point() or a.is_complex()]
    return max((float(gap.nan_to_num(0.0).max()) for gap in gaps), default=0.0)


def tensors_in(value: Any, path: str) -> list[tuple[str, Tensor]]:
    return [(p, v) for p, v in leaves(value, path) if isinstance(v, Tensor)]


def leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    """The leaves of a value with their paths."""
    steps = parts(value)
    if steps is None:
        return [(path, value)]
    return [pair for step, part in steps for pair in leaves(part, path + step)]


def parts(value: Any) -> list[tuple[str, Any]] | None:
    """What a record or container holds, with the last part of its path; None for a leaf."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{n}", getattr(value, n)) for n in value._fields]
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if type(value) is list or isinstance(value, tuple):
        # torch's own, such as that of torch.topk, are tuples.
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    return None


def paired(found: Any, expected: Any, path: str) -> list[tuple[str, Any, Any]] | None:
    """The leaves of two values side by side; None if they have not as many, or other keys.

    A function may return a tuple where another returns a NamedTuple or a list.
    """
    left, right = leaves(found, path), leaves(expected, path)
    keys = [[where for where, _ in side if "['" in where] for side in (left, right)]
    if len(left) != len(right) or keys[0] != keys[1]:
        return None
    return [(where, a, b) for (where, a), (_, b) in zip(left, right, strict=True)]


def unlike(one: Any, other: Any, between: str) -> str:
    """How two values are arranged: `1 value, expected 2 values`; if in as many, by their names."""
    left, right = ([path or "one value" for path, _ in leaves(v, "")] for v in (one, other))
    if len(left) != len(right):
        return f"{counted(len(left), 'value')}{between} {counted(len(right), 'value')}"
    return f"{', '.join(left)}{between} {', '.join(right)}"


def shown(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else repr(value)[:80]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """NaN equals NaN here, and 0.0 differs from -0.0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.layout is not torch.strided:
        return bool(torch.equal(a.to_dense(), b.to_dense()))
    return bool(torch.equal(_bits(a), _bits(b)))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def root_mean_square(tensor: Tensor) -> float:
    """Of what is finite; 0 if nothing is."""
    size = _wide(tensor).abs()
    size = size[size.isfinite()]
    return float(size.square().mean().sqrt()) if size.numel() else 0.0


def copy_of(tensor: Tensor) -> Tensor:
    """A copy with the same strides, gaps and overlaps."""
    plain = tensor.detach()
    if type(plain) is not Tensor or plain.layout is not torch.strided or not plain.numel():
        return plain.clone()
    extent = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
    memory = plain.as_strided((extent,), (1,), plain.storage_offset()).clone()
    return memory.as_strided(plain.shape, plain.stride())


def _leaf_difference(a: Any, b: Any, tolerance: Tolerance, steps: int, floor: float) -> str:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        same = type(a) is type(b) if isinstance(a, Tensor) or isinstance(b, Tensor) else a == b
        return "" if same else f"{shown(a)}, expected {shown(b)}"
    relative = absolute = 0.0
    if a.dtype == b.dtype and a.device == b.device and not a.is_meta:
        if same_bits(a, b):
            return ""
        if a.is_floating_point() or a.is_complex():
            relative, absolute = _tolerances(b, tolerance, steps)
        # In double, which also 8-bit floats can be compared in.
        a, b = _wide(a), _wide(b)
    try:
        torch.testing.assert_close(
            a, b, rtol=relative, atol=max(absolute, floor), equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        lines = [line.rstrip(".") for line in str(error).splitlines() if line]
        return "; ".join(lines[1:] or lines)
    return ""


def _tolerances(expected: Tensor, given: Tolerance, steps: int) -> tuple[float, float]:
    if isinstance(given, tuple):
        return given
    relative = steps * _RELATIVE.get(expected.dtype, _COARSE) if given is None else given
    return relative, relative * root_mean_square(expected)


def _wide(tensor: Tensor) -> Tensor:
    dense = tensor.detach()
    if dense.layout is not torch.strided:
        dense = dense.to_dense()
    if dense.is_complex():
        return dense.to(torch.complex128)
    return dense.double() if dense.is_floating_point() else dense
