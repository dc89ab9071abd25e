"""What is exported: a module, or an op wrapped in one, with its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _compat
from ..errors import BadSignature, WrongArgument
from ..registry import registry

_Parameter = inspect.Parameter


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

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The module's outputs in eager, flat."""
        with torch.no_grad():
            return _compat.aoti.flatten(self.module(*args, **kwargs))


def read_exportable(model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> Exportable:
    """The module, its arguments, and their names."""
    if not isinstance(args, (tuple, list)):
        raise WrongArgument(
            "args must be a tuple of the positional arguments",
            found=type(args).__name__,
            fix="args=(x,)",
        )
    given = dict(kwargs or {})
    if isinstance(model, torch.nn.Module):
        title, signature = type(model).__name__, inspect.signature(model.forward)
        _bind(title, signature, args, given)
        module, args = model, tuple(args)
    else:
        title, signature = _op_signature(model)
        bound = _bind(title, signature, args, given)
        # By position, so that passing an argument by keyword makes the same package.
        module, args, given = OpModule(model), bound.args, bound.kwargs
    names = _positional_names(signature, len(args))
    paths = tuple(_name(path, names) for path in _compat.aoti.paths((args, given)))
    return Exportable(title, module, args, given, paths)


def _op_signature(op: Any) -> tuple[str, inspect.Signature]:
    entry = registry.find(op) if not isinstance(op, str) else None
    if entry is not None:
        return entry.name, entry.signature
    overload = _compat.aoti.overload_behind(op)
    if overload is None:
        raise BadSignature(
            f"{getattr(op, '__qualname__', repr(op))} is neither a module nor an operator",
            found=_kind_of(op),
            fix="give a torch.nn.Module, an op made by @opforge.op, or torch.ops.ns.op.default",
        )
    parameters = []
    for a in _compat.aoti.schema_arguments(overload):
        kind = _Parameter.KEYWORD_ONLY if a.kwarg_only else _Parameter.POSITIONAL_OR_KEYWORD
        default = a.default_value if a.has_default_value() else _Parameter.empty
        parameters.append(_Parameter(a.name, kind, default=default))
    return _compat.qualified_name(overload), inspect.Signature(parameters)


def _kind_of(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}, not an instance of it"
    return f"a {type(value).__name__}"


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
            break
        names.append(parameter.name)
    return names[:count]


def _name(path: tuple[str, ...], names: Sequence[str]) -> str:
    """`("0", "1", "weight")` -> "cfg.weight"; the first part is "0" for a positional argument."""
    kind, first, *rest = path
    return ".".join([names[int(first)] if kind == "0" else first, *rest])
