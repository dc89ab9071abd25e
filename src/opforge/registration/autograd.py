"""Autograd: ops with a backward record a lean `autograd.Function`, others a history that raises.

`torch.library.register_autograd` builds a metadata object and redispatches on every call; here the
Function's forward calls the body directly where no other kernel comes in between.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _compat
from ..errors import (
    BadGradient,
    BadOption,
    MissingBackward,
    OpforgeError,
    UnsupportedBody,
    WrongResult,
    WrongReturn,
)
from ..model import (
    MISSING,
    FlatArgument,
    Leaf,
    Lowered,
    Node,
    Record,
    Signature,
    flat_width,
)
from ..notebook import counted
from .checks import CallChecks, Counts, expand, regroup, tensors_in
from .generated import Generated
from .rules import check_call
from .transparent import Transparency


class AutogradRecorder:
    """Runs an op and records how to go backward.

    Called as `recorder(keyset, *flat)`. If the keyset is None, the body is called directly;
    otherwise the op is redispatched below autograd.
    """

    def __init__(
        self,
        generated: Generated,
        overload: Any,
        backward: Callable[..., Any],
        setup_context: Callable[..., Any] | None,
        *,
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


def flatten_gradients(
    signature: Signature,
    result: Any,
    option: str = "backward",
    needed: Sequence[bool] | None = None,
) -> list[Any]:
    """Flatten what `backward` returned; a tensor list's gradients stay one list.

    backward returns   (grad_q, {"weight": grad_w}, None)
    for parameters     q: Tensor, cfg: Cfg(scale: float, weight: Tensor), mode: str
    flat               [grad_q, None, grad_w, None]

    `option` is what the user's decorator calls `backward`.

    `needed`, per parameter: where no gradient is, those of the last parameters may be left out if
    these have defaults or are keyword-only. torch expects gradients of positional arguments that
    were passed, and of no others.
    """
    parameters = signature.parameters
    grads = result if type(result) is tuple else (result,)
    if len(parameters) == 1 and len(grads) != 1 and isinstance(parameters[0].node, Record):
        grads = (result,)
    rest = parameters[len(grads) :]
    optional = all(p.default is not MISSING or p.keyword_only for p in rest)
    if grads and needed is not None and optional and not any(needed[len(grads) :]):
        grads = (*grads, *(None for _ in rest))
    if len(grads) != len(parameters):
        raise BadGradient(
            f"{option} returned {counted(len(grads), 'gradient')}, but the op has "
            f"{counted(len(parameters), 'parameter')}",
            found="a list, which counts as one gradient; return a tuple"
            if isinstance(result, list)
            else None,
            fix=f"return ({', '.join('grad_' + p.name for p in parameters)}), "
            "with None where a parameter has no gradient",
        )
    flat: list[Any] = []
    for parameter, grad in zip(parameters, grads, strict=True):
        _flatten_gradient(parameter.node, grad, flat, own=False)
    return flat


def _flatten_gradient(node: Node, grad: Any, flat: list[Any], *, own: bool) -> None:
    """`own`: it is inside an instance of the user's class, whose other fields hold values."""
    if isinstance(node, Leaf):
        flat.append(_leaf_gradient(node, grad, own=own))
        return
    if node.optional:
        flat.append(None)
    if grad is None:
        flat += [None] * (flat_width(node) - int(node.optional))
        return
    own = own or (not isinstance(grad, dict) and node.kind != "tuple")
    for item, part in zip(node.fields, _field_gradients(node, grad), strict=True):
        _flatten_gradient(item.node, part, flat, own=own)


def _leaf_gradient(leaf: Leaf, grad: Any, *, own: bool) -> Any:
    if grad is None:
        return None
    if not leaf.is_tensor:
        if own and not _is_tensor(grad):
            return None
        raise BadGradient(
            f"backward returned a gradient for {leaf.schema_type()} {leaf.path}, "
            "which is not differentiable",
            parameter=leaf.path,
            found=type(grad).__name__,
            fix="return None there",
        )
    if not _is_tensor(grad) and not (leaf.container and isinstance(grad, (list, tuple))):
        raise WrongReturn(
            f"backward returned a {type(grad).__name__} as the gradient of {leaf.path}",
            parameter=leaf.path,
            fix="return a list of tensors or None" if leaf.container else "return a tensor or None",
        )
    return grad


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "requires_grad")


