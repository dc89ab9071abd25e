"""Checks what was declared for a parameter against the parameter's type."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch

from ...errors import BadDeclaration, BadOption, BadSignature, WrongArgument
from ...model import Leaf, fits_int64
from ..ir.dtypes import DTYPES, named
from ..ir.wording import one_of, spell
from .declaration import Choices, LeafDeclaration, Scalars, Tensors, choices
from .dims import Part, Shared, parse, read_ranks
from .specs import SPECS, ChoiceSpec, OptionalSpec, ScalarSpec, TensorSpec

_INTS = tuple(d.name for d in DTYPES.values() if d.code in {0, 1})
_FLOATS = ("fp16", "bf16", "fp32", "fp64")
# Schema types, by the names that annotations and torch's parser use.
_NUMBERS = {
    "SymInt": _INTS,
    "int": _INTS,
    "float": _FLOATS,
    "Scalar": (*_FLOATS, *_INTS),
    "number": (*_FLOATS, *_INTS),
}
_TYPES: dict[str, tuple[type[Any], ...]] = {
    "SymInt": (int,),
    "int": (int,),
    "float": (float, int),
    "Scalar": (int, float),
    "number": (int, float),
    "bool": (bool,),
    "str": (str,),
    "ScalarType": (torch.dtype,),
    "Device": (torch.device, str),
    "Layout": (torch.layout,),
    "MemoryFormat": (torch.memory_format,),
}
_WORDS = {
    "SymInt": "int", "ScalarType": "torch.dtype", "Scalar": "number", "Device": "torch.device",
}  # fmt: skip
_EXAMPLES = {
    **dict.fromkeys(("float", "Scalar", "number"), "native.scalar('fp32')"),
    **dict.fromkeys(("SymInt", "int"), "native.scalar('i64')"),
    "bool": "native.scalar('bool')",
    "str": "native.choice('one', 'other'), since C gets a number per value",
    "ScalarType": "native.choice(torch.float16, torch.float32)",
}


def fit(leaf: Leaf, given: Any, variables: Mapping[str, tuple[str, ...]]) -> LeafDeclaration:
    """What a spec, or a plain value that fixes the leaf, means for it."""
    if isinstance(given, (TensorSpec, OptionalSpec)):
        return _tensors(leaf, given, variables)
    if leaf.is_tensor and leaf.container and given is not None:
        raise no_list(leaf, repr(given))
    if isinstance(given, ScalarSpec):
        return _scalars(leaf, given)
    if isinstance(given, ChoiceSpec):
        return _choices(leaf, given)
    if leaf.is_tensor and given is not None:
        raise _bad_spec(leaf, given, "a tensor parameter is declared with native.tensor")
    return choices([check_value(leaf, given)])


def _bad_spec(leaf: Leaf, given: Any, what: str, fix: str | None = None) -> WrongArgument:
    return WrongArgument(what, parameter=leaf.path, found=repr(given), fix=fix or example(leaf))


def _tensors(
    leaf: Leaf, given: TensorSpec | OptionalSpec, variables: Mapping[str, tuple[str, ...]]
) -> Tensors:
    optional = isinstance(given, OptionalSpec)
    spec = given.inner if isinstance(given, OptionalSpec) else given
    if not isinstance(spec, TensorSpec):
        fix = "native.optional(native.tensor(...)); for other values native.choice(None, ...)"
        raise _bad_spec(leaf, given, "native.optional takes a tensor", fix)
    if not leaf.is_tensor:
        raise _bad_spec(leaf, given, f"a tensor is declared for a parameter of type {word(leaf)}")
    if leaf.container:
        raise no_list(leaf, repr(given))
    if optional and not leaf.optional:
        fix = f"{leaf.path}: Tensor | None in the op, or {spec!r} without native.optional"
        what = "declared as optional, but the op's annotation has no None"
        raise _bad_spec(leaf, given, what, fix)
    if spec.layout not in {"contiguous", "strided"}:
        raise WrongArgument(
            f"layout {spec.layout!r} is unknown",
            parameter=leaf.path,
            fix="layout='contiguous' (compact, the default) or layout='strided' (any strides)",
        )
    parts = parse(spec.dims, leaf.path)
    variable, dtypes = read_dtypes(spec.dtype, leaf.path, variables)
    ranks = read_ranks(parts, spec.ranks, leaf.path)
    broadcast = _reads_broadcast(leaf, spec, parts)
    return Tensors(parts, dtypes, variable, spec.layout == "strided", ranks, optional, broadcast)


def _reads_broadcast(leaf: Leaf, spec: TensorSpec, parts: tuple[Part, ...]) -> bool:
    if not isinstance(spec.broadcast, bool):
        raise WrongArgument(
            "broadcast is True or False", parameter=leaf.path, found=f"broadcast={spec.broadcast!r}"
        )
    whole = len(parts) == 1 and isinstance(parts[0], Shared)
    if spec.broadcast and not (whole and spec.layout == "strided"):
        what = 'only a strided tensor with dims "*s" can be broadcast'
        fix = 'native.tensor("*s", ..., layout="strided", broadcast=True)'
        raise _bad_spec(leaf, spec, what, fix)
    return spec.broadcast


def no_list(leaf: Leaf, found: str | None = None) -> BadSignature:
    return BadSignature(
        f"a {leaf.container} of tensors has no place in a C function",
        parameter=leaf.path,
        found=found,
        fix="list the tensors one by one in the op's signature, or in a dataclass or a tuple of "
        "fixed length; a parameter with a default can be left out and is fixed at the default",
    )


def read_dtypes(
    given: Any, parameter: str | None, variables: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[str, tuple[str, ...]]:
    """`"T"` -> ("T", its types), `("fp16", "float32")` -> ("", ("fp16", "fp32"))."""
    if isinstance(given, str) and is_variable(given):
        if variables is None or given not in variables:
            raise BadDeclaration(
                f"type variable {given!r} has no types",
                parameter=parameter,
                fix=f'give declare {given}=("fp16", "bf16") beside the parameters; a letter that '
                "names a parameter of the op cannot be a type variable",
            )
        return given, variables[given]
    listed = given if isinstance(given, (list, tuple)) else (given,)
    if not listed or None in listed:
        raise BadDeclaration("no dtype is given", parameter=parameter, fix=_DTYPE_FIX)
    return "", tuple(dict.fromkeys(_dtype(g, parameter) for g in listed))


def is_variable(name: str) -> bool:
    return len(name) == 1 and name.isalpha()


# i1 is another name for bool.
_THE_DTYPES = f"the dtypes are {', '.join(name for name in DTYPES if name != 'i1')} and bool"
_DTYPE_FIX = f"a name such as dtype='fp16', or several; {_THE_DTYPES}"


def _dtype(given: Any, parameter: str | None) -> str:
    known = named(given) if isinstance(given, str) else None
    # torch also has aliases, such as "half" and "double".
    torchs = given if isinstance(given, torch.dtype) else getattr(torch, str(given), None)
    if known is None and isinstance(torchs, torch.dtype):
        name = str(torchs).removeprefix("torch.")
        known = named(name)
        if known is None:
            raise BadDeclaration(
                f"{name!r} is a torch dtype that Triton cannot store",
                parameter=parameter,
                fix=_THE_DTYPES
                + ("; pass a complex tensor as its real view" if torchs.is_complex else ""),
            )
    if known is not None:
        return known.name
    close = difflib.get_close_matches(str(given), [*DTYPES, "bool"], 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise BadDeclaration(
        f"{given!r} is not an element type",
        parameter=parameter,
        fix=f"{hint}{_THE_DTYPES}",
    )


def _scalars(leaf: Leaf, spec: ScalarSpec) -> LeafDeclaration:
    # A string, an enum or a dtype has no C scalar, and a bool is a choice of two.
    base = "" if leaf.container or leaf.codec is not None else leaf.base
    if base == "bool" and (spec.type is None or _dtype(spec.type, leaf.path) == "i1"):
        return choices([False, True], asked=True)
    if base not in _NUMBERS:
        raise _bad_spec(leaf, spec, f"a scalar is declared for a parameter of type {word(leaf)}")
    if spec.type is None:
        return Scalars("i64" if base in {"SymInt", "int"} else "fp32")
    dtype = _dtype(spec.type, leaf.path)
    if dtype not in _NUMBERS[leaf.base]:
        what = f"type {dtype} is declared for a parameter of type {word(leaf)}"
        if dtype.startswith("fp8"):
            what = f"{dtype} exists only in memory; C has no scalar of that type"
        raise _bad_spec(leaf, spec, what, f"native.scalar of {one_of(_NUMBERS[leaf.base])}")
    return Scalars(dtype)


def _choices(leaf: Leaf, spec: ChoiceSpec) -> Choices:
    if leaf.is_tensor:
        raise _bad_spec(leaf, spec, "native.choice is not for tensors")
    if not spec.values:
        raise WrongArgument("native.choice has no values", parameter=leaf.path, fix=example(leaf))
    return choices([check_value(leaf, v) for v in spec.values], asked=True)


def check_value(leaf: Leaf, value: Any) -> Any:
    """A value as the body sees it: an enum's member for its value, a float for an int."""
    if value is None:
        if leaf.optional:
            return None
        raise _wrong_value(leaf, value)
    if not leaf.container:
        return _check_one(leaf, value)
    if not isinstance(value, (list, tuple)):
        raise _wrong_value(leaf, value)
    return tuple(
        None if v is None and leaf.element_optional else _check_one(leaf, v) for v in value
    )


