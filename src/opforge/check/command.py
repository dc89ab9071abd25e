"""What `opforge check` does before the check: finds the op and makes its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..cli_targets import arguments_from_function, resolve
from ..errors import BadOption, TargetNotFound
from ..registry import Entry, registry
from .inputs import arguments_from
from .run import select
from .subject import interpreting

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def one_op(target: str) -> Any:
    """The op that a target names; a file with one op needs no name."""
    ops = resolve(target)
    if len(ops) > 1:
        names = ", ".join(registry.get(op).fn.__name__ for op in ops)
        raise TargetNotFound(
            f"{target} has {len(ops)} operators", found=names, fix=f"name one: {target}:op"
        )
    return ops[0]


def title(op: Any) -> str:
    entry = registry.get(op)
    return f"{entry.name}  ({entry.location})"


def row_names(only: Sequence[str], skip: Sequence[str]) -> list[str]:
    return [check.name for check in select(only or None, skip)]


def arguments_of(op: Any, texts: Sequence[str], function: str | None) -> Arguments:
    """From `--input` texts, or from the function that `--inputs` names."""
    entry = registry.get(op)
    if function is None:
        return arguments_from(entry, texts, device=_device(entry))
    if texts:
        raise BadOption("--input and --inputs were both given", fix="use one of them")
    return arguments_from_function(function)


def _device(entry: Entry) -> str:
    """Where inputs without a device are made: where the op's kernels can run."""
    launches = bool(entry.describe().kernels)
    return "cuda" if launches and torch.cuda.is_available() and not interpreting() else "cpu"
