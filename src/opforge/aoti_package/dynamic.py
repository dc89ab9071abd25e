"""`dynamic={"x": {0: "batch"}}` -> dynamic shapes for torch.export."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import BadOption
from .exportable import Exportable

Dynamic = Mapping[str, Mapping[int, Any]]


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
    if not isinstance(dynamic or {}, Mapping):
        raise BadOption(
            "dynamic must map arguments to their dimensions",
            found=repr(dynamic),
            fix=f"{{{next(iter(leaves), 'x')!r}: {{0: 'batch'}}}}",
        )
    said = [
        (path, _index(path, index, leaves[path]), _spelled(path, index, value))
        for path, dims in (dynamic or {}).items()
        for index, value in _dims_of(path, dims, exportable).items()
    ]
    ranges: dict[str, tuple[Any, Any]] = {}
    first: dict[str, tuple[str, int]] = {}
    for path, index, value in said:
        if isinstance(value, _Named):
            _check_named(path, index, value, leaves[path])
            _add_range(path, value, ranges)
            _check_equal(value.name, (path, leaves[path].shape[index]), first)
    named = {n: torch.export.Dim(n, min=low, max=high) for n, (low, high) in ranges.items()}

    def dimension(path: str, index: int, value: Any) -> DynamicDim:
        if isinstance(value, _Named):
            return DynamicDim(path, index, value.name, named[value.name], ranges[value.name][0])
        # A Dim's default `min` is 0, which nobody asked for; hints such as Dim.AUTO have no name.
        label = getattr(value, "__name__", f"{path}[{index}]")
        return DynamicDim(path, index, label, value, getattr(value, "min", None) or None)

    return tuple(dimension(*each) for each in said)


def shapes_collection(dims: tuple[DynamicDim, ...], exportable: Exportable) -> Any:
    """The dimensions for torch.export, which looks tensors up by identity."""
    if not dims:
        return None
    collection = torch.export.ShapesCollection()
    for path in dict.fromkeys(dim.path for dim in dims):
        collection[exportable.by_path[path]] = {d.index: d.dim for d in dims if d.path == path}
    return collection


def _dims_of(path: str, dims: Any, exportable: Exportable) -> Mapping[int, Any]:
    leaves = exportable.by_path
    if path not in leaves:
        close = difflib.get_close_matches(path, exportable.paths)
        below = [p for p in exportable.paths if p.startswith(f"{path}.")]
        raise BadOption(
            f"dynamic names {path!r}, which is not a tensor argument of {exportable.title}",
            found=f"the arguments {', '.join(exportable.paths) or '(none)'}",
            fix=f"did you mean {' or '.join(close or below)}?"
            if close or below
            else "name one of its arguments",
        )
    if not isinstance(leaves[path], torch.Tensor):
        raise BadOption(
            "only dimensions of tensors can be dynamic",
            parameter=path,
            found=f"{leaves[path]!r}, which becomes a constant of the package",
            fix="leave it out of dynamic, or make it a tensor",
        )
    if not isinstance(dims, Mapping):
        raise BadOption(
            "dynamic must map each argument to its dimensions",
            parameter=path,
            found=repr(dims),
            fix=f"{{{path!r}: {{0: 'batch'}}}}",
        )
    return dims


@dataclass(frozen=True)
class _Named:
    """A dimension by name, with its range if one was given."""

    name: str
    least: int | None = None
    most: int | None = None


def _index(path: str, index: Any, tensor: torch.Tensor) -> int:
    if not isinstance(index, int) or not -tensor.dim() <= index < tensor.dim():
        raise BadOption(
            f"there is no dimension {index!r}",
            parameter=path,
            found=f"a tensor of shape {tuple(tensor.shape)}",
            fix=f"one of {', '.join(map(str, range(tensor.dim())))}" if tensor.dim() else None,
        )
    return index % tensor.dim()


def _spelled(path: str, index: int, value: Any) -> Any:
    if isinstance(value, str):
        return _Named(value)
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], str):
        return _Named(*value)
    if isinstance(value, (torch.export.Dim, type(torch.export.Dim.AUTO))):
        return value
    raise BadOption(
        f"dimension {index} has no name",
        parameter=path,
        found=repr(value),
        fix='"batch", ("batch", 1, 1024), or a torch.export.Dim',
    )


def _check_named(path: str, index: int, value: _Named, tensor: torch.Tensor) -> None:
    size, name = tensor.shape[index], value.name
    if not name.isidentifier():
        raise BadOption(f"{name!r} cannot name a dimension", parameter=path, fix='"batch"')
    too_small = value.least is not None and size < value.least
    if too_small or (value.most is not None and size > value.most):
        raise BadOption(
            f"the given size {size} is outside the range of {name}",
            parameter=path,
            found=f"{name} from {value.least} to {value.most}",
            fix="widen the range, or trace with another size",
        )
    if size < 2:
        raise BadOption(
            f"dimension {index} ({name}) has size {size}, which torch.export makes a constant",
            parameter=path,
            fix="trace with a size of 2 or more; the package will still accept 1",
        )


def _check_equal(name: str, here: tuple[str, int], first: dict[str, tuple[str, int]]) -> None:
    path, size = first.setdefault(name, here)
    if size != here[1]:
        raise BadOption(
            f"dimensions named {name} must have the same size",
            parameter=here[0],
            found=f"{size} in {path}, {here[1]} in {here[0]}",
            fix="use different names, or pass arguments of the same size",
        )


def _add_range(path: str, value: _Named, ranges: dict[str, tuple[Any, Any]]) -> None:
    given, before = (value.least, value.most), ranges.get(value.name, (None, None))
    if (None, None) not in (given, before) and given != before:
        raise BadOption(
            f"{value.name} has two ranges",
            parameter=path,
            found=f"{before[0]} to {before[1]}, and {given[0]} to {given[1]}",
            fix="give it one range, or use two names",
        )
    ranges[value.name] = before if given == (None, None) else given
