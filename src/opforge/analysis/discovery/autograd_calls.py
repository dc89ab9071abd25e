"""`X.apply(...)` of a `torch.autograd.Function`."""

from __future__ import annotations

import types
from typing import Any

import torch

from .frame_table import FrameTable
from .frames import Call, Context, Entered
from .machine import Machine
from .objects import class_attribute, is_instance, is_leaf, plain_function, wrapped
from .values import ANY, UNKNOWN_ARGUMENTS, Known

# What `apply`, or the backward pass after it, runs.
_PARTS = ("setup_context", "backward", "vjp", "jvp", "vmap")


def is_autograd_apply(fn: types.FunctionType) -> bool:
    stored = class_attribute(torch.autograd.Function, "apply")
    return is_instance(stored, classmethod) and stored.__func__ is fn


def apply_autograd(machine: Machine, frames: FrameTable, call: Call, cls: type[Any]) -> None:
    """Run `forward` now, and what the backward pass will run."""
    frame = call.frame
    setup, forward = _own_part(cls, "setup_context"), _own_part(cls, "forward")
    if forward is None:
        return
    split = setup is not None
    given = call.arguments if split else call.arguments.after(ANY)
    entered = frames.of_function(frame, forward, given)
    if entered is None:
        machine.call(Call(frame, given, call.outcome), Known(forward))
        return
    call.outcome.enter(entered)
    # Below a decorator's wrapper, which only passes `ctx` on.
    writes = plain_function(setup if split else forward)
    writes = writes if is_instance(writes, types.FunctionType) else forward
    writer = frames.of_function(frame, writes, UNKNOWN_ARGUMENTS if split else given)
    context = Context(writer)
    for name in _PARTS:
        part = _own_part(cls, name)
        given = UNKNOWN_ARGUMENTS.after((context,))
        inner = None if part is None else frames.of_function(frame, part, given)
        if inner is not None:
            call.outcome.effects.append(Entered(inner))


def _own_part(cls: type[Any], name: str) -> types.FunctionType | None:
    """The function of a static method, below torch's own decorators; None if it is torch's."""
    stored = class_attribute(cls, name)
    for _ in range(8):
        if is_instance(stored, (staticmethod, classmethod)):
            stored = stored.__func__
        elif is_instance(stored, types.FunctionType) and is_leaf(stored):
            stored = wrapped(stored)
        else:
            break
    return stored if is_instance(stored, types.FunctionType) else None
