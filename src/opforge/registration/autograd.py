"""Autograd for an op with a backward: a lean `autograd.Function` per op.

`torch.library.register_autograd` builds a metadata object and redispatches on every call; here
the Function's forward calls the body directly where no other kernel comes in between.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _compat
from ..errors import BadGradient, BadOption, OpforgeError, WrongResult
from ..lowering.gradients import flatten_gradients, fold_needs
from ..model import FlatArgument, Leaf, Lowered, Signature
from .callables import check_call
from .generated import Generated
from .lists import Counts, expand, regroup, tensors_in


class AutogradRecorder:
    """Runs an op and records how to go backward.

    Called as `recorder(keyset, *flat)`. If the keyset is None, the body is called directly;
    otherwise the op is redispatched below autograd.
    """

    def __init__(
        self,
        generated: Generated,
        overload: Any,
        *,
        backward: Callable[..., Any],
        setup_context: Callable[..., Any] | None,
        option: str = "backward",
        followed: bool = True,
    ) -> None:
        lowered = generated.lowered
        self.option = option
        self.name = generated.name
        self.location = generated.location
        self.generated = generated
        self.signature = lowered.signature
        self.arguments = lowered.arguments
        self.backward = backward
        self.setup_context = setup_context
        self.kernel = generated.namespace["_of_kernel"]
        self.overload, self.redispatch = overload, overload.redispatch
        # Whether torch tells autograd of the views that a tensor subclass returns.
        self.followed = followed
        self.keyword_only = tuple(a.name for a in lowered.arguments if a.keyword_only)
        self.positional = len(lowered.arguments) - len(self.keyword_only)
        self.one_to_one = all(isinstance(p.node, Leaf) for p in lowered.signature.parameters)
        self.identical = lowered.path == "direct" and not self.keyword_only
        self._applies: dict[str, Callable[..., Any]] = {}

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if self.keyword_only:
            args = (*args, *(kwargs[name] for name in self.keyword_only))
        if keyset is not None:
            return at_one_level(self.apply("forward"), keyset, *args)
        if self.identical:
            return self.apply("forward_identical")(*args)
        return self.apply("forward")(None, *args)

    def apply(self, forward: str) -> Callable[..., Any]:
        """`apply` of the Function with that forward; its class is made on first use."""
        known = self._applies.get(forward)
        if known is None:
            back = self.go_back_identical if forward == "forward_identical" else self.go_back
            known = self._applies[forward] = make_function(self.name, getattr(self, forward), back)
        return known

    def forward_identical(self, ctx: Any, *args: Any) -> Any:
        """The common case: schema and signature are the same, and the body is called directly.

        Autograd is off inside a Function's forward, so nothing needs to be excluded.
        """
        out = self.kernel(*args)
        ctx.opforge_shapes = shapes_of(args)
        if self.setup_context is not None:
            self.setup_context(ctx, args, out)
        return out

    def go_back_identical(self, ctx: Any, *grads: Any) -> Any:
        result = self.backward(ctx, *grads)
        shapes = ctx.opforge_shapes
        if type(result) is tuple and len(result) == len(shapes):
            for grad, shape in zip(result, shapes, strict=True):
                if grad is not None and (shape is None or getattr(grad, "shape", None) != shape):
                    break
            else:
                return result
        flat = self.flatten(ctx, result)
        self.check_shapes(self.arguments, flat, shapes)
        return tuple(flat)

    def forward(self, ctx: Any, keyset: Any, *flat: Any) -> Any:
        needs = ctx.needs_input_grad[1:]
        ctx.needs_input_grad = needs if self.one_to_one else fold_needs(self.signature, needs)
        ctx.opforge_shapes = shapes_of(flat)
        return self.run(ctx, keyset, flat)

    def run(self, ctx: Any, keyset: Any, flat: Sequence[Any]) -> Any:
        args, kwargs = flat, {}
        if self.keyword_only:
            args = flat[: self.positional]
            kwargs = dict(zip(self.keyword_only, flat[self.positional :], strict=True))
        if keyset is None:
            out = self.kernel(*args, **kwargs)
        else:
            with _compat.below_autograd(), _history_below():
                out = self.redispatch(keyset & _compat.after_autograd, *args, **kwargs)
            if not self.followed:
                self.refuse_copies(out)
        if self.setup_context is not None:
            inputs = self.generated.structure("_of_inputs")(*args, **kwargs)
            self.setup_context(ctx, inputs, self.generated.structure("_of_result")(out))
        return out

    def refuse_copies(self, out: Any) -> None:
        """Refuse views that a subclass returns as tensors of its own: a write would be lost."""
        views = _compat.declared_views(self.overload, out)
        if not all(_compat.is_view(t) for view in views for t in tensors_in(view)):
            raise WrongResult(
                "the op returns several views of a tensor subclass, whose writes autograd cannot "
                "follow",
                fix="return one view, or call it under torch.no_grad()",
            ).locate(self.name, self.location)

    def go_back(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        flat = self.flatten(ctx, self.backward(ctx, *grads))
        self.check_shapes(self.arguments, flat, ctx.opforge_shapes)
        return (None, *flat)

    def flatten(self, ctx: Any, result: Any) -> list[Any]:
        try:
            return flatten_gradients(self.signature, result, self.option, ctx.needs_input_grad)
        except OpforgeError as error:
            raise error.locate(self.name, self.location) from None

    def check_shapes(
        self, arguments: Sequence[FlatArgument], grads: Sequence[Any], shapes: Sequence[Any]
    ) -> None:
        for argument, grad, shape in zip(arguments, grads, shapes, strict=True):
            if grad is None or shape is None or _fits(grad.shape, shape):
                continue
            raise BadGradient(
                f"backward returned a gradient of shape {tuple(grad.shape)} for {argument.path}, "
                f"whose shape is {tuple(shape)}",
                parameter=argument.path,
                fix="return a gradient of the input's shape",
            ).locate(self.name, self.location)


@dataclass
class _ListCall:
    """Passed as a Function's first argument: records where the lists were."""

    keyset: Any
    inputs: Counts
    outputs: Counts = field(default_factory=list)


