"""The row autograd: gradients against the reference's, or numerically in double."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.autograd.gradcheck import GradcheckError

from ...comparison import MANY_STEPS, difference, root_mean_square, tensors_in
from ...errors import MissingBackward
from ..report import PASS, Row, failed, passed, reason_of, short_reason, skipped
from ..subject import OpCall, Subject, with_gaps

Tensor = torch.Tensor


def autograd(subject: Subject) -> Row:
    """Whether gradients are right: against the reference's, or numerically in double."""
    paths = subject.differentiable()
    if not paths:
        return skipped("there is no floating-point input to differentiate")
    if subject.draws_random_numbers:
        return skipped("the op draws random numbers, so numerical gradients mean nothing")
    by_reference = subject.settings.reference is not None
    try:
        row = (_against_reference if by_reference else _numerically)(subject, paths)
    except MissingBackward as error:
        # An op that a function in mode none calls lacks it; that is not the function's mistake.
        return skipped(*reason_of(error))
    if row is None and subject.registered:
        return skipped("no output is differentiable")
    if row is None:
        return skipped("autograd records no dependence of the function's outputs on its inputs")
    return (_of_strided_gradients(subject, paths) or row) if row.status == PASS else row


def no_backward(subject: Subject) -> Row | None:
    if subject.registered and not subject.has("backward"):
        return skipped("no backward was given", "give backward= to @opforge.op")
    return None


class _Precision(NamedTuple):
    """The step of numerical gradients, what share they may be off by, and rounding in the op.

    An output that fits into one of the coarser dtypes was computed in it.
    """

    step: float
    tolerance: float
    rounding: float
    coarser: tuple[torch.dtype, ...]


_DOUBLE = _Precision(1e-6, 1e-4, 1e-15, (torch.float32, torch.float16, torch.bfloat16))
_SINGLE = _Precision(1e-3, 2e-2, 1e-7, (torch.float16, torch.bfloat16))
# Of one direction in six, the slope is small enough for an error of a tenth to pass coarsely.
_DIRECTIONS = 3
# Not 0, the seed of the inputs: a norm has no gradient along its own input.
_SEED = 2024
_BY_REFERENCE = "pass reference=, to compare gradients with"
_TOO_COARSE = "in less than single precision, so numerical gradients mean nothing"
_FIX = (
    "correct backward=; if an input has no gradient on purpose, let only the others require grad; "
    "mark an output without one with ctx.mark_non_differentiable in setup_context="
)


