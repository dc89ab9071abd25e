"""DTensor: the user's sharding rule, registered with torch's own API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption


def register_sharding(overload: Any, rule: Callable[..., Any]) -> None:
    """`rule` takes the op's arguments and returns (output, input) placements."""
    if not callable(rule):
        raise BadOption(
            f"sharding={rule!r} is no rule",
            fix="sharding=rule with rule(*args) -> [(output placements, input placements), ...]",
        )
    if not torch.distributed.is_available():
        raise BadOption(
            "sharding= needs torch.distributed, which this build of torch lacks",
            fix="leave sharding out, or install a build of torch with distributed support",
        )
    _compat.register_sharding(overload, rule)
