"""Ops without a backward: the forward runs, nothing is recorded, and going backward raises.

Their Autograd key is a fallthrough, so a call whose inputs do not require grad pays only for a
test of `requires_grad`. If an input does, the call is handled where it arrives:

    eager          the kernel itself              `Unrecorded.eager`
    torch.compile  a rule for FunctionalTensorMode `Unrecorded.traced`
    torch.func     a kernel at functorch's key     `Unrecorded.transformed`
    a subclass     a kernel at the Python key      `Unrecorded.subclassed`

Where torch refuses the last three, a kernel at the Autograd key handles every call:
`Unrecorded.redispatched`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _compat
from ..errors import MissingBackward, UnsupportedBody
from .autograd import at_one_level, make_function, shapes_of
from .checks import CallChecks
from .lists import Counts, expand, regroup, tensors_in
from .transparent import Transparency


@dataclass
class _UnrecordedCall:
    """Passed as the Function's first argument."""

    run: Callable[[], Any]
    mutated: list[torch.Tensor]
    raise_when_run: bool
    outputs: Counts = field(default_factory=list)


class Unrecorded:
    """Runs an op without a backward if an input requires grad.

    Outputs, and inputs that the op mutates, get a history that raises.
    """

    def __init__(self, transparency: Transparency, checks: CallChecks) -> None:
        self.name = transparency.name
        self.location = transparency.location
        self.lowered = transparency.lowered
        self.transparency = transparency
        self.checks = checks
        self.apply: Callable[..., Any] | None = None
        # Autograd gets them flattened.
        self.lists = any(leaf.container for leaf in self.lowered.returns)

    def eager(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """What the kernel calls instead of the body: the kernel again, with grad disabled."""

        def unrecorded(*args: Any, **kwargs: Any) -> Any:
            run = functools.partial(_below_autograd, kernel, *args, **kwargs)
            return self.record(run, args, kwargs, is_counted=True)

        return unrecorded

    def traced(self, mode: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The rule for FunctionalTensorMode, which sees the tensors that autograd tracks."""
        below = self.transparency.traced
        if self.transparency.seen_through() and not _compat.only_known_types(types):
            return NotImplemented
        if not self.needs_grad(args, kwargs):
            return below(mode, op, types, args, kwargs)
        if self.lowered.mutated:
            # Nothing raises yet while AOTAutograd goes back through the op, so it comes to what was
            # saved before and may have been written since. In eager nothing comes there.
            values = (*args, *kwargs.values())
            with mode:
                _compat.saved.let_be_overwritten(
                    (t for value in values for t in tensors_in(value)), self.overwritten
                )
        run = functools.partial(_below_autograd, below, mode, op, types, args, kwargs)
        return self.record(run, args, kwargs, raise_when_run=True, is_counted=True)

    def transformed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel at functorch's key, around the one that torch has there."""

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                # The level below has its own history.
                with torch.enable_grad():
                    return original(keyset, *args, **kwargs)

            if _compat.forward_ad_open():
                self.checks.refuse_tangents(*args, *kwargs.values())
            if self.needs_grad(args, kwargs):
                return self.record(run, args, kwargs)
            out = original(keyset, *args, **kwargs)
            # A level wraps what it gets anew, and a write to that would not be one to the argument.
            return self.lowered.itself(out, args, kwargs)

        return kernel

    def subclassed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel at the Python key: a subclass calls the op again, on tensors without history.

        Traces record by themselves; see `traced`.
        """

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            run = functools.partial(original, keyset, *args, **kwargs)
            if _compat.faking() or _compat.functionalizing() or not self.needs_grad(args, kwargs):
                return run()
            below = functools.partial(_below_autograd, run)
            return self.record(below, args, kwargs, is_counted=True)

        return kernel

    def redispatched(self, redispatch: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel at the Autograd key, which every call passes: slower, and needs no rule."""

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            below = functools.partial(redispatch, keyset & _compat.after_autograd)
            run = functools.partial(_below_autograd, below, *args, **kwargs)
            if _compat.forward_ad_open():
                self.checks.refuse_tangents(*args, *kwargs.values())
            if not self.needs_grad(args, kwargs):
                return run()
            tracing = _compat.functionalizing()
            return self.record(run, args, kwargs, raise_when_run=tracing)

        return kernel

    def needs_grad(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        if not _compat.grad_enabled():
            return False
        values = (*args, *kwargs.values())
        return any(t.requires_grad for value in values for t in tensors_in(value))

    def record(
        self,
        run: Callable[[], Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        *,
        raise_when_run: bool = False,
        is_counted: bool = False,
    ) -> Any:
        """`is_counted`: the kernel at ADInplaceOrView has raised the mutated tensors' versions."""
        if self.apply is None:
            # Made on first use: building a class takes a tenth of a decoration.
            self.apply = make_function(f"{self.name}_without_backward", self.forward, self.go_back)
        tensors: list[torch.Tensor] = []
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                tensors.append(value)
            elif isinstance(value, (list, tuple)):
                tensors += tensors_in(value)
        mutated = self.mutated_tensors(args, kwargs) if self.lowered.mutated else []
        call = _UnrecordedCall(run, mutated, raise_when_run)
        if mutated and is_counted:
            # A Function raises them, too.
            with _compat.keeping_versions(mutated):
                results = at_one_level(self.apply, call, *tensors)
        else:
            results = at_one_level(self.apply, call, *tensors)
        returns = self.lowered.returns
        if not returns:
            return None
        if self.lowered.returned:
            return self.lowered.itself(None, args, kwargs)
        if self.lists:
            results = tuple(regroup(results, call.outputs))
        return results[: len(returns)] if len(returns) > 1 else results[0]

    def mutated_tensors(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        given = self.lowered.by_name(args, kwargs)
        mutated: list[torch.Tensor] = []
        for argument in self.lowered.mutated:
            for tensor in tensors_in(given[argument.name]):
                if tensor.requires_grad and tensor.is_leaf:
                    raise UnsupportedBody(
                        "the op mutates a leaf tensor that requires grad",
                        parameter=argument.path,
                        fix="call it under torch.no_grad(), or pass a clone",
                    ).locate(self.name, self.location)
                mutated.append(tensor)
        return mutated

    def forward(self, ctx: Any, call: _UnrecordedCall, *tensors: Any) -> Any:
        ctx.opforge_shapes = shapes_of(tensors)
        ctx.opforge_raise_when_run = call.raise_when_run
        out = call.run()
        returns = self.lowered.returns
        # What is returned and mutated is an output once: autograd allows a view no second one.
        if self.lowered.returned or not returns:
            outputs: Sequence[Any] = ()
        else:
            outputs = out if len(returns) > 1 else (out,)
        if self.lists:
            outputs, call.outputs = expand(outputs)
        if call.mutated:
            ctx.mark_dirty(*call.mutated)
        return (*outputs, *call.mutated)

    def go_back(self, ctx: Any, *grads: Any) -> Any:
        where = f"{self.name} ({self.location})"
        mutates = bool(self.lowered.mutated)
        if not ctx.opforge_raise_when_run:
            raise missing_backward(where, mutates=mutates)
        given = [g for g in grads if g is not None]
        raises = raising_op("missing_backward")
        return (None, *(raises(given, s, where, mutates) for s in ctx.opforge_shapes))

    def overwritten(self, grads: list[torch.Tensor], saved: torch.Tensor) -> Any:
        """In place of a saved tensor that was written: an error for gradients that are not zero."""
        where = f"{self.name} ({self.location})"
        if not grads:
            return torch.zeros_like(saved)
        made = raising_op("overwritten")(grads, saved.shape, where, True)
        return made.to(saved.device, saved.dtype)


def _below_autograd(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with _compat.below_autograd():
        return fn(*args, **kwargs)


def missing_backward(where: str, *, mutates: bool) -> MissingBackward:
    give = "give one: @opforge.op(..., backward=fn, setup_context=fn); or detach its inputs"
    avoid = (
        "an op that mutates cannot have one: call it under torch.no_grad() or on detached tensors"
    )
    return MissingBackward(
        "autograd went backward through this op, which has no backward",
        fix=avoid if mutates else give,
        op=where,
    )


def _overwritten(where: str, *, mutates: bool) -> RuntimeError:
    del mutates
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation after {where} was called. It was traced, so it is not known which one"
    )


_ERRORS = {"missing_backward": missing_backward, "overwritten": _overwritten}


def define_raising_ops() -> None:
    """Code that another process compiled and cached calls them without a trace in this one."""
    for name in _ERRORS:
        raising_op(name)


@functools.cache
def raising_op(name: str) -> Any:
    """`opforge::missing_backward` and the like: a gradient when traced, an error when run.

    A compiled backward also computes the gradients of unused outputs, as zeros. Zeros give zeros
    whatever the op's derivative is, so only they do not raise.
    """
    schema = "(Tensor[] grads, SymInt[] size, str where, bool mutates) -> Tensor"
    defined = _compat.define(f"opforge::{name}", schema)
    library = defined.schema

    def run(grads: list[Any], size: Any, where: str, mutates: Any) -> Any:
        if any(bool(grad.any()) for grad in grads):
            raise _ERRORS[name](where, mutates=mutates)
        return grads[0].new_zeros(size)

    def fake(grads: list[Any], size: Any, _where: str, _mutates: Any) -> Any:
        return grads[0].new_empty(size)

    library.impl(name, run, "CompositeExplicitAutograd")
    _compat.register_fake(library, f"opforge::{name}", fake, "opforge")
    _keep.append(library)
    return defined.overload


# torch removes an op together with the Library that defined it.
_keep: list[Any] = []