class _InDouble:
    """The op in double, as a function of how far each input goes in a few random directions.

    Its Jacobian has three entries per input and output, however large they are.
    """

    def __init__(self, subject: Subject, paths: list[str]) -> None:
        self._subject = subject
        self._call = subject.call.cloned().map(
            lambda _p, t: t.double() if t.is_floating_point() else t
        )
        self.inputs = {p: t for p, t in self._call.tensors() if p in paths}
        generator = torch.Generator().manual_seed(_SEED + 1)
        self._ways = {
            p: torch.randn(_DIRECTIONS, *t.shape, generator=generator).to(t)
            for p, t in self.inputs.items()
        }
        self.recorded = self.outputs({})
        self.seeds = dict(zip(self.recorded, cotangents(list(self.recorded.values())), strict=True))

    def outputs(self, lengths: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The differentiable outputs; inputs without lengths stay where they are."""

        def moved(path: str, tensor: Tensor) -> Tensor:
            if path not in self.inputs:
                return tensor
            if path in lengths:
                tensor = tensor + torch.tensordot(lengths[path], self._ways[path], 1)
            return tensor.requires_grad_()

        value = self._subject.invoke(self._call.cloned().map(moved))
        return {p: _real(t) for p, t in tensors_in(value, "output") if t.requires_grad}

    def precisions(self) -> dict[str, _Precision]:
        """How finely each output can be differentiated, with its rounding; without the rough ones.

        Where rounding is small, a step does twice what half a step does.
        """
        tried: dict[str, _Precision] = {}
        for precision in (_DOUBLE, _SINGLE):
            if len(tried) == len(self.recorded):
                break
            step = precision.step
            ends = [
                self.outputs({p: t.new_tensor([part, 0, 0]) for p, t in self.inputs.items()})
                for part in (step, -step, step / 2, -step / 2)
            ]
            for path in [path for path in self.recorded if path not in tried]:
                above, below, half_above, half_below = (end[path].detach() for end in ends)
                change, bend = above - below, above - below - 2 * (half_above - half_below)
                last_bits = precision.rounding * above.norm()
                smooth = bend.norm() <= precision.tolerance * change.norm()
                if any(torch.equal(above.to(d).to(above), above) for d in precision.coarser):
                    continue
                if smooth or (precision is _DOUBLE and bend.norm() <= 10 * last_bits):
                    rounding = float((bend * self.seeds[path]).norm() + last_bits)
                    tried[path] = precision._replace(rounding=rounding)
        return tried

    def gradcheck(self, path: str, output: str, precision: _Precision) -> None:
        """Compare the gradient of an input through one output; raises if it is wrong."""

        def projected(lengths: Tensor) -> Tensor:
            return (self.outputs({path: lengths})[output] * self.seeds[output]).sum()

        lengths = self.inputs[path].new_zeros(_DIRECTIONS, requires_grad=True)
        (slopes,) = torch.autograd.grad(
            projected(lengths), lengths, allow_unused=True, materialize_grads=True
        )
        # A slope may be small by chance, and is held to what is usual.
        usual = precision.tolerance * float(slopes.square().mean().sqrt().nan_to_num())
        torch.autograd.gradcheck(
            projected,
            (lengths,),
            eps=precision.step,
            atol=usual + precision.rounding / precision.step,
            rtol=precision.tolerance,
            nondet_tol=usual,
            check_undefined_grad=False,
            # One direction is enough where the tolerance is fine.
            fast_mode=precision.step == _DOUBLE.step,
        )


def _numerically(subject: Subject, paths: list[str]) -> Row | None:
    """Compare with numerical gradients, each output by itself; None if none is recorded."""
    try:
        function = _InDouble(subject, paths)
    except Exception as error:  # noqa: BLE001  # whatever it says, double is what it refused
        return skipped(f"the op does not accept float64: {short_reason(error)}", _BY_REFERENCE)
    if not function.recorded:
        return None
    precisions = function.precisions()
    if not precisions:
        return skipped(f"internally the op computes {_TOO_COARSE}", _BY_REFERENCE)
    for output, path in itertools.product(precisions, function.inputs):
        where = through(output, len(function.recorded))
        try:
            function.gradcheck(path, output, precisions[output])
        except MissingBackward:
            raise
        except GradcheckError as error:
            return failed(f"the gradient of {path}{where} is wrong: {_numbers(str(error))}", _FIX)
        except Exception as error:  # noqa: BLE001  # whatever the backward raises
            line, fix = reason_of(error)
            return failed(f"with a gradient{where} alone: {line}" if where else line, fix or _FIX)
    manner = "in fast mode"
    if any(precision.step == _SINGLE.step for precision in precisions.values()):
        manner = f"in {_DIRECTIONS} random directions, coarsely: it computes in less than double"
    each = f", each of {len(precisions)} outputs by itself" if len(precisions) > 1 else ""
    rough = ", ".join(path for path in function.recorded if path not in precisions)
    note = f"not tried: {rough}, computed {_TOO_COARSE}" if rough else ""
    return passed(f"gradcheck in double{each}, {manner}", note)


def _numbers(message: str) -> str:
    """`numerical 4.91 0.2 1.3, analytical ...` of gradcheck's message, or what else it says."""
    tensors = re.findall(
        r"([nN]umerical|[aA]nalytical):\s*tensor\((.*?), dtype", message, re.DOTALL
    )
    shown = [" ".join([name.lower(), *re.findall(r"[^][,\s]+", v)]) for name, v in tensors]
    return f"{', '.join(shown)} along random directions" if shown else message.splitlines()[0]


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def cotangents(outputs: list[Tensor]) -> list[Tensor]:
    """Random gradients of outputs, the same for the same shapes."""
    generator = torch.Generator().manual_seed(_SEED)
    return [torch.randn(o.shape, generator=generator).to(o) for o in outputs]


def through(path: str, outputs: int) -> str:
    """Where a gradient comes from, if that is not obvious."""
    return f" through {path}" if outputs > 1 else ""


def _against_reference(subject: Subject, paths: list[str]) -> Row | None:
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
            found = _by_inputs([one], [seed], call, paths, retain_graph=True)
            expected = _by_inputs([other], [seed.to(other)], other_call, paths, retain_graph=True)
            pairs.append((path, found, expected))
        elif one.requires_grad:
            notes.append(f"not tried: {path}, which is not differentiable in the reference")
    for index, path in enumerate(paths):
        largest = max((root_mean_square(expected[index]) for _, _, expected in pairs), default=0.0)
        floor = _RESIDUE * largest if len(pairs) > 1 else 0.0
        for output, found, expected in pairs:
            named = f"gradient of {path}{through(output, len(pairs))}"
            tolerance = subject.settings.tolerance
            text = difference(found[index], expected[index], named, tolerance, MANY_STEPS, floor)
            if text:
                return failed(text, "correct backward=", *notes)
    return passed("equal to the reference's", *notes)


# Where terms of all outputs add up to zero for one of them, single precision leaves this much.
_RESIDUE = 1e-6


def _by_inputs(
    outputs: list[Tensor],
    seeds: list[Tensor],
    call: OpCall,
    paths: list[str],
    *,
    retain_graph: bool = False,
) -> list[Tensor]:
    inputs = [t for p, t in call.tensors() if p in paths]
    made = torch.autograd.grad(
        outputs,
        inputs,
        seeds,
        retain_graph=retain_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return [*made]


def gradients(
    invoke: Callable[[OpCall], Any],
    call: OpCall,
    paths: list[str],
    seeds: Callable[[list[Tensor]], list[Tensor]] | None = None,
) -> list[Tensor] | None:
    """By the inputs at `paths`; None if autograd records nothing between them and an output."""
    outputs = [t for _, t in tensors_in(invoke(call), "output") if t.requires_grad]
    if not outputs or not paths:
        return None
    return _by_inputs(outputs, (seeds or cotangents)(outputs), call, paths)


def gradients_differ(
    paths: list[str], found: list[Tensor] | None, expected: list[Tensor] | None
) -> str:
    """How the gradients of two runs differ; empty if they do not, or one records none."""
    pairs = zip(paths, found or (), expected or (), strict=False)
    texts = (
        difference(one, two, f"gradient of {path}", steps=MANY_STEPS) for path, one, two in pairs
    )
    return next(filter(None, texts), "")


def _of_strided_gradients(subject: Subject, paths: list[str]) -> Row | None:
    """What the backward gets wrong for gradients with gaps, such as views and expands pass."""
    fix = "make backward= respect the strides of its gradients, or call .contiguous() on them"

    def gaps(outputs: list[Tensor]) -> list[Tensor]:
        return [with_gaps(c) for c in cotangents(outputs)]

    expected = gradients(subject.invoke, subject.call.recording(paths), paths)
    try:
        found = gradients(subject.invoke, subject.call.recording(paths), paths, gaps)
    except Exception as error:  # noqa: BLE001  # whatever the backward says of such gradients
        return failed(f"with a non-contiguous gradient: {short_reason(error)}", fix)
    text = gradients_differ(paths, found, expected)
    return failed(f"with a non-contiguous gradient, {text}", fix) if text else None
