"""Gradients against numerical ones, in double: every output by itself, in a bounded time.

Small calls get gradcheck's whole Jacobian. Beyond that, a few random directions per input are
sampled: gradcheck would call the op once per element to explain a mismatch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..errors import MissingBackward
from .reasons import reason_of, short_reason
from .subject import Subject
from .values import tensors_in
from .verdict import Verdict, failed, passed, skipped

Tensor = torch.Tensor
Named = list[tuple[str, Tensor]]

# Up to this many elements, of the inputs and of the outputs, every entry of the Jacobian is taken.
_EVERY_ENTRY = 64
# Of one direction in six, the slope is small enough for an error of a tenth to pass coarsely.
_DIRECTIONS = 3
# Beyond this, what gradcheck tests besides the numbers is left out.
_LARGEST = 8192
# Not 0, the seed of the inputs: a norm has no gradient along its own input.
_SEED = 2024
# Rounding to float32 inside leaves about 1e-8 of noise on outputs around one, double 1e-16,
# bfloat16 1e-3.
_SINGLE_NOISE, _HALF_NOISE = 1e-13, 2e-5
_COARSE_STEP = 1e-3
# By how much fifth differences of independent errors exceed the errors: the root of 252.
_FIFTH = 15.9


def numerically(subject: Subject, paths: list[str]) -> Verdict | None:
    """Compare with numerical gradients; None if autograd records no output."""
    function = _InDouble(subject, paths)
    try:
        outputs = function.outputs(function.inputs)
    except Exception as error:  # noqa: BLE001  # whatever it says, double is what it refused
        return skipped(f"the op does not accept float64: {short_reason(error)}", _BY_REFERENCE)
    if not outputs:
        return None
    measured = _measure(function)
    tried = [one for one in measured if one.noise.relative <= _HALF_NOISE]
    rough = [one.path for one in measured if one not in tried]
    if not tried:
        return skipped(f"internally the op computes {_TOO_COARSE}", _BY_REFERENCE)
    try:
        mistake = _wrong_direction(function, tried) or _wrong_entry(function, tried)
    except MissingBackward as error:
        # An op that a function in mode none calls lacks it; that is not the function's mistake.
        return skipped(*reason_of(error))
    note = f"not tried: {', '.join(rough)}, computed {_TOO_COARSE}" if rough else ""
    return mistake or passed(_manner(function, tried), note)


_BY_REFERENCE = "pass reference=, to compare gradients with"
_TOO_COARSE = "in less than single precision, so numerical gradients mean nothing"
_COARSELY = "coarsely: internally the op computes in less than double"
_NO_GRADIENT = (
    "return this gradient from backward=; if it is None on purpose, let only the other inputs of "
    "the check require grad"
)


def cotangents(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Random gradients of outputs, the same for the same shapes."""
    generator = torch.Generator().manual_seed(_SEED)
    return [torch.randn(o.shape, generator=generator).to(o) for o in outputs]


def through(path: str, outputs: int) -> str:
    """Where a gradient comes from, if that is not obvious."""
    return f" through {path}" if outputs > 1 else ""


