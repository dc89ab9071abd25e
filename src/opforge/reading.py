"""Reads a body: its kernels, the operators it calls, and the mode that follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import _compat
from .analysis.mode import Facts, decide
from .errors import BadOption, ModeRefused, NotAKernel
from .model import Decision, Discovery, KernelRef, NestedOp
from .registration.transparent import Reading
from .registry import registry

_kernels = _compat.kernels


def find_kernels(fn: Any, max_depth: int = 5) -> Discovery:
    """The Triton kernels and the operators that a function launches, without running it.

        [k.name for k in opforge.find_kernels(silu)]  # ['silu_kernel']

    Functions that it calls are read too, `max_depth` calls deep. Where a name may stand for
    several kernels, all of them are found. `unresolved` has the calls that could not be
    followed, `nested_ops` the operators, `unbound` the names that nothing binds yet.
    """
    # Imported here: it is half of opforge, and a program may import ops that it never uses.
    from .analysis.discovery.kernels import find_kernels as find  # noqa: PLC0415

    return find(fn, max_depth)


@dataclass(frozen=True)
class Reader:
    """What to read for one op, and how."""

    name: str
    fn: Callable[..., Any]
    callbacks: tuple[Callable[..., Any], ...]
    given: tuple[KernelRef, ...]
    mode: str
    max_depth: int
    lost: str

    def first(self) -> tuple[Reading, bool]:
        """The reading at decoration, and whether its mode must wait until names are bound."""
        found = self._found()
        pending = tuple(op for op in found[0].nested_ops if _is_pending(op))
        facts = self._facts(*found, pending)
        waits = bool(found[0].unbound or pending)
        try:
            decision = decide(facts, self.mode)
        except ModeRefused:
            if not waits or (facts.kernels and facts.opaque):
                raise
            decision = Decision("custom_op", "not settled yet")
        return replace(self._reading(*found, decision, facts), pending=pending), waits

    def again(self) -> Reading:
        """The reading at a call, a trace or `info`, when the handle is out."""
        found = self._found()
        pending = tuple(op for op in found[0].nested_ops if _is_pending(op))
        facts = self._facts(*found)
        lost = facts.lost or "the handle that decorating it gave, before its names were bound"
        facts = replace(facts, lost=lost)
        decision = decide(facts, self.mode)
        return replace(self._reading(*found, decision, facts), pending=pending)

    def _found(self) -> tuple[Discovery, Discovery]:
        body = find_kernels(self.fn, self.max_depth)
        known = {id(ref.kernel) for ref in body}
        added = tuple(ref for ref in self.given if id(ref.kernel) not in known)
        body = replace(
            body,
            kernels=(*body.kernels, *added),
            nested_ops=tuple(op for op in body.nested_ops if op != self.name),
        )
        backward = [find_kernels(fn, self.max_depth) for fn in self.callbacks]
        return body, _joined(backward)

    def _facts(
        self, body: Discovery, _backward: Discovery, pending: tuple[NestedOp, ...] = ()
    ) -> Facts:
        called = [op for op in body.nested_ops if op not in pending]
        transparent = tuple(op for op in called if _is_transparent(op))
        barred = [(r, _compat.launches.unsupported(r.kernel)) for r in body]
        return Facts(
            kernels=body.kernels,
            transparent=transparent,
            opaque=tuple(op for op in called if op not in transparent),
            interpreted=any(_kernels.is_interpreted(r.kernel) for r in body),
            barred=tuple((r, why) for r, why in barred if why),
            lost=self.lost,
        )

    def _reading(
        self, body: Discovery, backward: Discovery, decision: Decision, facts: Facts
    ) -> Reading:
        called = (*facts.transparent, *(o for o in backward.nested_ops if _is_transparent(o)))
        nested = tuple(k for op in called for k in self._kernels_of(op))
        return Reading(decision, body, backward, nested)

    def _kernels_of(self, op: NestedOp) -> list[Any]:
        """What a transparent op launches; torch's own lists are short of most spellings."""
        listed = [k for k in _compat.launches.cache_kernels(op) if _kernels.is_kernel(k)]
        theirs = _compat.operators.definition(op)
        read = Discovery() if theirs is None else find_kernels(theirs, self.max_depth)
        return [*listed, *(ref.kernel for ref in read)]


def given_kernels(kernels: Any) -> tuple[KernelRef, ...]:
    """`kernels=[...]` as records; something that is no kernel is refused."""
    if not isinstance(kernels, (list, tuple)):
        raise BadOption(f"kernels={kernels!r} is no list", fix="kernels=[my_kernel]")
    given = [_given(value) for value in kernels]
    return tuple({id(ref.kernel): ref for ref in given}.values())


def _given(value: Any) -> KernelRef:
    kernel = _kernels.launched_kernel(value)
    if kernel is None:
        raise NotAKernel(
            f"kernels= has {value!r}, which is no Triton kernel",
            found=type(value).__name__,
            fix="name functions decorated with @triton.jit, @triton.autotune or @triton.heuristics",
        )
    name, location = _kernels.kernel_name(kernel), _kernels.kernel_location(kernel)
    return KernelRef(name, kernel, location, "kernels=")


def _is_pending(op: NestedOp) -> bool:
    """Whether an opforge op waits for names to be bound before its mode is settled."""
    entry = registry.find(op.op) if op.op is not None else registry.find(str(op))
    return entry is not None and entry.is_open()


def _is_transparent(op: NestedOp) -> bool:
    """Whether the compiler sees through an operator: opforge's own, and torch's triton_op."""
    entry = registry.find(op.op) if op.op is not None else registry.find(str(op))
    if entry is not None:
        return entry.describe().mode == "triton_op"
    return _compat.launches.is_triton_op(str(op))


def _joined(found: Sequence[Discovery]) -> Discovery:
    return Discovery(
        tuple(ref for d in found for ref in d.kernels),
        tuple(u for d in found for u in d.unresolved),
        tuple(op for d in found for op in d.nested_ops),
        tuple(u for d in found for u in d.unbound),
    )
