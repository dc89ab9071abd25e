"""From what was read, defined and registered to an op's `OpInfo`; each stage adds what it knows."""

from __future__ import annotations

from dataclasses import replace

from . import _compat
from .model import OpInfo, Reading
from .registration.register import Definition, Registration


def info_of_reading(name: str, location: str, reading: Reading) -> OpInfo:
    """For a function that stays unknown to torch."""
    return OpInfo(
        name=name,
        mode=reading.decision.mode,
        reason=reading.decision.reason,
        location=location,
        kernels=reading.body.kernels,
        unresolved=(*reading.body.unresolved, *reading.body.unbound),
        nested_ops=reading.body.nested_ops,
    )


def info_of_definition(definition: Definition) -> OpInfo:
    """For an op that could be registered."""
    reading, lowered = definition.transparency.reading, definition.lowered
    return replace(
        info_of_reading(definition.name, definition.location, reading),
        schema=definition.name + lowered.schema,
        path=lowered.path,
        fake_source=definition.fake.source,
        kernels=definition.transparency.kernels,
        notes=(*lowered.notes, *definition.transparency.notes),
        backward_kernels=definition.transparency.backward_kernels,
    )


def info_of_registration(registration: Registration) -> OpInfo:
    return replace(
        info_of_definition(registration.definition),
        schema=_compat.schema_text(registration.overload),
        overload=registration.overload,
        native="; ".join(registration.backends.values()),
    )