class _InDouble:
    """The op as a function of the inputs to differentiate by, with floats as doubles."""

    def __init__(self, subject: Subject, paths: list[str]) -> None:
        self.subject, self.paths = subject, paths
        self._wide = subject.call.cloned().map(
            lambda _p, t: t.double() if t.is_floating_point() else t
        )
        self.inputs = [t.requires_grad_() for p, t in self._wide.tensors() if p in paths]

    def outputs(self, inputs: Sequence[Tensor]) -> Named:
        """The differentiable outputs with their paths."""
        given = dict(zip(self.paths, inputs, strict=True))
        value = self.subject.invoke(self._wide.cloned().map(given.get))
        return [(p, _real(t)) for p, t in tensors_in(value, "output") if t.requires_grad]

    def values(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """The same without their history."""
        recording = [t.detach().requires_grad_() for t in inputs]
        return {path: tensor.detach() for path, tensor in self.outputs(recording)}

    def only(self, paths: Sequence[str]) -> Callable[..., tuple[Tensor, ...]]:
        """A function for gradcheck, of some of the outputs."""
        return lambda *inputs: tuple(t for p, t in self.outputs(inputs) if p in paths)

    @property
    def size(self) -> int:
        return sum(t.numel() for t in self.inputs)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


@dataclass(frozen=True)
class _Noise:
    """The typical rounding error of an output's elements, and their size."""

    absolute: float
    size: float

    @property
    def relative(self) -> float:
        return self.absolute / self.size

    @property
    def coarse(self) -> bool:
        return self.relative > _SINGLE_NOISE


@dataclass(frozen=True)
class _Output:
    """One differentiable output."""

    path: str
    elements: int
    noise: _Noise


def _measure(function: _InDouble) -> list[_Output]:
    """The rounding inside the op, seen in steps so small that little else changes."""
    fine = _roughness(function, 1e-5)
    # Steps of 1e-5 seldom leave a value of bfloat16, or never: larger ones show its rounding.
    unclear = [one for one in fine if one.noise.coarse or not one.noise.absolute]
    if not unclear:
        return fine
    large = _roughness(function, _COARSE_STEP)
    return [b if a in unclear else a for a, b in zip(fine, large, strict=True)]


def _roughness(function: _InDouble, step: float) -> list[_Output]:
    """How far outputs are from smooth, by fifth differences along a short line."""
    with torch.no_grad():
        moves = [(t, step * (torch.sign(t) + t)) for t in function.inputs]
        points = [[t + k * move for t, move in moves] for k in range(6)]
    line = [function.values(point) for point in points]
    return [
        _Output(path, line[0][path].numel(), _noise_along(torch.stack([at[path] for at in line])))
        for path in line[0]
    ]


def _noise_along(line: Tensor) -> _Noise:
    line = line.double()
    if not line.numel():
        return _Noise(0.0, 1.0)
    size = float(line.abs().max())
    for _ in range(5):
        line = line[1:] - line[:-1]
    return _Noise(float(line.square().mean().sqrt()) / _FIFTH, size or 1.0)


def _manner(function: _InDouble, outputs: list[_Output]) -> str:
    """How the gradients were tried, for a row that passes."""
    coarse = any(one.noise.coarse for one in outputs)
    each = f", each of {len(outputs)} outputs by itself" if len(outputs) > 1 else ""
    if _is_small(function, outputs):
        return f"gradcheck{each}, {_COARSELY}" if coarse else f"gradcheck in double{each}"
    sampled = (
        f"{_DIRECTIONS} random directions per input, because there are {function.size} elements "
        f"(up to {_EVERY_ENTRY}, every entry){each}"
    )
    return f"{sampled}, {_COARSELY}" if coarse else f"in double, {sampled}"


def _is_small(function: _InDouble, outputs: list[_Output]) -> bool:
    return max(function.size, sum(one.elements for one in outputs)) <= _EVERY_ENTRY


def _wrong_direction(function: _InDouble, outputs: list[_Output]) -> Verdict | None:
    """The first mistake along a few random directions per input, for each output by itself."""
    generator = torch.Generator().manual_seed(_SEED + 1)
    recorded = dict(function.outputs(function.inputs))
    seeds = dict(zip(recorded, cotangents(list(recorded.values())), strict=True))
    slopes = []
    for one in outputs:
        analytical = _gradients(recorded[one.path], function.inputs, seeds[one.path])
        if isinstance(analytical, Exception):
            return _refused(analytical, one.path, len(outputs))
        slopes.append(_Slopes(one, recorded[one.path].detach(), seeds[one.path], analytical))
    for index in [*range(len(function.inputs))] * _DIRECTIONS:
        given = function.inputs[index]
        direction = torch.randn(given.shape, generator=generator).to(given)
        direction /= direction.norm()
        for each, text in _mistakes(function, slopes, index, direction):
            where = through(each.output.path, len(outputs))
            said = f"the gradient of {function.paths[index]}{where} is wrong: {text}"
            return failed(said, each.fix(index, several=len(outputs) > 1))
    return None


def _mistakes(
    function: _InDouble, slopes: list[_Slopes], index: int, direction: Tensor
) -> Iterator[tuple[_Slopes, str]]:
    """What is wrong along one direction of one input; the outputs share the two runs."""
    for step in dict.fromkeys(each.step for each in slopes):
        # The direction has length one, so that this moves an entry by about a step.
        eps = step * max(direction.numel(), 1) ** 0.5
        ends = _ends(function, index, eps * direction)
        for each in slopes:
            text = each.mistake(index, direction, ends, eps) if each.step == step else ""
            if text:
                yield each, text


def _ends(function: _InDouble, index: int, way: Tensor) -> list[dict[str, Tensor]]:
    """The outputs at both ends of a step of one input."""
    inputs = [t.detach() for t in function.inputs]
    steps = (inputs[index] + way, inputs[index] - way)
    return [function.values([*inputs[:index], end, *inputs[index + 1 :]]) for end in steps]


@dataclass(frozen=True)
class _Slopes:
    """The slopes of one output, summed with its cotangent, and what the backward says of them."""

    output: _Output
    value: Tensor
    seed: Tensor
    analytical: Sequence[Tensor | None]

    @property
    def step(self) -> float:
        return _COARSE_STEP if self.output.noise.coarse else 1e-6

    def mistake(
        self, index: int, direction: Tensor, ends: list[dict[str, Tensor]], eps: float
    ) -> str:
        """How the gradient of one input differs from the numerical one; empty if it does not."""
        gradient = self.analytical[index]
        above, below = (end[self.output.path] for end in ends)
        numerical = float(((above - below) * self.seed).sum()) / (2 * eps)
        analytical = 0.0 if gradient is None else float((gradient * direction).sum())
        # What a direction like this one gives on average; this one may be small by chance.
        usual = 0.0 if gradient is None else float(gradient.square().mean().sqrt())
        scale = max(abs(numerical), abs(analytical), usual)
        tolerance = 2e-2 if self.output.noise.coarse else 1e-4
        # Written so that a NaN is a mistake.
        if abs(numerical - analytical) <= tolerance * scale + self._rounding() / eps:
            return ""
        shown = "None" if gradient is None else f"{analytical:.6g}"
        return f"numerical {numerical:.6g}, analytical {shown} along a random direction"

    def fix(self, index: int, *, several: bool) -> str:
        gradient = self.analytical[index]
        if gradient is None:
            return _NO_GRADIENT
        if several and not bool(gradient.any()):
            path = self.output.path
            return (
                f"add what comes in for {path} in backward=; if it has no gradient on purpose, "
                f"ctx.mark_non_differentiable({path}) in setup_context="
            )
        return "correct backward="

    def _rounding(self) -> float:
        """What rounding may change in the sum of the output times its cotangent."""
        last_bits = float((self.value * self.seed).norm())
        return 10 * self.output.noise.absolute * float(self.seed.norm()) + 1e-15 * last_bits


def _gradients(
    output: Tensor, inputs: list[Tensor], seed: Tensor
) -> Sequence[Tensor | None] | Exception:
    try:
        return torch.autograd.grad(output, inputs, seed, retain_graph=True, allow_unused=True)
    except MissingBackward:
        raise
    except Exception as error:  # noqa: BLE001  # whatever the backward raises is the reason
        return error


def _refused(error: Exception, path: str, outputs: int) -> Verdict:
    line, fix = reason_of(error)
    where = f"with a gradient of {path} alone: " if outputs > 1 else ""
    return failed(f"{where}{line}", fix or "correct backward=")


def _wrong_entry(function: _InDouble, outputs: list[_Output]) -> Verdict | None:
    """What gradcheck finds: every entry of a small Jacobian; of others, all but the numbers.

    Such as a backward that gives something else the second time, or does not accept None.
    """
    small = _is_small(function, outputs)
    if not small and function.size > _LARGEST:
        return None
    coarse = any(one.noise.coarse for one in outputs)
    eps, tolerance = (3e-3, 2e-2) if coarse else (1e-6, 1e-4)
    paths = [one.path for one in outputs]
    try:
        torch.autograd.gradcheck(
            function.only(paths),
            tuple(function.inputs),
            eps=eps,
            # The directions have told; on a mismatch gradcheck would call the op per element.
            atol=tolerance if small else 1e300,
            rtol=tolerance,
            fast_mode=not small,
        )
    except MissingBackward:
        raise
    except Exception as error:  # noqa: BLE001  # gradcheck's own, or what the backward raises
        found = re.search(r"for output (\d+) with respect to input (\d+)", str(error))
        if found is None:
            return _refused(error, "", 1)
        # The message counts inputs and prints Jacobians.
        where = through(paths[int(found[1])], len(paths))
        wrong = f"the gradient of {function.paths[int(found[2])]}{where} is wrong"
        return failed(wrong, "correct backward=")
    return None
