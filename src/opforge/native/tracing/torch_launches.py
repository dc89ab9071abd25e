"""Turns the torch calls of a trace into launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..._compat.kernels import is_interpreted, kernel_name
from ..._compat.tracing import Traced
from ...errors import UnsupportedBody
from ..device import torch_math
from ..ir.places import Place, told
from ..symbolic.symint import term_of
from .launches import TracedLaunch, pointed
from .torch_calls import source
from .torch_calls.fusion import grouped, written
from .torch_calls.inline import inlined
from .torch_calls.reduced_source import write_reduced, write_scanned
from .torch_calls.values import Called, Group, Reduced, Scanned, TorchCall


def lowered(
    steps: Iterable[Any], outputs: Iterable[Traced | None], note: Callable[[str], None]
) -> list[Any]:
    """The steps of a trace, with a launch for each group of torch calls."""
    kept = {id(tensor.memory) for tensor in outputs if tensor is not None}
    found: list[Any] = []
    for step in grouped(inlined(list(steps), kept), kept):
        if isinstance(step, (Group, Reduced, Scanned, Called)):
            launch = _launch(step)
            _refuse_interpreter(step.calls, launch)
            more = step.said if isinstance(step, Called) else ""
            note(_became(step.calls, launch, more))
            found.append(launch)
        else:
            found.append(step)
    return found


def _refuse_interpreter(calls: Sequence[TorchCall], launch: TracedLaunch) -> None:
    if is_interpreted(torch_math.positions):
        raise UnsupportedBody(
            f"kernel {kernel_name(launch.fn)} runs in Triton's interpreter, which compiles nothing",
            found=_listed(calls, str),
            fix="unset TRITON_INTERPRET for the build",
            cause="launch",
        )


def _listed(calls: Sequence[TorchCall], at: Callable[[Place], str]) -> str:
    """`aten.mul.Tensor, aten.add.Tensor at ops.py:7, aten.exp at ops.py:8`."""
    places: dict[Place, dict[str, None]] = {}
    for call in calls:
        places.setdefault(call.location, {})[call.name] = None
    return ", ".join(f"{', '.join(names)} at {at(place)}" for place, names in places.items())


def _became(calls: Sequence[TorchCall], launch: TracedLaunch, more: str) -> str:
    name = kernel_name(launch.fn)
    return told(lambda at: f"{_listed(calls, at)} became kernel {name}{more}")


def _launch(step: Group | Reduced | Scanned | Called) -> TracedLaunch:
    made: source.Written | Called
    if isinstance(step, Group):
        made = source.write_group(step)
    elif isinstance(step, Called):
        made = step
    elif isinstance(step, Reduced):
        made = write_reduced(step)
    else:
        made = write_scanned(step)
    location = step.calls[-1].location
    outs = [id(memory) for memory in written(step)]
    writes = [
        n for n, v in made.arguments.items() if isinstance(v, Traced) and id(v.memory) in outs
    ]
    arguments = {name: pointed(value) for name, value in made.arguments.items()}
    x, y, z = [*map(term_of, made.grid), 1, 1][:3]
    options = dict(made.options)
    return TracedLaunch(made.fn, arguments, (x, y, z), options, location, writes=frozenset(writes))
