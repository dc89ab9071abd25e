"""The row autograd: gradients against the reference's, or numerically in double."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import MissingBackward
from ..compare import gradient_difference
from ..reasons import reason_of, short_reason
from ..report import FAIL, PASS
from ..subject import Subject
from ..values import OpCall, tensors_in
from ..verdict import Verdict, failed, passed, skipped

Tensor = torch.Tensor
Function = Callable[..., tuple[Tensor, ...]]

# Up to this many elements every entry of the Jacobian is taken; beyond, random projections.
_EVERY_ENTRY = 64
# Beyond this gradcheck, on failure, would build a Jacobian that does not fit.
_LARGEST = 8192


def autograd(subject: Subject) -> Verdict:
    """Whether gradients are right: against the reference's, or numerically in double."""
    paths = subject.differentiable()
    if not paths:
        return skipped("there is no floating-point input to differentiate")
    if subject.draws_random_numbers:
        return skipped("the op draws random numbers, so numerical gradients mean nothing")
    by_reference = subject.settings.reference is not None
    verdict = (_against_reference if by_reference else _numerically)(subject, paths)
    if verdict.status == PASS:
        return _of_strided_gradients(subject, paths) or verdict
    return verdict


def no_backward(subject: Subject) -> Verdict | None:
    if subject.registered and not subject.has("backward"):
        return skipped("no backward was given", "give backward= to @opforge.op")
    return None


def _against_reference(subject: Subject, paths: list[str]) -> Verdict:
    reference = subject.settings.reference
    assert reference is not None
    own = gradients(subject.invoke, subject.call.recording(paths), paths)
    theirs = gradients(
        lambda call: reference(*call.args, **call.kwargs), subject.call.recording(paths), paths
    )
    if own is None:
        return _nothing_recorded(subject)
    if theirs is None:
        return skipped("the reference is not differentiable", "write it with torch's own functions")
    for path, found, expected in zip(paths, own, theirs, strict=True):
        named = f"gradient of {path}"
        text = gradient_difference(found, expected, named, subject.settings.tolerance)
        if text:
            return failed(text, "correct backward=")
    return passed("equal to the reference's")


def gradients(
    invoke: Callable[[OpCall], Any],
    call: OpCall,
    paths: list[str],
    seeds: Callable[[list[Tensor]], list[Tensor]] | None = None,
) -> list[Tensor] | None:
    """By the inputs at `paths`; None if autograd records nothing between them and an output."""
    outputs = _recorded(invoke(call))
    inputs = [t for p, t in call.tensors() if p in paths]
    if not outputs or not inputs:
        return None
    seeded = (seeds or _cotangents)(outputs)
    found = torch.autograd.grad(outputs, inputs, seeded, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True)]


def _of_strided_gradients(subject: Subject, paths: list[str]) -> Verdict | None:
    """What the backward gets wrong for gradients with gaps, such as views and expands pass."""
    fix = "make backward= respect the strides of its gradients, or call .contiguous() on them"

    def gaps(outputs: list[Tensor]) -> list[Tensor]:
        return [_with_gaps(c) for c in _cotangents(outputs)]

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


def _with_gaps(tensor: Tensor) -> Tensor:
    """The same values with gaps; code that assumes none reads wrong values, in bounds."""
    wide = torch.stack([tensor, tensor + 1], -1)
    if not tensor.dim():
        return wide[0]
    return torch.cat([wide, wide], -2).select(-1, 0).narrow(-1, 0, tensor.shape[-1])


# Not 0, the seed of the inputs: a norm has no gradient along its own input.
_SEED = 2024


