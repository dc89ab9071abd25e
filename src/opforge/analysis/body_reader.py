"""Reads an op's body: its kernels, the operators it calls, and the mode that follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .. import _compat
from ..errors import BadOption, ModeRefused
from ..model import (
    LAUNCHED,
    MENTIONED,
    Decision,
    Discovery,
    KernelRef,
    NestedOp,
    OpInfo,
    Reading,
)
from .mode import Facts, decide

_kernels = _compat.kernels


class Registered(Protocol):
    """What is asked of a nested op that opforge made."""

    def is_open(self) -> bool:
        """Whether its mode may still change, because something is not bound yet."""

    def describe(self) -> OpInfo:
        """What opforge made of it."""


@dataclass(frozen=True)
class BodyReader:
    """What to read for one op, and how; `find` looks a nested op up by its operator or name."""

    name: str
    fn: Callable[..., Any]
    callbacks: tuple[Callable[..., Any], ...]
    given: tuple[KernelRef, ...]
    mode: str
    max_depth: int
    lost: str
    find: Callable[[Any], Registered | None]

    def first(self) -> tuple[Reading, bool]:
        """The reading at decoration, and whether its mode must wait until names are bound."""
        found = self._found()
        pending = self._pending(found[0])
        facts = self._facts(found[0], pending)
        waits = bool(found[0].unbound or pending)
        try:
            decision = decide(facts, self.mode)
        except ModeRefused:
            if not waits or (facts.kernels and facts.opaque):
                raise
            decision = Decision("custom_op", "its mode is not resolved yet")
        return replace(self._reading(*found, decision, facts), pending=pending), waits

    def again(self) -> Reading:
        """The reading at a call, a trace or `info`, when the handle is out."""
        found = self._found()
        facts = self._facts(found[0])
        lost = facts.lost or "the handle that decorating it gave, before its names were bound"
        facts = replace(facts, lost=lost)
        reading = self._reading(*found, decide(facts, self.mode), facts)
        return replace(reading, pending=self._pending(found[0]))

    def _found(self) -> tuple[Discovery, Discovery]:
        body = self._kernels_in(self.fn)
        if self._may_be_barred(body):
            body = self._kernels_in(self.fn, by_calls=True)
        known = {id(ref.kernel) for ref in body}
        added = tuple(ref for ref in self.given if id(ref.kernel) not in known)
        body = replace(
            body,
            kernels=(*body.kernels, *added),
            nested_ops=tuple(op for op in body.nested_ops if op != self.name),
            # What reading did not come upon may be launched in any way.
            wraps=body.wraps or bool(added),
        )
        return body, _joined([self._kernels_in(fn) for fn in self.callbacks])

    def _may_be_barred(self, body: Discovery) -> bool:
        """Whether something in it would keep the compiler from seeing through the op."""
        return any(op.called and not self._is_transparent(op) for op in body.nested_ops) or any(
            ref.grade == LAUNCHED and _compat.launches.unsupported(ref.kernel) for ref in body
        )

    def _kernels_in(self, fn: Any, *, by_calls: bool = False) -> Discovery:
        # Imported here: an op that a library serves is never read.
        from .find import find_kernels  # noqa: PLC0415

        return find_kernels(fn, self.max_depth, by_calls=by_calls)

    def _facts(self, body: Discovery, pending: tuple[NestedOp, ...] = ()) -> Facts:
        named = [op for op in body.nested_ops if op not in pending]
        transparent = tuple(op for op in named if op.called and self._is_transparent(op))
        launched = tuple(ref for ref in body if ref.grade == LAUNCHED)
        barred = [(r, _compat.launches.unsupported(r.kernel)) for r in launched]
        return Facts(
            kernels=launched,
            mentioned=tuple(ref for ref in body if ref.grade == MENTIONED),
            transparent=transparent,
            opaque=tuple(op for op in named if op.called and op not in transparent),
            interpreted=any(_kernels.is_interpreted(r.kernel) for r in body),
            barred=tuple((r, why) for r, why in barred if why),
            lost=self.lost,
        )

    def _reading(
        self, body: Discovery, backward: Discovery, decision: Decision, facts: Facts
    ) -> Reading:
        called = (*facts.transparent, *(o for o in backward.nested_ops if self._is_transparent(o)))
        nested = tuple(k for op in called for k in self._kernels_of(op))
        return Reading(decision, body, backward, nested)

    def _kernels_of(self, op: NestedOp) -> list[Any]:
        """What a transparent op launches; torch's own lists miss most spellings."""
        listed = [k for k in _compat.launches.kernels_of_ops.get(op, ()) if _kernels.is_kernel(k)]
        theirs = _compat.operators.definition(op)
        read = Discovery() if theirs is None else self._kernels_in(theirs)
        return [*listed, *(ref.kernel for ref in read)]

    def _pending(self, body: Discovery) -> tuple[NestedOp, ...]:
        """The opforge ops that a body calls and whose own mode waits for names to be bound."""
        entries = [(op, self._entry(op)) for op in body.nested_ops]
        return tuple(op for op, entry in entries if entry is not None and entry.is_open())

    def _is_transparent(self, op: NestedOp) -> bool:
        """Whether the compiler sees through an operator: opforge's own, or torch's triton_op."""
        entry = self._entry(op)
        if entry is not None:
            return entry.describe().mode == "triton_op"
        return op in _compat.launches.kernels_of_ops

    def _entry(self, op: NestedOp) -> Registered | None:
        return self.find(str(op) if op.op is None else op.op)


def given_kernels(kernels: Any) -> tuple[KernelRef, ...]:
    """`kernels=[...]` as records, each kernel once."""
    if not isinstance(kernels, (list, tuple)):
        raise BadOption(f"kernels={kernels!r} is not a list", fix="kernels=[my_kernel]")
    given = [_given(value) for value in kernels]
    return tuple({id(ref.kernel): ref for ref in given}.values())


def _given(value: Any) -> KernelRef:
    kernel = _kernels.launched_kernel(value)
    if kernel is None:
        raise BadOption(
            f"kernels= has {value!r}, which is not a Triton kernel",
            found=type(value).__name__,
            fix="name functions decorated with @triton.jit, @triton.autotune or @triton.heuristics",
        )
    name, location = _kernels.kernel_name(kernel), _kernels.kernel_location(kernel)
    return KernelRef(name, kernel, location, "kernels=")


def _joined(found: Sequence[Discovery]) -> Discovery:
    return Discovery(
        tuple(ref for d in found for ref in d.kernels),
        tuple(u for d in found for u in d.unresolved),
        tuple(op for d in found for op in d.nested_ops),
        tuple(u for d in found for u in d.unbound),
        any(d.wraps for d in found),
    )
