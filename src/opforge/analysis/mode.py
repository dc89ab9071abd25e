"""From what a body contains to how its op is registered: `triton_op`, `custom_op` or `none`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from ..errors import ModeRefused
from ..model import Decision, KernelRef, Mode, NestedOp

MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Facts:
    """What was found in a body.

    `kernels` and `opaque` are what its text launches and calls; `mentioned` are kernels that it
    only names, and `transparent` the operators that it calls or names.
    `barred` are kernels that a graph cannot hold, each with the reason; `lost` is what would be
    lost if the function were returned as it is ("its backward").
    """

    kernels: tuple[KernelRef, ...] = ()
    mentioned: tuple[KernelRef, ...] = ()
    transparent: tuple[NestedOp, ...] = ()
    opaque: tuple[NestedOp, ...] = ()
    interpreted: bool = False
    barred: tuple[tuple[KernelRef, str], ...] = ()
    lost: str = ""

    @property
    def cell(self) -> str:
        found = {
            "kernels": (*self.kernels, *self.mentioned),
            "transparent ops": self.transparent,
            "opaque ops": self.opaque,
        }
        return " and ".join(filter(found.get, found)) or "neither kernels nor operators"


def decide(facts: Facts, asked: str) -> Decision:
    """The mode for what was found and asked for; ModeRefused where they exclude each other."""
    return replace(_decide(facts, asked), asked=asked, cell=facts.cell)


def _decide(facts: Facts, asked: str) -> Decision:
    if asked == "none":
        unused = f"; {facts.lost} not used" if facts.lost else ""
        why = f"mode='none': the function itself, unknown to torch{unused}"
        return Decision("none", why)
    if asked == "custom_op":
        return Decision("custom_op", "mode='custom_op': opaque to the compiler, as asked")
    if facts.interpreted:
        why = "Triton's interpreter is on (TRITON_INTERPRET=1), and a graph cannot hold its kernels"
        return Decision("custom_op", why, change="run without TRITON_INTERPRET=1")
    if facts.barred:
        return _barred(facts, asked)
    if facts.opaque and (facts.kernels or asked == "triton_op"):
        raise _barrier(facts, asked)
    if facts.kernels or (facts.mentioned and not facts.opaque):
        return _seen_through(facts)
    if asked == "triton_op":
        return _without_kernels(facts)
    if facts.transparent:
        return _transparent_only(facts)
    if facts.opaque:
        named = f"only names {facts.mentioned[0].name}" if facts.mentioned else "launches no kernel"
        why = f"it calls opaque operators ({', '.join(facts.opaque)}) and {named}"
        return Decision("custom_op", why)
    why = "opaque to the compiler, because no kernel was found in its body"
    change = "kernels=[...] names kernels that reading the body does not find"
    return Decision("custom_op", why, change=change)


def _seen_through(facts: Facts) -> Decision:
    names = ", ".join(ref.name for ref in facts.kernels or facts.mentioned)
    why = f"it {'launches' if facts.kernels else 'may launch'} {names}"
    change = "mode='custom_op' makes it one opaque node"
    return Decision("triton_op", f"the compiler sees through it: {why}", change=change)


def _barred(facts: Facts, asked: str) -> Decision:
    ref, why = facts.barred[0]
    reason = f"kernel {ref.name} ({ref.location}) cannot be seen through: {why}"
    gluon = "Gluon" in why and asked == "auto"
    warning = "" if gluon else f"registered opaque (custom_op): {reason}"
    change = "another kernel" if gluon else "mode='custom_op' says the same without a warning"
    return Decision("custom_op", reason, change=change, warning=warning)


def _without_kernels(facts: Facts) -> Decision:
    if facts.transparent:
        why = f"mode='triton_op': seen through to {', '.join(facts.transparent)}"
        return Decision("triton_op", why)
    raise ModeRefused(
        "mode='triton_op', but no launch of a Triton kernel was found in its body",
        found="neither kernels nor operators that launch some",
        fix="name the kernels with kernels=[...], raise max_depth=, or leave mode out",
    )


def _transparent_only(facts: Facts) -> Decision:
    through = ", ".join(facts.transparent)
    if not facts.lost:
        why = f"the function itself, so that the compiler inlines it and sees {through}"
        return Decision("none", why, change="a name or mode='triton_op' registers it")
    kept = f"mode 'none' would lose {facts.lost}"
    if facts.opaque:
        why = f"{kept}; opaque, because it also calls {', '.join(facts.opaque)}"
        return Decision("custom_op", why, change=f"without {', '.join(facts.opaque)}: triton_op")
    return Decision("triton_op", f"{kept}; the compiler sees through it to {through}")


def _barrier(facts: Facts, asked: str) -> ModeRefused:
    barrier = facts.opaque[0]
    asked_for = "mode='triton_op', and it" if asked == "triton_op" else "it"
    kernels = ""
    if facts.kernels:
        ref = facts.kernels[0]
        kernels = f" launches kernel {ref.name} ({ref.found_via}) and"
    registered = "which the compiler cannot see into"
    if barrier.op is None:
        registered = "which is not registered"
    return ModeRefused(
        f"{asked_for}{kernels} calls {barrier} at {barrier.location}, {registered}",
        found=facts.cell,
        fix=f"mode='custom_op' makes all of it one opaque node; or make {barrier} transparent "
        "before this op is defined (@opforge.op on what launches its kernels, or "
        "torch.library.triton_op); or call it outside of this op",
    )
