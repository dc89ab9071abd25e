"""What `opforge package` does before packaging: finds the model and reads --dynamic."""

from __future__ import annotations

from typing import Any

import torch

from .. import _compat
from ..cli_targets import users_own
from ..errors import BadOption, BadSignature
from ..registry import registry


def read_model(found: Any, target: str) -> Any:
    """A model or an op; a class or function without parameters is called to make the model."""
    if isinstance(found, torch.nn.Module) or registry.find(found) is not None:
        return found
    if _compat.aoti.overload_behind(found) is not None:
        return found
    with users_own(f"{target}()"):
        made = found() if callable(found) else None
    if isinstance(made, torch.nn.Module):
        return made
    raise BadSignature(
        f"{target} is neither a model nor an operator",
        found=f"a {type(found).__name__}",
        fix="name a torch.nn.Module, an op, or a class or function that makes a module when called",
    )


def read_dynamic_texts(texts: tuple[str, ...]) -> dict[str, dict[int, Any]]:
    """`x:0=batch`, `x:0=batch:1:1024` -> `{"x": {0: ("batch", 1, 1024)}}`."""
    found: dict[str, dict[int, Any]] = {}
    for text in texts:
        place, _, name = text.partition("=")
        path, _, index = place.rpartition(":")
        label, *bounds = name.split(":")
        numbers = all(b.isdigit() for b in bounds)
        if not path or not index.isdigit() or not label or len(bounds) not in (0, 2) or not numbers:
            raise BadOption(
                f"--dynamic {text} does not name a dimension",
                fix="x:0=batch, or with a range: x:0=batch:1:1024",
            )
        spelled = (label, *map(int, bounds)) if bounds else label
        found.setdefault(path, {})[int(index)] = spelled
    return found