def _field_gradients(node: Record, grad: Any) -> list[Any]:
    names = [item.name for item in node.fields]
    if isinstance(grad, dict) and node.kind != "tuple":
        unknown = [key for key in grad if key not in names]
        if unknown:
            close = difflib.get_close_matches(str(unknown[0]), names, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise BadGradient(
                f"backward returned a gradient for {unknown[0]!r}, which is not a field of "
                f"{node.cls.__name__}",
                parameter=node.path,
                fix=f"{hint}fields: {', '.join(names)}",
            )
        return [grad.get(name) for name in names]
    if (
        isinstance(grad, (tuple, list))
        and (node.kind != "dataclass")
        and type(grad) in (tuple, list, node.cls)
    ):
        if len(grad) != len(names):
            raise BadGradient(
                f"backward must return one gradient per element of {node.path}: "
                f"expected {len(names)}, got {len(grad)}",
                parameter=node.path,
                fix="return None for elements that have no gradient",
            )
        return list(grad)
    # A plain tuple or list has attributes too: `count` and `index`.
    by_name = node.kind != "tuple" and not _is_tensor(grad) and type(grad) not in (tuple, list)
    if by_name and any(hasattr(grad, n) for n in names):
        return [getattr(grad, name, None) for name in names]
    raise WrongReturn(
        f"backward returned a {type(grad).__name__} for {node.path}",
        parameter=node.path,
        fix=f"return None, a {node.cls.__name__}, or a dict of fields"
        if node.kind != "tuple"
        else f"return None or a tuple of {len(names)}",
    )


def fold_needs(signature: Signature, flat: tuple[bool, ...]) -> tuple[bool, ...]:
    """`needs_input_grad` per flat argument -> per parameter: true when any part needs one."""
    folded, start = [], 0
    for parameter in signature.parameters:
        width = flat_width(parameter.node)
        folded.append(any(flat[start : start + width]))
        start += width
    return tuple(folded)


@dataclass
class _UnrecordedCall:
    """Passed as the Function's first argument."""

    run: Callable[[], Any]
    mutated: list[torch.Tensor]
    raise_when_run: bool
    outputs: Counts = field(default_factory=list)


class Unrecorded:
    """Runs an op without a backward if an input requires grad.

    Outputs, and inputs that the op mutates, get a history that raises. The op's Autograd key is a
    fallthrough, so a call whose inputs do not require grad pays only for a test of `requires_grad`.
    If an input does, the call is handled where it arrives:

        eager          the kernel itself               `eager`
        torch.compile  a rule for FunctionalTensorMode `traced`
        torch.func     a kernel at functorch's key     `transformed`
        a subclass     a kernel at the Python key      `subclassed`
    """

    def __init__(
        self, transparency: Transparency, checks: CallChecks, *, views: bool = False
    ) -> None:
        """`views`: outputs may be views of inputs, as the user's schema says."""
        self.name = transparency.name
        self.location = transparency.location
        self.lowered = transparency.lowered
        self.transparency = transparency
        self.checks = checks
        self.views = views
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
                _compat.let_be_overwritten(
                    (t for value in values for t in tensors_in(value)), self.overwritten
                )
        run = functools.partial(_below_autograd, below, mode, op, types, args, kwargs)
        return self.record(run, args, kwargs, raise_when_run=True, is_counted=True)

    def transformed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel at functorch's key, around the one that torch has there."""
        # What an op with torch.Tag.inplace or out returns is the argument itself, not a view of it.
        if self.views and not self.lowered.returned:
            return self.checks.views_transformed(original)

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
            if self.views:
                # The subclass returns one as a tensor of its own, so a write to it would be lost.
                raise WrongResult(
                    "the op returns a view of a tensor subclass, whose writes autograd cannot "
                    "follow without a backward",
                    fix="give backward=, or call it under torch.no_grad()",
                ).locate(self.name, self.location)
            below = functools.partial(_below_autograd, run)
            return self.record(below, args, kwargs, is_counted=True)

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
            # Most are; a call for each would cost 0.2 us.
            if isinstance(value, torch.Tensor):
                tensors.append(value)
            else:
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