def _cotangents(outputs: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    return [torch.randn(o.shape, generator=generator).to(o) for o in outputs]


def _recorded(value: Any) -> list[Tensor]:
    return [t for _, t in tensors_in(value, "output") if t.requires_grad]


def _nothing_recorded(subject: Subject) -> Verdict:
    if subject.registered:
        return skipped("no output is differentiable")
    return skipped("autograd records no dependence of the function's outputs on its inputs")


def _numerically(subject: Subject, paths: list[str]) -> Verdict:
    function, inputs = _in_double(subject, paths)
    try:
        outputs = function(*inputs)
    except Exception as error:  # noqa: BLE001  # whatever it says, double is what it refused
        return skipped(
            f"the op does not accept float64: {short_reason(error)}",
            "pass reference=, to compare gradients with",
        )
    if not outputs:
        return _nothing_recorded(subject)
    noise = _noise(function, inputs)
    if noise.relative > _HALF_NOISE:
        return skipped(
            "internally the op computes in less than single precision, so numerical gradients mean "
            "nothing",
            "pass reference=, to compare gradients with",
        )
    size = sum(t.numel() for t in inputs)
    if size > _LARGEST:
        return _by_direction(function, inputs, paths, noise)
    fast = size > _EVERY_ENTRY
    failure = _gradcheck(function, inputs, eps=1e-6, tolerance=1e-4, fast=fast)
    how = "gradcheck in double"
    if failure is not None and noise.coarse:
        # The op rounds internally, which drowns steps of 1e-6 but not larger ones.
        failure = _gradcheck(function, inputs, eps=3e-3, tolerance=2e-2, fast=fast)
        how = f"gradcheck, {_COARSELY}"
    if failure is not None:
        return _gradient_verdict(failure, function, inputs, paths, noise)
    # gradcheck allows an absolute error, which its fast mode raises with the size of the inputs:
    # for 1024 elements a gradient of zero passes where the right one is 1 and averages out.
    told = _by_direction(function, inputs, paths, noise)
    return told if told.status == FAIL else passed(how)


def _gradient_verdict(
    failure: Exception, function: Function, inputs: list[Tensor], paths: list[str], noise: _Noise
) -> Verdict:
    if isinstance(failure, MissingBackward):
        # An op that a function in mode none calls lacks it; that is not the function's mistake.
        return skipped(*reason_of(failure))
    found = re.search(r"for output (\d+) with respect to input (\d+)", str(failure))
    if found is None:
        line, fix = reason_of(failure)
        return failed(line, fix or "correct backward=")
    # The message counts inputs and prints Jacobians; a name and two numbers are easier to read.
    told = _by_direction(function, inputs, paths, noise)
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


# Rounding to float32 inside leaves about 1e-8 of noise on outputs around one, double 1e-16,
# bfloat16 1e-3.
_SINGLE_NOISE, _HALF_NOISE = 1e-13, 2e-5
_COARSE_STEP = 1e-3
# Of one direction in six, the slope is small enough for an error of a tenth to pass coarsely.
_DIRECTIONS = 3
# By how much fifth differences of independent errors exceed the errors: the root of 252.
_FIFTH = 15.9


@dataclass(frozen=True)
class _Noise:
    """The rounding error of one output, typically, and the size of outputs."""

    absolute: float
    size: float

    @property
    def relative(self) -> float:
        return self.absolute / self.size

    @property
    def coarse(self) -> bool:
        return self.relative > _SINGLE_NOISE


def _noise(function: Function, inputs: list[Tensor]) -> _Noise:
    """The rounding inside the op, seen in steps so small that little else changes."""
    found = _roughness(function, inputs, 1e-5)
    if found.coarse or not found.absolute:
        # Steps of 1e-5 seldom leave a value of bfloat16, or never: larger ones show its rounding.
        found = _roughness(function, inputs, _COARSE_STEP)
    return found


def _roughness(function: Function, inputs: list[Tensor], step: float) -> _Noise:
    """How far outputs are from smooth, by fifth differences along a short line."""
    with torch.no_grad():
        directions = [step * (torch.sign(t) + t) for t in inputs]
        points = [[t + k * d for t, d in zip(inputs, directions, strict=True)] for k in range(6)]
    values = [
        torch.cat([o.detach().flatten().double() for o in function(*_recording(p))]) for p in points
    ]
    line = torch.stack(values)
    size = float(line.abs().max()) if line.numel() else 0.0
    for _ in range(5):
        line = line[1:] - line[:-1]
    spread = float(line.square().mean().sqrt()) if line.numel() else 0.0
    return _Noise(spread / _FIFTH, size or 1.0)


def _recording(tensors: list[Tensor]) -> list[Tensor]:
    return [t.detach().requires_grad_() for t in tensors]


def _by_direction(
    function: Function, inputs: list[Tensor], paths: list[str], noise: _Noise
) -> Verdict:
    """A few random directions per input: what gradcheck's fast mode does, without its Jacobian."""
    outputs = list(function(*inputs))
    seeds = _cotangents(outputs)
    generator = torch.Generator().manual_seed(_SEED + 1)
    found = torch.autograd.grad(outputs, inputs, seeds, allow_unused=True)
    step, tolerance = (_COARSE_STEP, 2e-2) if noise.coarse else (1e-6, 1e-4)
    rounding = _rounding(outputs, seeds, noise)
    pairs = list(enumerate(zip(paths, found, strict=True)))
    for index, (path, gradient) in pairs * _DIRECTIONS:
        direction = torch.randn(inputs[index].shape, generator=generator).to(inputs[index])
        direction /= direction.norm()
        # The direction has length one, so that this moves an entry by about a step.
        eps = step * max(direction.numel(), 1) ** 0.5
        numerical = _slope(function, inputs, index, eps * direction, seeds) / eps
        analytical = 0.0 if gradient is None else float((gradient * direction).sum())
        # What a direction like this one gives on average; this one may be small by chance.
        usual = 0.0 if gradient is None else float(gradient.square().mean().sqrt())
        scale = max(abs(numerical), abs(analytical), usual)
        if abs(numerical - analytical) > tolerance * scale + rounding / eps:
            shown = "None" if gradient is None else f"{analytical:.6g}"
            return failed(
                f"the gradient of {path} is wrong: numerical {numerical:.6g}, analytical {shown} "
                "along a random direction",
                "correct backward=" if gradient is not None else _NO_GRADIENT,
            )
    return passed(f"along random directions, {_COARSELY if noise.coarse else 'in double'}")


_COARSELY = "coarsely: internally the op computes in less than double"
_NO_GRADIENT = (
    "return this gradient from backward=; if it is None on purpose, let only the other inputs of "
    "the check require grad"
)


def _slope(
    function: Function, inputs: list[Tensor], index: int, way: Tensor, seeds: list[Tensor]
) -> float:
    """Half the difference between both ends of a step of one input, summed with cotangents."""
    ends = []
    for end in (inputs[index] + way, inputs[index] - way):
        moved = _recording([*inputs[:index], end, *inputs[index + 1 :]])
        ends.append([o.detach() for o in function(*moved)])
    return sum(float(((a - b) * s).sum()) for a, b, s in zip(*ends, seeds, strict=True)) / 2


def _rounding(outputs: list[Tensor], seeds: list[Tensor], noise: _Noise) -> float:
    """What rounding may change in the sum of all outputs, each times its cotangent."""
    sums = [float(s.norm()) for s in seeds]
    last_bits = [float((o.detach() * s).norm()) for o, s in zip(outputs, seeds, strict=True)]
    return 10 * noise.absolute * sum(sums) + 1e-15 * sum(last_bits)
