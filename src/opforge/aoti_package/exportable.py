"""What is exported: a module, or an op wrapped in one, its arguments, and which sizes vary."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption, BadSignature, WrongArgument
from ..registry import registry

_Parameter = inspect.Parameter
Dynamic = Mapping[str, Mapping[int, Any]]


class OpModule(torch.nn.Module):
    """Calls one op; torch.export accepts only modules."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.op(*args, **kwargs)


@dataclass(frozen=True)
class Exportable:
    """A module and the arguments to trace it with; `paths` names their leaves, in flat order."""

    title: str
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    paths: tuple[str, ...]

    @property
    def leaves(self) -> list[Any]:
        return _compat.aoti.flatten((self.args, dict(self.kwargs)))

    @property
    def by_path(self) -> dict[str, Any]:
        return dict(zip(self.paths, self.leaves, strict=True))


def read_exportable(model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> Exportable:
    """The module, its arguments, and their names."""
    if not isinstance(args, (tuple, list)):
        raise WrongArgument(
            "args must be a tuple of the positional arguments",
            found=type(args).__name__,
            fix="args=(x,)",
        )
    keywords = dict(kwargs or {})
    if isinstance(model, torch.nn.Module):
        title, signature = type(model).__name__, inspect.signature(model.forward)
        _bind(title, signature, args, keywords)
        module, args = model, tuple(args)
    else:
        title, signature = _op_signature(model)
        bound = _bind(title, signature, args, keywords)
        # By position, so that passing an argument by keyword makes the same package.
        module, args, keywords = OpModule(model), bound.args, bound.kwargs
    names = dict(zip(_positional_names(signature, len(args)), args, strict=True))
    paths = tuple(".".join(path) for path in _compat.aoti.paths({**names, **keywords}))
    return Exportable(title, module, args, keywords, paths)


def _op_signature(op: Any) -> tuple[str, inspect.Signature]:
    entry = registry.find(op) if not isinstance(op, str) else None
    if entry is not None:
        return entry.name, entry.signature
    overload = _compat.aoti.overload_behind(op)
    if overload is None:
        raise BadSignature(
            f"{getattr(op, '__qualname__', repr(op))} is neither a module nor an operator",
            found=f"a {'class' if isinstance(op, type) else type(op).__name__}",
            fix="give a torch.nn.Module, an op made by @opforge.op, or torch.ops.ns.op.default",
        )
    parameters = []
    for a in _compat.aoti.schema_arguments(overload):
        kind = _Parameter.KEYWORD_ONLY if a.kwarg_only else _Parameter.POSITIONAL_OR_KEYWORD
        default = a.default_value if a.has_default_value() else _Parameter.empty
        parameters.append(_Parameter(a.name, kind, default=default))
    return _compat.qualified_name(overload), inspect.Signature(parameters)


def _bind(
    title: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise WrongArgument(
            f"{title} cannot be called with these arguments: {error}",
            found=f"{len(args)} positional, keywords {sorted(kwargs) or 'none'}",
            fix=f"it takes {signature}",
        ) from None


def _positional_names(signature: inspect.Signature, count: int) -> list[str]:
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is _Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}.{i}" for i in range(count - len(names))]
        names.append(parameter.name)
    return names[:count]


@dataclass(frozen=True)
class DynamicDim:
    """A dimension of one argument that may vary, and its label.

    `least` is the smallest size that the user asked for, if any.
    """

    path: str
    index: int
    label: str
    dim: Any
    least: int | None = None


def read_dynamic(dynamic: Dynamic | None, exportable: Exportable) -> tuple[DynamicDim, ...]:
    """Every dynamic dimension; dimensions with the same name share one `torch.export.Dim`."""
    leaves = exportable.by_path
    ranges: dict[str, tuple[int | None, int | None]] = {}
    listed: list[tuple[str, int, Any]] = []
    for path, dims in (dynamic or {}).items():
        if not isinstance(leaves.get(path), torch.Tensor):
            raise _not_a_tensor(path, exportable)
        shape = leaves[path].shape
        for index, value in dims.items():
            if not -len(shape) <= index < len(shape):
                raise BadOption(
                    f"there is no dimension {index!r}",
                    parameter=path,
                    found=f"a tensor of shape {tuple(shape)}",
                )
            if not isinstance(value, (str, tuple)):
                # A torch.export.Dim, which torch judges.
                listed.append((path, index % len(shape), value))
                continue
            name, *bounds = (value,) if isinstance(value, str) else value
            _add_range(name, bounds, path, ranges)
            _refuse_constant(shape[index], name, path)
            listed.append((path, index % len(shape), name))
    named = {n: torch.export.Dim(n, min=low, max=high) for n, (low, high) in ranges.items()}
    return tuple(_dimension(*place, named, ranges) for place in listed)


def _dimension(
    path: str, index: int, value: Any, named: Mapping[str, Any], ranges: Mapping[str, Any]
) -> DynamicDim:
    if isinstance(value, str):
        return DynamicDim(path, index, value, named[value], ranges[value][0])
    # A Dim's default `min` is 0, which nobody asked for; hints such as Dim.AUTO have no name.
    label = getattr(value, "__name__", f"{path}[{index}]")
    return DynamicDim(path, index, label, value, getattr(value, "min", None) or None)


def _not_a_tensor(path: str, exportable: Exportable) -> BadOption:
    close = difflib.get_close_matches(path, exportable.paths)
    below = [name for name in exportable.paths if name.startswith(f"{path}.")]
    names = " or ".join(close or below)
    return BadOption(
        f"dynamic names {path!r}, which is not a tensor argument of {exportable.title}",
        found=f"the arguments {', '.join(exportable.paths) or '(none)'}",
        fix=f"did you mean {names}?" if names else "name one of its arguments",
    )


def _add_range(name: str, bounds: list[Any], path: str, ranges: dict[str, Any]) -> None:
    if not name.isidentifier() or len(bounds) not in {0, 2}:
        raise BadOption(
            f"{(name, *bounds)} does not name a dimension",
            parameter=path,
            fix='"batch", ("batch", 1, 1024), or a torch.export.Dim',
        )
    if bounds and ranges.get(name, (None, None)) not in {(None, None), tuple(bounds)}:
        raise BadOption(f"{name} has two ranges", parameter=path, fix="give it one range")
    ranges[name] = tuple(bounds) or ranges.get(name, (None, None))


def _refuse_constant(size: int, name: str, path: str) -> None:
    if size < 2:
        raise BadOption(
            f"{name} has size {size}, which torch.export makes a constant",
            parameter=path,
            fix="trace with a size of 2 or more; the package will still accept 1",
        )
