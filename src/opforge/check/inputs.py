"""From `--input path=EXPRESSION` to the arguments of an op: records built, defaults filled in.

An expression is Python's, evaluated with the names of the op's file and these:

x=randn(8, 128, bf16)      torch's factories, which here take a dtype and a device by position
n=8 * 16                   dtypes as f32 or float32; cpu, cuda; inf, nan; torch
cfg.weight=ones(128)       a field of a record
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import BadOption
from ..model import MISSING, Field, Leaf, Node, Parameter
from ..native.targets import Place, users_own
from ..registry import Entry
from .subject import cuda_devices

_SHORT_DTYPES = {
    **{f"{f}{n}": getattr(torch, f"float{n}") for f in ("f", "fp") for n in (16, 32, 64)},
    **{f"i{n}": getattr(torch, f"int{n}") for n in (8, 16, 32, 64)},
    "u8": torch.uint8,
    "bf16": torch.bfloat16,
    # As the dtype of a tensor, Python's int has 64 bits.
    "int": torch.int64,
}
_FACTORIES = (
    torch.randn,
    torch.rand,
    torch.randint,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.empty,
    torch.arange,
    torch.linspace,
    torch.tensor,
)


def arguments_from(
    entry: Entry, texts: Sequence[str], *, device: str = "cpu", places: Sequence[Place] = ()
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The op's arguments as `--input x=randn(8) --input cfg.eps=1e-6` describe them.

    Tensors are made on `device` if the expression names none, and random ones are always the same.
    """
    parameters = entry.flat().signature.parameters
    nodes = {n.path: n for p in parameters for n in _nodes(p.node)}
    given: dict[str, Any] = {}
    with torch.device(device), torch.random.fork_rng(cuda_devices()):
        torch.manual_seed(0)
        for text in texts:
            path, value = _evaluated(text, nodes, _scope(entry, places))
            if any(_within(path, other) or _within(other, path) for other in given):
                raise BadOption(f"--input {text}: a part of {path!r} was given already")
            given[path] = value
    missing: list[str] = []
    name = places[0].name if places else entry.fn.__name__
    built = [(p, _build(p, given, missing)) for p in parameters]
    if missing:
        raise BadOption(
            f"no input for {', '.join(map(repr, missing))}",
            found=f"it takes {', '.join(nodes)}",
            fix=f'--input "{missing[0]}=...", with an expression such as randn(8, 128) or 1e-6; or '
            f"write def {name}_inputs() next to it",
            op=entry.name,
            location=entry.location,
        )
    args = tuple(value for p, value in built if not p.keyword_only)
    return args, {p.name: value for p, value in built if p.keyword_only}


def _scope(entry: Entry, places: Sequence[Place]) -> dict[str, Any]:
    """The names of an expression; those of this module win, so that randn is the same in all."""
    own = getattr(inspect.unwrap(entry.fn), "__globals__", {})
    loaded = {name: value for place in places for name, value in vars(place.module).items()}
    dtypes = {name: v for name, v in vars(torch).items() if isinstance(v, torch.dtype)}
    return {
        **own,
        **loaded,
        **dtypes,
        **_SHORT_DTYPES,
        **{make.__name__: _taking_dtypes(make) for make in _FACTORIES},
        "cpu": torch.device("cpu"),
        "cuda": torch.device("cuda"),
        "inf": math.inf,
        "nan": math.nan,
        "torch": torch,
    }


def _taking_dtypes(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A factory that takes dtype and device by position; randint also sizes one by one."""

    def factory(*arguments: Any, requires_grad: bool = False, **options: Any) -> torch.Tensor:
        values = []
        for argument in arguments:
            if isinstance(argument, torch.dtype):
                options["dtype"] = argument
            elif isinstance(argument, (torch.device, str)):
                options["device"] = argument
            else:
                values.append(argument)
        if make is torch.randint and isinstance(values[-1], int):
            values = [*values[:2], values[2:]]
        dtype = options.get("dtype")
        drawn = (
            dtype is None or dtype.is_complex or (dtype.is_floating_point and dtype.itemsize > 1)
        )
        if make in {torch.randn, torch.rand} and not drawn:
            # torch draws neither integers nor 8-bit floats.
            del options["dtype"]
        tensor = make(*values, **options)
        return tensor.to(dtype or tensor.dtype).requires_grad_(requires_grad)

    return factory


def _evaluated(text: str, nodes: Mapping[str, Node], scope: dict[str, Any]) -> tuple[str, Any]:
    """The path of an input, and its value."""
    name, equals, expression = text.partition("=")
    path = name.strip()
    if not equals:
        raise BadOption(f"--input {text} is not path=expression", fix=_EXAMPLE)
    if path not in nodes:
        close = difflib.get_close_matches(path, nodes)
        raise BadOption(
            f"the op has no {path!r}",
            found=f"it takes {', '.join(nodes) or 'nothing'}",
            fix=f"did you mean {' or '.join(close)}?" if close else "choose one of these",
        )
    try:
        # The user's own code, as the file of the op is.
        return path, _fitted(nodes[path], eval(expression.strip(), scope))  # noqa: S307
    except Exception as error:
        raise BadOption(
            f"--input {text} cannot be evaluated",
            found=f"{type(error).__name__}: {error}",
            fix=_EXAMPLE,
        ) from error


_EXAMPLE = "write it like x=randn(8, 128, bf16), cfg.eps=1e-6 or mode='fast'"


def _fitted(node: Node, value: Any) -> Any:
    """A value as the op takes it: a member of an enum by its value or name, a device by name."""
    if not isinstance(node, Leaf):
        return tuple(value) if node.kind == "tuple" and value is not None else value
    if node.container and isinstance(value, (list, tuple)):
        return [_element(node, part) for part in value]
    return _element(node, value)


def _element(leaf: Leaf, value: Any) -> Any:
    if leaf.base == "Device" and isinstance(value, str):
        return torch.device(value)
    if value is None or leaf.codec is None or leaf.codec.cls is None:
        return value
    try:
        return leaf.codec.cls(value)
    except ValueError:
        if value not in leaf.codec.cls.__members__:
            raise
        return leaf.codec.cls[value]


def _nodes(node: Node) -> list[Node]:
    if isinstance(node, Leaf):
        return [node]
    return [node, *(n for f in node.fields for n in _nodes(f.node))]


def _within(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.")


def _build(item: Parameter | Field, given: Mapping[str, Any], missing: list[str]) -> Any:
    """Its value, or the default; what has neither is added to `missing`."""
    node = item.node
    if node.path in given:
        return given[node.path]
    if item.default is not MISSING and not any(_within(path, node.path) for path in given):
        return item.default
    if isinstance(node, Leaf):
        missing.append(node.path)
        return None
    parts = {f.name: _build(f, given, missing) for f in node.fields}
    if missing or node.kind == "tuple":
        return tuple(parts.values())
    with users_own(f"{node.cls.__name__}(...), for {node.path},"):
        return node.cls(**parts)