class ListRecorder(AutogradRecorder):
    """A recorder for ops that take or return tensor lists, which autograd gets flattened."""

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        flat = (*args, *(kwargs[name] for name in self.keyword_only))
        expanded, counts = expand(flat)
        call = _ListCall(keyset, counts)
        outputs = regroup(at_one_level(self.apply("forward"), call, *expanded), call.outputs)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def forward(self, ctx: Any, call: _ListCall, *expanded: Any) -> Any:
        needs = regroup(ctx.needs_input_grad[1:], call.inputs)
        folded = tuple(any(n) if isinstance(n, list) else n for n in needs)
        ctx.needs_input_grad = fold_needs(self.signature, folded)
        ctx.opforge_shapes = shapes_of(expanded)
        ctx.opforge_call = call
        out = self.run(ctx, call.keyset, tuple(regroup(expanded, call.inputs)))
        several = len(self.generated.lowered.returns) > 1
        flat_out, call.outputs = expand(out if several else (out,))
        return tuple(flat_out)

    def go_back(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        call = ctx.opforge_call
        flat = self.flatten(ctx, self.backward(ctx, *regroup(grads, call.outputs)))
        owners: list[FlatArgument] = []
        expanded: list[Any] = []
        for argument, grad, count in zip(self.arguments, flat, call.inputs, strict=True):
            listed = argument.is_tensor_list
            part = self.list_gradients(argument, grad, count) if listed else [grad]
            expanded += part
            owners += [argument] * len(part)
        self.check_shapes(owners, expanded, ctx.opforge_shapes)
        return (None, *expanded)

    def list_gradients(self, argument: FlatArgument, grad: Any, count: int | None) -> list[Any]:
        """One gradient per tensor of a list; one None if it held no tensor (count None)."""
        if grad is None or (count is None and all(g is None for g in grad)):
            return [None] * (1 if count is None else count)
        listed = isinstance(grad, (list, tuple))
        if listed and len(grad) == count:
            return list(grad)
        what = f"backward must return a list of {count} gradients for {argument.path}"
        fix = f"return {count}, with None where there is no gradient"
        if count is None:
            what = f"backward returned gradients for {argument.path}, which held no tensor"
            fix = "return None"
        raise BadGradient(
            what,
            parameter=argument.path,
            found=f"{len(grad)} gradients" if listed else type(grad).__name__,
            fix=fix,
        ).locate(self.name, self.location)


def check_callbacks(
    lowered: Lowered, backward: Callable[..., Any] | None, setup_context: Callable[..., Any] | None
) -> None:
    """Refuse at decoration what would fail on autograd's first call."""
    if setup_context is not None and backward is None:
        raise BadOption("setup_context was given without a backward", fix="give backward=, too")
    if backward is None:
        return
    if lowered.mutated:
        raise BadOption(
            "an op that mutates its inputs cannot have a backward",
            parameter=lowered.mutated[0].path,
            fix="make a functional op (return new tensors) and give that one the backward",
        )
    grads = [f"grad_{i}" for i in range(len(lowered.returns))]
    check_call("backward", backward, ["ctx", *(grads if len(grads) > 1 else ["grad"])])
    if setup_context is not None:
        names = ["ctx", "inputs", "output"]
        if takes_keyword_only_inputs(setup_context):
            return
        found = check_call("setup_context", setup_context, names)
        if {"inputs", "output"} <= set(found) and found[1:3] != names[1:]:
            raise BadOption(
                f"setup_context takes {', '.join(found)} in the wrong order",
                fix="def setup_context(ctx, inputs, output)",
            )


def takes_keyword_only_inputs(setup_context: Callable[..., Any]) -> bool:
    """Whether it has torch's form `setup_context(ctx, inputs, keyword_only_inputs, output)`."""
    try:
        found = inspect.signature(setup_context).parameters
    except (TypeError, ValueError):
        return False
    return {"ctx", "inputs", "keyword_only_inputs", "output"} == set(found)


def with_all_inputs(
    signature: Signature, setup_context: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    """`setup_context(ctx, inputs, output)`, from one that takes keyword-only inputs apart."""
    if setup_context is None or not takes_keyword_only_inputs(setup_context):
        return setup_context
    names = [p.name for p in signature.parameters if p.keyword_only]
    positional = len(signature.parameters) - len(names)

    def with_inputs_apart(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        keyword_only = dict(zip(names, inputs[positional:], strict=True))
        setup_context(
            ctx=ctx,
            inputs=tuple(inputs[:positional]),
            keyword_only_inputs=keyword_only,
            output=output,
        )

    return with_inputs_apart


def recorder_for(lowered: Lowered) -> type[AutogradRecorder]:
    takes_lists = any(a.is_tensor_list for a in lowered.arguments)
    returns_lists = any(leaf.container for leaf in lowered.returns)
    return ListRecorder if takes_lists or returns_lists else AutogradRecorder


def make_function(
    name: str, forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """`apply` of a new Function."""

    def go_back(ctx: Any, *grads: Any) -> Any:
        return backward(ctx, *grads)

    # Dynamo, which traces it for compiled autograd, wants a function there: in torch 2.13 it
    # refuses a method.
    members = {"forward": staticmethod(forward), "backward": staticmethod(go_back)}
    function: Any = type(name.replace("::", "_"), (_compat.AutogradFunction,), members)
    apply: Callable[..., Any] = function.apply
    return apply


def at_one_level(apply: Callable[..., Any], *args: Any) -> Any:
    """Apply a Function at the current functorch level, where one is active."""
    if not _compat.functorch_active():
        return apply(*args)
    with _compat.single_level_autograd():
        return apply(*args)


def _history_below() -> Any:
    """Under functorch the level below records too, although a Function's forward disables grad."""
    return torch.enable_grad() if _compat.functorch_active() else contextlib.nullcontext()


def shapes_of(values: Sequence[Any]) -> list[Any]:
    return [v.shape if isinstance(v, torch.Tensor) else None for v in values]


def _fits(grad: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a gradient has the input's shape, or one that autograd itself sums to it."""
    if grad == shape:
        return True
    if len(shape) > len(grad):
        return False
    tail = grad[len(grad) - len(shape) :]
    return all(s in (g, 1) for g, s in zip(tail, shape, strict=True))