def as_seen(leaf: Leaf, default: Any) -> Any:
    """A default as the body sees it; it was validated at decoration."""
    if default is None or (leaf.codec is None and not leaf.container):
        return default
    listed = default if leaf.container else [default]
    seen = [v if v is None or leaf.codec is None else _check_member(leaf, v) for v in listed]
    return tuple(seen) if leaf.container else seen[0]


def _check_one(leaf: Leaf, value: Any) -> Any:
    if isinstance(value, SPECS):
        raise WrongArgument(
            "found a spec where a value is expected", parameter=leaf.path, found=repr(value)
        )
    _refuse_no_text_of_c(leaf, value)
    if leaf.codec is not None:
        return _check_member(leaf, value)
    kinds = _TYPES.get(leaf.base, ())
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise _wrong_value(leaf, value)
    if leaf.base == "Device":
        return torch.device(value)
    if leaf.base == "float":
        return float(value)
    if isinstance(value, int) and not fits_int64(value):
        raise _wrong_value(leaf, value)
    return value


def _refuse_no_text_of_c(leaf: Leaf, value: Any) -> None:
    """C ends a text at NUL, and would take another text for it; a lone surrogate is in no UTF-8."""
    text = value.value if isinstance(value, Enum) else value
    if not isinstance(text, str):
        return
    if "\0" in text:
        held = "a NUL character"
    elif any("\ud800" <= c <= "\udfff" for c in text):
        held = "a lone surrogate"
    else:
        return
    raise WrongArgument(
        f"a text with {held} cannot be a value in C",
        parameter=leaf.path,
        found=repr(value),
        fix="leave the value out, or give it another text in the op",
    )


