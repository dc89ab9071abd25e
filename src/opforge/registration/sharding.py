"""Registers the user's DTensor sharding rule with torch's own API."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..errors import BadOption
from ..model import Lowered


def register_sharding(overload: Any, rule: Callable[..., Any], lowered: Lowered) -> None:
    """`rule` takes the op's arguments and returns (output, input) placements."""
    if not callable(rule):
        raise BadOption(
            f"sharding={rule!r} is not a rule",
            fix="sharding=rule with rule(*args) -> [(output placements, input placements), ...]",
        )
    if not torch.distributed.is_available():
        raise BadOption(
            "sharding= needs torch.distributed, which this build of torch lacks",
            fix="leave sharding out, or install a build of torch with distributed support",
        )
    # DTensor takes a third of a second to import.
    from torch.distributed.tensor import experimental  # noqa: PLC0415

    experimental.register_sharding(overload)(_with_defaults(rule, lowered))


def _with_defaults(rule: Callable[..., Any], lowered: Lowered) -> Callable[..., Any]:
    """The rule, given all arguments: the dispatcher omits those that equal their default."""
    positional = [a for a in lowered.arguments if not a.keyword_only]
    keywords = {a.name: a.default for a in lowered.arguments if a.keyword_only}

    @functools.wraps(rule)
    def complete(*args: Any, **kwargs: Any) -> Any:
        rest = [a.default for a in positional[len(args) :] if a.name not in kwargs]
        return rule(*args, *rest, **{**keywords, **kwargs})

    return complete
