"""Traces a body again and compares, so that no random number or clock becomes a constant.

What a body reads of the clock or of a generator looks like any other number. But it differs from
call to call: so the same path is walked at least twice, at different times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ... import _compat
from ..._compat import process_state
from ...errors import UnsupportedBody
from ..ir.expr import Number
from ..symbolic.symint import is_symbolic
from .launches import Pointed, TracedLaunch
from .recorder import Filled
from .tracer import Tracer, Walk

# So many walks tell `randrange(2)` from a constant, but for once in 100 million times.
_IF_RANDOM = 32
# No multiple of anything that a body may divide a time by.
_SECONDS = 86_400 * 45 + 3_607


def walk(tracer: Tracer, values: Mapping[str, Number]) -> Walk:
    """The last of several walks that did the same, apart from what a body does only once."""
    last = tracer.walk(values)
    if last.offences:
        # No library will have this path, whatever it does the next time.
        return last
    times, done, differences = 1, 0, 0
    while done < times:
        done += 1
        before, state = _Did(last), process_state.random_state()
        last.end()
        # `last` lives on, so that what is made anew has another id().
        with process_state.clock_shifted(done * _SECONDS):
            again = tracer.walk(values)
        if process_state.random_state() != state:
            times = _IF_RANDOM
        last, found = again, before.difference(_Did(again))
        if found:
            differences += 1
            times = max(times, done + 1)
        if differences > 1:
            last.end()
            raise _refusal(tracer, values, found)
    return last


def _refusal(tracer: Tracer, values: Mapping[str, Number], found: str) -> UnsupportedBody:
    asked: dict[str, None] = {}
    with process_state.chance_noted(lambda what: asked.update({f"the body asks for {what}": None})):
        tracer.walk(values).end()
    return UnsupportedBody(
        "it does something different in each call, even with the same arguments",
        found="\n    ".join([found, *asked]),
        fix="make what differs a parameter, declared as a scalar: seed=native.scalar('i64')",
        op=tracer.entry.name,
        location=tracer.entry.location,
    )


class _Did:
    """What a walk did, as text, which outlives the walk's symbols."""

    def __init__(self, walk: Walk) -> None:
        self.refused = walk.refusal.why
        self.facts = [] if walk.refused else list(_facts(walk))

    def difference(self, other: _Did) -> str:
        """What another walk did differently; empty if nothing."""
        if self.refused or other.refused:
            return "" if self.refused and other.refused else self.refused or other.refused
        for (what, value), (also, now) in zip(self.facts, other.facts, strict=False):
            if what != also:
                return f"{what} in one call, {also} in another"
            if value != now:
                return f"{what} is {value} in one call, {now} in another"
        longer = max(self.facts, other.facts, key=len)
        missing = longer[min(len(self.facts), len(other.facts)) :]
        return f"{missing[0][0]} only in some calls" if missing else ""


def _facts(walk: Walk) -> Iterator[tuple[str, str]]:
    """All that a walk did, each thing with its value."""
    for step in walk.steps:
        if isinstance(step, Filled):
            at = f"the value in {step.buffer.name}"
            yield at, f"{step.value} ({step.offset}, {step.count}, {step.dtype})"
        elif isinstance(step, TracedLaunch):
            kernel = _compat.kernels.kernel_name(step.fn)
            launch = f"kernel {kernel} (launched at {step.location})"
            yield f"the grid of {launch}", _text(step.grid)
            written = _compat.kernels.written_source(step.fn)
            if written is not None:
                # A number of a torch call is in the kernel that opforge writes for it.
                yield f"a number in {launch}", ", ".join(_NUMBERS.findall(written[1]))
            for name, value in {**step.arguments, **step.options}.items():
                yield f"{name!r} of {launch}", _text(value)
    for tensor in walk.outputs:
        if tensor is not None:
            shape = (tensor.memory.name, tensor.sizes, tensor.strides, tensor.offset)  # type: ignore[attr-defined]
            yield "the shape of an output", _text(shape)
    for guard in walk.guards:
        yield f"a branch at {guard.location}", str(guard.condition)


def _text(value: Any) -> str:
    if isinstance(value, Pointed):
        return f"{value.memory.name}[{value.offset}] {value.dtype}"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_text, value))
    if is_symbolic(value) or isinstance(value, _PLAIN):
        return str(value)
    # Objects that are made in every call are not equal, and nobody means them to differ.
    return type(value).__name__


_NUMBERS = re.compile(r"tl\.full\(\(\), (.*?), tl\.")
_PLAIN = (str, int, float, complex, type(None), torch.dtype)
