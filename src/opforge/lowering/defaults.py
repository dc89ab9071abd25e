r"""Defaults: how a schema spells a value, and which values it cannot spell.

1e-5 on a float     -> "1e-05"
"it's" on a str     -> "\"it's\""
inf on a float      -> None: valid, but the schema language cannot spell it
"x" on an int       -> BadSignature
"""

from __future__ import annotations

import math
import sys
from typing import Any

from ..errors import BadSignature
from ..model import MISSING, Leaf, Node, Record, fits_int64, flat_width

_WORDS = {"Layout": "strided", "MemoryFormat": "contiguous_format"}
_TORCH_KINDS = {
    "ScalarType": "dtype",
    "Device": "device",
    "Layout": "layout",
    "MemoryFormat": "memory_format",
}


def flatten_default(node: Node, value: Any, parameter: str) -> list[Any]:
    """A parameter's or field's default as one encoded value per flat argument of its node."""
    if isinstance(node, Leaf):
        return [_encode(node, value, parameter)]
    if value is MISSING:
        flags = [MISSING] if node.optional else []
        return flags + [
            v for f in node.fields for v in flatten_default(f.node, f.default, parameter)
        ]
    if value is None:
        if not node.optional:
            raise _misfit(parameter, value, f"{node.cls.__name__}", f"{node.cls.__name__} | None")
        return [False, *[None] * (flat_width(node) - 1)]
    flat: list[Any] = [True] if node.optional else []
    for item, part in zip(node.fields, _parts(node, value, parameter), strict=True):
        flat += flatten_default(item.node, part, parameter)
    return flat


def schema_text(leaf: Leaf, value: Any) -> str | None:
    """An encoded default in the schema language, or None where it cannot spell the value."""
    if value is None:
        return "None"
    if leaf.container:
        # `int[]? a=[1]`, `str[] a=[]` and `Tensor?[] a=[]` do not parse.
        if (
            leaf.optional
            or leaf.element_optional
            or leaf.base not in ("SymInt", "int", "float", "bool")
        ):
            return None
        words = [_word(leaf.base, v) for v in value]
        return None if None in words else f"[{', '.join(w for w in words if w)}]"
    return _word(leaf.base, value)


def _word(base: str, value: Any) -> str | None:
    if base == "str":
        return _quoted(value)
    if base == "Device":
        return f'"{value}"'
    if base == "ScalarType":
        return str(value).removeprefix("torch.")
    if base in _WORDS:
        return _WORDS[base] if str(value) == f"torch.{_WORDS[base]}" else None
    if isinstance(value, bool) and base in ("bool", "Scalar"):
        return str(value)
    if isinstance(value, complex):
        return None
    if base in ("SymInt", "int"):
        return str(int(value))
    if isinstance(value, float):
        # -0.0 equals 0.0, and the dispatcher drops arguments that equal their default. torch's
        # parser refuses subnormal numbers.
        plain_zero = value == 0 and math.copysign(1, value) > 0
        normal = math.isfinite(value) and abs(value) >= sys.float_info.min
        return repr(value) if normal or plain_zero else None
    return str(value)


def _quoted(text: str) -> str | None:
    if any(ord(c) < 32 and c not in "\n\t" for c in text):
        return None
    escaped = (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    )
    return f'"{escaped}"'


def _encode(leaf: Leaf, value: Any, parameter: str) -> Any:
    if value is MISSING:
        return MISSING
    wanted = leaf.base + ("[]" if leaf.container else "")
    if value is None:
        if leaf.optional:
            return None
        raise _misfit(parameter, value, wanted, "X | None")
    if not leaf.container:
        return _encode_one(leaf, value, parameter)
    if not isinstance(value, (list, tuple)):
        raise _misfit(parameter, value, wanted, "a list")
    return [
        None if v is None and leaf.element_optional else _encode_one(leaf, v, parameter)
        for v in value
    ]


def _encode_one(leaf: Leaf, value: Any, parameter: str) -> Any:
    if leaf.codec is not None:
        if leaf.codec.cls is None:
            if value in leaf.codec.values and type(value) in {type(v) for v in leaf.codec.values}:
                return value
        elif isinstance(value, leaf.codec.cls) or value in [m.value for m in leaf.codec.values]:
            return leaf.codec.encode(value)
        allowed = ", ".join(repr(v) for v in leaf.codec.values)
        raise _misfit(parameter, value, f"one of {allowed}", allowed)
    if not _fits(leaf.base, value):
        raise _misfit(parameter, value, leaf.base, _example(leaf.base))
    if leaf.base in ("SymInt", "int"):
        return int(value)
    return float(value) if leaf.base == "float" else value


def _fits(base: str, value: Any) -> bool:
    if base in ("SymInt", "int"):
        return isinstance(value, int) and fits_int64(value)
    if base == "float":
        return isinstance(value, (int, float))
    if base == "bool":
        return isinstance(value, bool)
    if base == "str":
        return isinstance(value, str)
    if base == "Scalar":
        return isinstance(value, (int, float, complex))
    if base == "Device" and isinstance(value, str):
        return True
    return base in _TORCH_KINDS and type(value).__name__ == _TORCH_KINDS[base]


def _parts(node: Record, value: Any, parameter: str) -> list[Any]:
    if node.kind == "tuple":
        if not isinstance(value, (tuple, list)) or len(value) != len(node.fields):
            raise _misfit(parameter, value, f"a tuple of {len(node.fields)}", "such a tuple")
        return list(value)
    fits = node.duck and all(hasattr(value, item.name) for item in node.fields)
    if type(value) is not node.cls and not fits:
        raise _misfit(parameter, value, node.cls.__name__, f"an instance of {node.cls.__name__}")
    return [getattr(value, item.name) for item in node.fields]


def _example(base: str) -> str:
    if base == "Tensor":
        return "Optional[Tensor] = None, and make the tensor in the body"
    return f"a default of type {_TORCH_KINDS.get(base, base).replace('SymInt', 'int')}"


def _misfit(parameter: str, value: Any, wanted: str, fix: str) -> BadSignature:
    return BadSignature(
        f"the default {value!r} cannot be represented as {wanted}",
        parameter=parameter,
        found=type(value).__name__,
        fix=f"use {fix}",
    )
