"""Ops without a backward: the forward runs, nothing is recorded, going backward raises."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import _compat
from ..errors import ForwardMode, MissingBackward, MutatedLeaf, OpforgeWarning
from ..model import Lowered
from .autograd import make_function, shapes_of
from .lists import Counts, expand, regroup, tensors_in


class _Call:
    """Rides along as the Function's first argument."""

    __slots__ = ("args", "kwargs", "mutated", "outputs")

    def __init__(self, args: Any, kwargs: Any, mutated: list[torch.Tensor]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.mutated = mutated
        self.outputs: Counts = []


class Unrecorded:
    """Calls the kernel of an op without a backward when an input requires grad.

    Outputs, and inputs that the op mutates, get a history that raises.
    """

    def __init__(
        self, name: str, location: str, lowered: Lowered, kernel: Callable[..., Any]
    ) -> None:
        self.name = name
        self.location = location
        self.lowered = lowered
        self.kernel = kernel
        self.apply: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.apply is None:
            # Made when first needed: building a class takes a tenth of a decoration.
            self.apply = make_function(f"{self.name}_without_backward", self.forward, self.go_back)
        names = [a.name for a in self.lowered.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        tensors = [t for value in given.values() for t in tensors_in(value)]
        call = _Call(args, kwargs, self.mutated_tensors(given))
        results = self.apply(call, *tensors)
        if not self.lowered.returns:
            return None
        outputs = regroup(results, call.outputs)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def mutated_tensors(self, given: dict[str, Any]) -> list[torch.Tensor]:
        mutated: list[torch.Tensor] = []
        for argument in self.lowered.mutated:
            for tensor in tensors_in(given.get(argument.name)):
                if tensor.requires_grad and tensor.is_leaf:
                    raise MutatedLeaf(
                        "the op mutates a leaf tensor that requires grad",
                        parameter=argument.path,
                        fix="call it under torch.no_grad(), or pass a clone",
                        op=self.name,
                        location=self.location,
                    )
                mutated.append(tensor)
        return mutated

    def forward(self, ctx: Any, call: _Call, *_tensors: Any) -> Any:
        with _compat.below_autograd():
            out = self.kernel(*call.args, **call.kwargs)
        outputs = out if len(self.lowered.returns) > 1 else (out,)
        expanded, call.outputs = expand(outputs if self.lowered.returns else ())
        ctx.mark_dirty(*call.mutated)
        return (*expanded, *call.mutated)

    def go_back(self, _ctx: Any, *_grads: Any) -> Any:
        raise missing_backward(f"{self.name} ({self.location})")


class TracedUnrecorded:
    """The same while torch.compile traces: the compiled forward runs, its backward raises.

    A rule for FunctionalTensorMode, which sees the tensors that autograd follows in a trace. The
    gradients become calls of an op that raises when it is run, so that tracing gets past them.
    """

    def __init__(self, name: str, location: str) -> None:
        self.where = f"{name} ({location})"
        self.name = name
        self.apply: Callable[..., Any] | None = None

    def __call__(self, mode: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        def run() -> Any:
            return mode.__torch_dispatch__(op, types, args, kwargs)

        tensors = [t for value in (*args, *kwargs.values()) for t in tensors_in(value)]
        if not _compat.grad_enabled() or not any(t.requires_grad for t in tensors):
            return run()
        if self.apply is None:
            self.apply = make_function(f"{self.name}_without_backward", self.forward, self.go_back)
        counts: list[Counts] = []
        outputs = regroup(self.apply(run, counts, *tensors), counts[0])
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def forward(self, ctx: Any, run: Callable[[], Any], counts: list[Counts], *tensors: Any) -> Any:
        ctx.opforge_shapes = shapes_of(tensors)
        with _compat.below_autograd():
            out = run()
        expanded, outputs = expand(out if isinstance(out, tuple) else (out,))
        counts.append(outputs)
        return tuple(expanded)

    def go_back(self, ctx: Any, *grads: Any) -> Any:
        grad = next(g for g in grads if g is not None)
        raises = _raising_op()
        return (None, None, *(raises(grad, shape, self.where) for shape in ctx.opforge_shapes))


def missing_backward(where: str) -> MissingBackward:
    return MissingBackward(
        "autograd went backward through this op, which has no backward",
        fix="give one: @opforge.op(..., backward=fn, setup_context=fn); or detach its inputs",
        op=where,
    )


@functools.cache
def _raising_op() -> Any:
    """`opforge::missing_backward`: a gradient to trace, an error to run."""
    schema = "(Tensor grad, SymInt[] size, str where) -> Tensor"
    library, overload = _compat.define("opforge::missing_backward", schema, (_compat.pt2_tag(),))

    def run(_grad: Any, _size: Any, where: str) -> Any:
        raise missing_backward(where)

    def fake(grad: Any, size: Any, _where: str) -> Any:
        return grad.new_empty(size)

    library.impl("missing_backward", run, "CompositeExplicitAutograd")
    _compat.register_fake(library, "opforge::missing_backward", fake, "opforge")
    _keep.append(library)
    return overload


# torch forgets an op when the Library that defined it goes.
_keep: list[Any] = []


def make_refuse_tangents(name: str, location: str) -> Callable[..., None]:
    """Refuse inputs with a forward-mode tangent, which would be lost without a word."""

    def refuse_tangents(*values: Any) -> None:
        for tensor in (t for value in values for t in tensors_in(value)):
            if forward_ad.unpack_dual(tensor).tangent is not None:
                raise ForwardMode(
                    "the op has no forward-mode derivative",
                    fix="use reverse mode (torch.autograd.grad, torch.func.grad, torch.func.vjp)",
                    op=name,
                    location=location,
                )

    return refuse_tangents


def make_unrecord(name: str, location: str) -> Callable[[Any], Any]:
    """Detach an output that autograd recorded because the body reads a captured tensor."""
    warned: list[bool] = []

    def unrecord(value: Any) -> Any:
        if not warned:
            warned.append(True)
            warnings.warn(
                f"{name} ({location}): the body reads a tensor that requires grad and is no "
                "parameter; no gradient reaches it. Pass it as a parameter and give a backward.",
                OpforgeWarning,
                stacklevel=3,
            )
        if isinstance(value, (list, tuple)):
            return type(value)(unrecord(v) for v in value)
        recorded = isinstance(value, torch.Tensor) and value.requires_grad
        return value.detach() if recorded else value

    return unrecord
