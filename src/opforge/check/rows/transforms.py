"""Rows that transform the op: autograd and vmap."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from ... import _compat
from ...errors import MissingBackward
from ..compare import difference, gradient_difference
from ..reasons import first_line, reason_of
from ..report import FAIL
from ..subject import Subject
from ..values import tensors_in
from ..verdict import Verdict, failed, passed, skipped

Tensor = torch.Tensor
Function = Callable[..., tuple[Tensor, ...]]

# Up to this many elements every entry of the Jacobian is taken; beyond, random projections.
_EVERY_ENTRY = 64
# Beyond this gradcheck, on failure, would build a Jacobian that does not fit.
_LARGEST = 8192
# Indices and flags stay as they are, so that they remain valid; 8-bit floats have no arithmetic.
_HALVED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def autograd(subject: Subject) -> Verdict:
    """Whether gradients are right: against the reference's, or numerically in double."""
    paths = subject.differentiable()
    if not paths:
        return skipped("no floating-point input to differentiate by")
    if subject.draws_random_numbers:
        return skipped("the op draws random numbers, so numerical gradients mean nothing")
    if subject.settings.reference is not None:
        return _against_reference(subject, paths)
    return _numerically(subject, paths)


def no_backward(subject: Subject) -> Verdict | None:
    if subject.registered and not subject.has("backward"):
        return skipped("no backward was given", "give backward= to @opforge.op")
    return None


def _against_reference(subject: Subject, paths: list[str]) -> Verdict:
    reference = subject.settings.reference
    assert reference is not None
    own = _gradients(subject.invoke, subject, paths)
    theirs = _gradients(lambda call: reference(*call.args, **call.kwargs), subject, paths)
    if own is None:
        return _nothing_recorded(subject)
    if theirs is None:
        return skipped("the reference is not differentiable", "write it with torch's own functions")
    for path, found, expected in zip(paths, own, theirs, strict=True):
        named = f"gradient of {path}"
        text = gradient_difference(found, expected, named, subject.settings.tolerance)
        if text:
            return failed(text, "correct backward=")
    return passed("as the reference's")


def _gradients(
    invoke: Callable[..., Any], subject: Subject, paths: list[str]
) -> list[Tensor] | None:
    call = subject.call.recording(paths)
    inputs = [t for p, t in call.tensors() if p in paths]
    outputs = _recorded(invoke(call))
    if not outputs:
        return None
    found = torch.autograd.grad(outputs, inputs, _cotangents(outputs), allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True)]


# Not 0, with which inputs are made: a norm has no gradient along its own input.
_SEED = 2024


def _cotangents(outputs: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    return [torch.randn(o.shape, generator=generator).to(o) for o in outputs]


def _recorded(value: Any) -> list[Tensor]:
    return [t for _, t in tensors_in(value, "output") if t.requires_grad]


def _nothing_recorded(subject: Subject) -> Verdict:
    if subject.registered:
        return skipped("no output is differentiable")
    return skipped("the function's outputs do not depend on its inputs in a way autograd records")


def _numerically(subject: Subject, paths: list[str]) -> Verdict:
    function, inputs = _in_double(subject, paths)
    try:
        outputs = function(*inputs)
    except Exception as error:  # noqa: BLE001  # whatever it says, double is what it refused
        return skipped(
            f"the op does not take double: {first_line(error)}",
            "pass reference=, whose gradients the op's are then compared with",
        )
    if not outputs:
        return _nothing_recorded(subject)
    size = sum(t.numel() for t in inputs)
    if size > _LARGEST:
        return _by_direction(function, inputs, paths)
    fast = size > _EVERY_ENTRY
    failure = _gradcheck(function, inputs, eps=1e-6, tolerance=1e-4, fast=fast)
    if failure is None:
        # Fast gradcheck widens its tolerance by the sum of its projections, and so lets a gradient
        # that is half too large pass six times in a hundred.
        told = _by_direction(function, inputs, paths) if fast else None
        return told if told and told.status == FAIL else passed("gradcheck in double")
    if _noise(function, inputs) > _SINGLE_NOISE:
        # The op rounds inside, so that steps of 1e-6 drown; larger ones do not.
        coarse = _gradcheck(function, inputs, eps=3e-3, tolerance=2e-2, fast=fast)
        if coarse is None:
            return passed("gradcheck, coarsely: the op computes in less than double inside")
        failure = coarse
    return _gradient_verdict(failure, function, inputs, paths)


def _gradient_verdict(
    failure: Exception, function: Function, inputs: list[Tensor], paths: list[str]
) -> Verdict:
    if isinstance(failure, MissingBackward):
        # Of an op that a function in mode none calls; it is not the function's mistake.
        return skipped(*reason_of(failure))
    found = re.search(r"for output (\d+) with respect to input (\d+)", str(failure))
    if found is None:
        line, fix = reason_of(failure)
        return failed(line, fix or "correct backward=")
    # The message counts inputs and prints Jacobians; a name and two numbers are easier to read.
    told = _by_direction(function, inputs, paths)
    if told.status == FAIL:
        return told
    return failed(f"the gradient of {paths[int(found[2])]} is wrong", "correct backward=")


def _in_double(subject: Subject, paths: list[str]) -> tuple[Function, list[Tensor]]:
    wide = subject.call.cloned().map(lambda _p, t: t.double() if t.is_floating_point() else t)

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(paths, inputs, strict=True))
        own = wide.cloned().map(given.get)
        return tuple(_recorded(subject.invoke(own)))

    return function, [t.requires_grad_() for p, t in wide.tensors() if p in paths]