def _check_member(leaf: Leaf, value: Any) -> Any:
    codec = leaf.codec
    assert codec is not None
    by_value = codec.cls is not None and not isinstance(value, codec.cls)
    for known in codec.values:
        meant = known.value if by_value else known
        if type(meant) is type(value) and meant == value:
            return known
    raise BadOption(
        f"{spell(value)} is not one of the parameter's values",
        parameter=leaf.path,
        fix=f"one of {', '.join(map(spell, codec.values))}",
    )


def _wrong_value(leaf: Leaf, value: Any) -> WrongArgument:
    fix = example(leaf)
    if value is None:
        fix = f"annotate it as {word(leaf)} | None in the op, or {fix}"
    return WrongArgument(
        f"{value!r} is not a {word(leaf)}",
        parameter=leaf.path,
        found=f"a value of type {type(value).__name__}",
        fix=fix,
    )


def word(leaf: Leaf) -> str:
    """A leaf's type as its annotation has it."""
    base = _WORDS.get(leaf.base, leaf.base)
    if leaf.codec is not None:
        cls = leaf.codec.cls
        base = (
            f"Literal[{', '.join(map(repr, leaf.codec.values))}]" if cls is None else cls.__name__
        )
    return f"{leaf.container}[{base}]" if leaf.container else base


def example(leaf: Leaf) -> str:
    """How a leaf of this type is declared."""
    name = leaf.name
    if leaf.is_tensor:
        wrapped = "native.tensor('m n', dtype='fp16')"
        return f"{name}={f'native.optional({wrapped})' if leaf.optional else wrapped}"
    if leaf.codec is not None:
        return f"{name}=native.choice({', '.join(map(spell, leaf.codec.values))})"
    if leaf.container:
        return f"{name}=native.choice(({'0.5, 2.0' if leaf.base == 'float' else '1, 2'}))"
    return f"{name}={_EXAMPLES.get(leaf.base, 'a value, which fixes it')}"
