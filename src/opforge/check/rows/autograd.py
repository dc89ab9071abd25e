"""The row autograd: gradients against the reference's, or numerically in double."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..compare import gradient_difference, root_mean_square
from ..numerical import cotangents, numerically, through
from ..reasons import short_reason
from ..report import PASS
from ..subject import Subject
from ..values import OpCall, tensors_in, with_gaps
from ..verdict import Verdict, failed, passed, skipped

Tensor = torch.Tensor


def autograd(subject: Subject) -> Verdict:
    """Whether gradients are right: against the reference's, or numerically in double."""
    paths = subject.differentiable()
    if not paths:
        return skipped("there is no floating-point input to differentiate")
    if subject.draws_random_numbers:
        return skipped("the op draws random numbers, so numerical gradients mean nothing")
    by_reference = subject.settings.reference is not None
    verdict = (_against_reference if by_reference else numerically)(subject, paths)
    if verdict is None:
        return _nothing_recorded(subject)
    if verdict.status == PASS:
        return _of_strided_gradients(subject, paths) or verdict
    return verdict


def no_backward(subject: Subject) -> Verdict | None:
    if subject.registered and not subject.has("backward"):
        return skipped("no backward was given", "give backward= to @opforge.op")
    return None


def _nothing_recorded(subject: Subject) -> Verdict:
    if subject.registered:
        return skipped("no output is differentiable")
    return skipped("autograd records no dependence of the function's outputs on its inputs")


def _against_reference(subject: Subject, paths: list[str]) -> Verdict | None:
    """Each output by itself: a small gradient would drown in the sum of all."""
    reference = subject.settings.reference
    assert reference is not None
    call, other_call = subject.call.recording(paths), subject.call.recording(paths)
    own = tensors_in(subject.invoke(call), "output")
    theirs = tensors_in(reference(*other_call.args, **other_call.kwargs), "output")
    if not any(t.requires_grad for _, t in own):
        return None
    if not any(t.requires_grad for _, t in theirs):
        return skipped("the reference is not differentiable", "write it with torch's own functions")
    if len(own) != len(theirs):
        return skipped(
            f"the reference returns {len(theirs)} tensors, the op {len(own)}",
            "make it return what the op returns",
        )
    notes, pairs = [], []
    seeds = cotangents([t for _, t in own])
    for (path, one), (_, other), seed in zip(own, theirs, seeds, strict=True):
        if one.requires_grad and other.requires_grad:
            found = _by_inputs(one, call, paths, seed)
            pairs.append((path, found, _by_inputs(other, other_call, paths, seed.to(other))))
        elif one.requires_grad:
            notes.append(f"not tried: {path}, which is not differentiable in the reference")
    text = _unlike(paths, pairs, subject)
    return failed(text, "correct backward=", *notes) if text else passed(_EQUAL, *notes)


_EQUAL = "equal to the reference's"
# Where terms of all outputs add up to zero for one of them, single precision leaves this much.
_RESIDUE = 1e-6


def _unlike(
    paths: list[str], pairs: list[tuple[str, list[Tensor], list[Tensor]]], subject: Subject
) -> str:
    """How gradients differ from the reference's; empty if they do not."""
    for index, path in enumerate(paths):
        largest = max((root_mean_square(theirs[index]) for _, _, theirs in pairs), default=0.0)
        floor = _RESIDUE * largest if len(pairs) > 1 else 0.0
        for output, own, theirs in pairs:
            named = f"gradient of {path}{through(output, len(pairs))}"
            text = gradient_difference(
                own[index], theirs[index], named, subject.settings.tolerance, floor
            )
            if text:
                return text
    return ""


def _by_inputs(output: Tensor, call: OpCall, paths: list[str], seed: Tensor) -> list[Tensor]:
    inputs = [t for p, t in call.tensors() if p in paths]
    found = torch.autograd.grad(output, inputs, seed, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True)]


def gradients(
    invoke: Callable[[OpCall], Any],
    call: OpCall,
    paths: list[str],
    seeds: Callable[[list[Tensor]], list[Tensor]] | None = None,
) -> list[Tensor] | None:
    """By the inputs at `paths`; None if autograd records nothing between them and an output."""
    outputs = [t for _, t in tensors_in(invoke(call), "output") if t.requires_grad]
    inputs = [t for p, t in call.tensors() if p in paths]
    if not outputs or not inputs:
        return None
    seeded = (seeds or cotangents)(outputs)
    found = torch.autograd.grad(outputs, inputs, seeded, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True)]


def _of_strided_gradients(subject: Subject, paths: list[str]) -> Verdict | None:
    """What the backward gets wrong for gradients with gaps, such as views and expands pass."""
    fix = "make backward= respect the strides of its gradients, or call .contiguous() on them"

    def gaps(outputs: list[Tensor]) -> list[Tensor]:
        return [with_gaps(c) for c in cotangents(outputs)]

    expected = gradients(subject.invoke, subject.call.recording(paths), paths)
    try:
        found = gradients(subject.invoke, subject.call.recording(paths), paths, gaps)
    except Exception as error:  # noqa: BLE001  # whatever the backward says of such gradients
        return failed(f"with a non-contiguous gradient: {short_reason(error)}", fix)
    if found is None or expected is None:
        return None
    for path, one, other in zip(paths, found, expected, strict=True):
        text = gradient_difference(one, other, f"gradient of {path}")
        if text:
            return failed(f"with a non-contiguous gradient, {text}", fix)
    return None
