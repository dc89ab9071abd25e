"""The functions beside an op: `silu_inputs` makes its inputs, `silu_reference` is its reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..cli_targets import Place
from ..registry import Entry


def beside(entry: Entry, kind: str, places: Sequence[Place] = ()) -> Callable[..., Any] | None:
    """The function of that kind, in the modules that were loaded, else in the body's own.

    With scale_op = opforge.op(vscale, name="mylib::scale"), of vendor's vscale, these are looked
    for in the module of scale_op: scale_op_inputs, scale_inputs, vscale_inputs.
    """
    fn = inspect.unwrap(entry.fn)
    modules = [(vars(place.module), place.name) for place in places]
    for names, variable in [*modules, (getattr(fn, "__globals__", {}), fn.__name__)]:
        for name in (variable, entry.own_name.replace(".", "_"), fn.__name__):
            found = names.get(f"{name}_{kind}")
            if inspect.isfunction(found):
                return found
    return None


def name_beside(entry: Entry, kind: str, places: Sequence[Place] = ()) -> str:
    """The name to write such a function under."""
    return f"{places[0].name if places else entry.fn.__name__}_{kind}"