def _gradcheck(
    function: Function, inputs: list[Tensor], *, eps: float, tolerance: float, fast: bool
) -> Exception | None:
    try:
        torch.autograd.gradcheck(
            function, tuple(inputs), eps=eps, atol=tolerance, rtol=tolerance, fast_mode=fast
        )
    except Exception as error:  # noqa: BLE001  # gradcheck's own, or what the backward raises
        return error
    return None


# Rounding to float32 inside leaves about 1e-8 of noise on outputs around one, double 1e-16.
_SINGLE_NOISE = 1e-12


def _noise(function: Function, inputs: list[Tensor]) -> float:
    """How far outputs are from smooth, by fifth differences along a short line."""
    with torch.no_grad():
        directions = [torch.sign(t) * 1e-5 + 1e-5 * t for t in inputs]
        points = [[t + k * d for t, d in zip(inputs, directions, strict=True)] for k in range(6)]
    values = [
        torch.cat([o.detach().flatten().double() for o in function(*_recording(p))]) for p in points
    ]
    line = torch.stack(values)
    size = float(line.abs().max()) or 1.0
    for _ in range(5):
        line = line[1:] - line[:-1]
    return float(line.abs().max()) / size


def _recording(tensors: list[Tensor]) -> list[Tensor]:
    return [t.detach().requires_grad_() for t in tensors]


def _by_direction(function: Function, inputs: list[Tensor], paths: list[str]) -> Verdict:
    """One random direction per input: what gradcheck's fast mode does, without its Jacobian."""
    outputs = list(function(*inputs))
    seeds = _cotangents(outputs)
    generator = torch.Generator().manual_seed(_SEED + 1)
    found = torch.autograd.grad(outputs, inputs, seeds, allow_unused=True)
    coarse = _noise(function, inputs) > _SINGLE_NOISE
    eps, tolerance = (3e-3, 2e-2) if coarse else (1e-6, 1e-4)
    for index, (path, gradient) in enumerate(zip(paths, found, strict=True)):
        direction = torch.randn(inputs[index].shape, generator=generator).to(inputs[index])
        direction /= direction.norm()
        ends = []
        for sign in (1, -1):
            moved = _recording(inputs)
            moved[index] = (inputs[index] + sign * eps * direction).detach().requires_grad_()
            ends.append([o.detach() for o in function(*moved)])
        numerical = sum(
            float(((a - b) * s).sum()) for a, b, s in zip(*ends, seeds, strict=True)
        ) / (2 * eps)
        analytical = 0.0 if gradient is None else float((gradient * direction).sum())
        # A sum over many outputs is rounded like one of their norm.
        scale = max(abs(numerical), sum(float(s.norm()) for s in seeds) * 1e-3)
        if abs(numerical - analytical) > tolerance * max(scale, 1.0):
            return failed(
                f"the gradient of {path} is wrong: numerical {numerical:.6g}, analytical "
                f"{analytical:.6g} along a random direction",
                "correct backward=",
            )
    how = "coarsely: the op computes in less than double inside" if coarse else "in double"
    return passed(f"along random directions, {how}")


def vmap(subject: Subject) -> Verdict:
    """Whether vmap over a new dimension is the loop over it."""
    tensors = subject.call.tensors()
    if subject.draws_random_numbers:
        return skipped("the op draws random numbers, which vmap hands out differently")
    slices = [subject.call.cloned(), subject.call.cloned().map(_other_slice)]
    expected = [subject.run(call) for call in slices]
    wrong = next((o.error for o in expected if o.error is not None), None)
    if wrong is not None:
        return skipped(f"the op does not take inputs of half the size: {first_line(wrong)}")
    batched = [
        torch.stack([a, b])
        for (_, a), (_, b) in zip(slices[0].tensors(), slices[1].tensors(), strict=True)
    ]

    def called(*slice_: Tensor) -> tuple[Tensor, ...]:
        value = subject.invoke(subject.call.with_tensors(slice_))
        return tuple(t for _, t in tensors_in(value, "output"))

    with _compat.checking.quiet_vmap_fallback():
        found = torch.vmap(called)(*batched)
    for index, outcome in enumerate(expected):
        outputs = [t for _, t in tensors_in(outcome.value, "output")]
        written = [t for p, t in outcome.call.tensors() if p in subject.written]  # type: ignore[union-attr]
        own = [t[index] for (p, _), t in zip(tensors, batched, strict=True) if p in subject.written]
        text = difference([t[index] for t in found], outputs, "output")
        text = text or difference(own, written, "a written input")
        if text:
            return failed(f"slice {index} of vmap: {text}", "correct vmap=, or vmap='sequential'")
    return passed("" if subject.has("vmap") or not subject.registered else "torch's own fallback")


def no_vmap(subject: Subject) -> Verdict | None:
    if not subject.call.tensors():
        return skipped("no tensor input to batch")
    if subject.registered and not subject.has("vmap") and _without_fallback(subject):
        return skipped(
            "no vmap rule, and torch has no fallback for lists or mutation",
            "vmap='sequential' gives one",
        )
    return None


def _without_fallback(subject: Subject) -> bool:
    lowered = subject.entry.lowered
    assert lowered is not None
    lists = any(a.is_tensor_list for a in lowered.arguments)
    return lists or bool(lowered.mutated) or any(leaf.container for leaf in lowered.returns)


def _other_slice(_path: str, tensor: Tensor) -> Tensor:
    return tensor * 0.5 if tensor.dtype in _HALVED else tensor
