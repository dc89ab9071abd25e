"""What `opforge check` does before the check: finds the op and makes its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..cli_targets import arguments_from_function, resolve
from ..errors import BadOption, TargetNotFound
from ..registry import registry
from .inputs import arguments_from
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


def rows_named(texts: Sequence[str]) -> tuple[str, ...]:
    """`("compile,numerics", "eager")` as three names."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def arguments_of(op: Any, texts: Sequence[str], function: str | None) -> Arguments:
    """From `--input` texts, or from the function that `--inputs` names."""
    if function is None:
        entry = registry.get(op)
        # Inputs without a device are made where the op's kernels can run.
        on_gpu = entry.describe().kernels and torch.cuda.is_available() and not interpreting()
        return arguments_from(entry, texts, device="cuda" if on_gpu else "cpu")
    if texts:
        raise BadOption("--input and --inputs were both given", fix="use one of them")
    return arguments_from_function(function)
