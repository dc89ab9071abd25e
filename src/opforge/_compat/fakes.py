"""Private torch APIs: what bodies do on fake tensors, and how torch refuses it."""

from __future__ import annotations

import collections
import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from traceback import walk_tb
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import first_line
from . import patches, tma

_SYMBOLIC = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)


def is_fake_leak(error: BaseException) -> bool:
    """Whether a tensor from outside the trace turned up, because a body keeps tensors."""
    kinds = (AssertionError, NotImplementedError, TypeError)
    return isinstance(error, kinds) and any(phrase in str(error) for phrase in _LEAKS)


_LEAKS = (
    "Mixing fake modes",
    "Please convert all Tensors to FakeTensors first",
    # A launch is given a parameter; torch 2.12 and before say the second.
    "no rule registered for HOP triton_kernel_wrapper_mutation",
    "'triton_kernel_wrapper_mutation' is not supported for the given input types",
)


def is_fake_kept(error: BaseException) -> bool:
    """Whether that tensor was kept from another trace, so that real calls will find it, too."""
    return isinstance(error, AssertionError) and "Mixing fake modes" in str(error)


def is_fake_refusal(error: BaseException) -> bool:
    """Whether FakeTensor refused: a data pointer, numpy, or a data-dependent value."""
    from torch._subclasses import fake_tensor

    kinds = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
    if isinstance(error, kinds):
        return True
    # By name: importing symbolic_shapes takes half a second, and unimported it raised nothing.
    if type(error).__name__ in ("GuardOnDataDependentSymNode", "PendingUnbackedSymbolNotFound"):
        return True
    return isinstance(error, (RuntimeError, TypeError, NotImplementedError)) and any(
        phrase in str(error) for phrase in _REFUSALS
    )


_REFUSALS = (
    "Cannot access data pointer of Tensor",
    "Cannot access the data pointer of Tensor",
    ".numpy() is not supported for tensor subclasses",
    ".tolist() is not supported for tensor subclasses",
    "can't convert meta device type tensor to numpy",
    "cannot be called on meta tensors",
    "Cannot copy out of meta tensor",
    "The tensor has a non-zero number of elements, but its data is not allocated yet",
    "data pointer of a FakeTensor",
    "data_ptr() on a FakeTensor",
)


def host_read(error: BaseException) -> str:
    """Where a body asked for what a tensor without values cannot tell; "" for other errors."""
    from .reach import is_foreign_file

    # That of a heuristic is the cause of opforge's own error.
    for found in (error, error.__cause__):
        if found is None or not (is_fake_refusal(found) or is_fake_leak(found)):
            continue
        places = [(f.f_code.co_filename, line) for f, line in walk_tb(found.__traceback__)]
        where = next((f"at {f}:{n}, " for f, n in reversed(places) if not is_foreign_file(f)), "")
        sentence = re.split(r"(?<!e\.g)\. ", first_line(found))[0].rstrip(".")
        return f"{where}{type(found).__name__}: {sentence}"
    return ""


class FakeTrial:
    """A body's run on fake tensors, which must leave nothing behind but its outputs."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        inner = [unfunctionalized(t) for t in tensors]
        self._modes = list(
            {id(m): m for t in inner if (m := getattr(t, "fake_mode", None))}.values()
        )
        envs = [m.shape_env for m in self._modes if m.shape_env is not None]
        self._pending = [(env, len(env.pending_fresh_unbacked_symbols)) for env in envs]
        tracing = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
        self._graph = None if tracing is None else tracing.tracer.graph
        self._nodes = 0 if self._graph is None else len(self._graph.nodes)

    @contextlib.contextmanager
    def strict(self) -> Iterator[None]:
        """Make reading a data pointer an error; outside torch.compile, torch only warns."""
        for tensor in self._tensors:
            if hasattr(tensor, "fake_mode"):
                torch._C._set_throw_on_mutable_data_ptr(tensor)
        with contextlib.ExitStack() as stack:
            for mode in self._modes:
                # A body may read a tensor of its module.
                flags = {"_allow_unsafe_data_ptr_access": False, "allow_non_fake_inputs": True}
                stack.enter_context(patches.FAKE_MODE.on(mode, **flags))
            yield

    def undo(self) -> None:
        """Take back what a body that failed left in the graph."""
        self.forget_symbols(())
        if self._graph is not None:
            for node in reversed(list(self._graph.nodes)[self._nodes :]):
                self._graph.erase_node(node)

    def forget_symbols(self, outputs: Any) -> None:
        """Drop the unbacked symbols that the body made and its outputs do not use.

        The tracer looks for every new symbol in the outputs. A body leaves some behind if it
        reads a value and does not return it, or is refused after reading one.
        """
        for env, known in self._pending:
            fresh = env.pending_fresh_unbacked_symbols[known:]
            if not fresh:
                continue
            from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

            flat = torch.utils._pytree.tree_leaves(outputs)
            used = free_unbacked_symbols([v for v in flat if isinstance(v, _SYMBOLIC)])
            env.pending_fresh_unbacked_symbols[known:] = [s for s in fresh if s in used]


def in_place_of_a_gpu() -> AbstractContextManager[Any]:
    """While code is imported: what it makes on a GPU is fake, on a machine that has none."""
    return contextlib.nullcontext() if has_accelerator() else _FakeOnGpu()


class _FakeOnGpu(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except (AssertionError, RuntimeError):  # of a torch without CUDA, and without a driver
            with _fake_mode():
                return func(*args, **(kwargs or {}))


@functools.cache
def _fake_mode() -> Any:
    """One for all, as modules use tensors of each other."""
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def unfunctionalized(tensor: torch.Tensor) -> Any:
    """The tensor that a functional tensor wraps; any other as it is."""
    inner = getattr(tensor, "elem", None)
    if inner is None or not torch._is_functional_tensor(inner):
        return tensor
    return torch._from_functional_tensor(inner)


class StandInPointer:
    """What Triton's specialization asks of a tensor, for one that has no memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        # As torch allocates: only the place in the storage decides the alignment.
        self._address = 4096 + int(tensor.storage_offset()) * tensor.element_size()

    def data_ptr(self) -> int:
        return self._address


def stand_in_pointer(value: Any) -> Any:
    """A fake tensor as Triton can specialize for it, also in a tuple; anything else as it is.

    So is the tensor of a descriptor.
    """
    if isinstance(value, tuple):
        items = map(stand_in_pointer, value)
        return value._make(items) if hasattr(value, "_make") else tuple(items)
    if isinstance(value, tma.descriptor_types()):
        return tma.with_base(value, stand_in_pointer(value.base))
    return StandInPointer(value) if isinstance(value, torch.Tensor) else value


# Backward passes on machines without a GPU. Torch's engine asks the machine's accelerator for a
# stream before it runs a node of a CUDA tensor, even a fake one, and fails where there is none. The
# nodes themselves can be called, so they are called here, each after all that leads to it. Tensor
# hooks do not run.
_Edge = tuple[Any, int]


def own_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's `_engine_run_backward`, which runs nodes of fake CUDA tensors itself."""

    @functools.wraps(original)
    def run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not has_accelerator() and _reach_cuda(outputs):
            return _run(outputs, *args, **kwargs)
        return original(outputs, *args, **kwargs)

    return run_backward


def _reach_cuda(outputs: Iterable[Any]) -> bool:
    """Whether a node of a graph is of CUDA tensors, which are fake where there is no GPU.

    Its outputs may be on the CPU, or wrapped.
    """
    roots = [_edge(o)[0] for o in outputs if not torch.is_tensor(o) or o.requires_grad]
    metas = (meta for node in _in_order(roots) for meta in _metas(node))
    return any(meta.device.type == "cuda" for meta in metas)


def _metas(node: Any) -> Sequence[Any]:
    """What is known of the gradients that a node takes: shape, dtype and device."""
    return (node.variable,) if hasattr(node, "variable") else node._input_metadata


def has_accelerator() -> bool:
    return bool(patches.original(torch.accelerator, "is_available")())


def _run(
    outputs: Sequence[Any],
    gradients: Sequence[Any],
    _retain_graph: Any,
    create_graph: Any,
    inputs: Sequence[Any],
    allow_unused: Any = None,
    *,
    accumulate_grad: bool,
    **_: Any,
) -> tuple[Any, ...]:
    roots, wanted = [*map(_edge, outputs)], [*map(_edge, inputs)]
    arriving: dict[Any, dict[int, Any]] = collections.defaultdict(dict)
    for (node, at), gradient in zip(roots, gradients, strict=True):
        _add(arriving[node], at, gradient)
    captured: dict[_Edge, Any] = {}
    with torch.set_grad_enabled(create_graph):
        for node in _in_order(node for node, _ in roots):
            grads = {at: _as_output(node, at, grad) for at, grad in arriving.pop(node, {}).items()}
            captured |= {(node, at): grad for at, grad in grads.items()}
            if hasattr(node, "variable"):
                if accumulate_grad and not inputs:
                    _accumulate(node.variable, grads.get(0))
            elif grads:
                for (following, at), grad in _called(node, grads):
                    _add(arriving[following], at, grad)
        found = tuple(captured.get(edge) for edge in wanted)
        if accumulate_grad:
            for given, grad in zip(inputs, found, strict=True):
                _accumulate(given, grad)
    if not accumulate_grad and not allow_unused and any(grad is None for grad in found):
        raise RuntimeError(
            "a differentiated tensor was not used in the graph; allow_unused=True gives None"
        )
    return found


def _edge(value: Any) -> _Edge:
    edge = torch.autograd.graph.get_gradient_edge(value) if torch.is_tensor(value) else value
    return edge[0], edge[1]


def _add(grads: dict[int, Any], at: int, grad: Any) -> None:
    if grad is not None:
        grads[at] = grad if grads.get(at) is None else grads[at] + grad


def _as_output(node: Any, at: int, grad: Any) -> Any:
    """In the shape and dtype of what the gradient is of, as the engine hands it to a node."""
    of = _metas(node)[at]
    shape = tuple(of.shape)
    return (grad if tuple(grad.shape) == shape else grad.sum_to_size(shape)).to(of.dtype)


def _accumulate(tensor: Any, grad: Any) -> None:
    if grad is not None:
        tensor.grad = grad if tensor.grad is None else tensor.grad + grad


def _in_order(roots: Iterable[Any]) -> Iterator[Any]:
    """Every node of a graph, after all nodes that lead to it."""
    waiting, counts = [*dict.fromkeys(roots)], collections.Counter[Any]()
    known = set(waiting)
    for node in waiting:
        for following in _following(node):
            counts[following] += 1
            if following not in known:
                known.add(following)
                waiting.append(following)
    ready = [node for node in known if not counts[node]]
    for node in ready:
        yield node
        for following in _following(node):
            counts[following] -= 1
            if not counts[following]:
                ready.append(following)


def _following(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions if following is not None]


def _called(node: Any, grads: dict[int, Any]) -> list[tuple[_Edge, Any]]:
    """The gradients that a node hands on, by where they go."""
    edges: Sequence[_Edge] = [edge for edge in node.next_functions if edge[0] is not None]
    outputs = node._input_metadata
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        given = [grads.get(at, _zeros(meta)) for at, meta in enumerate(outputs)]
        returned = _as_tuple(node.apply(*given))
        # One per argument of forward, where only tensors have an edge. An op of opforge sets
        # `needs_input_grad` anew, and has kept which arguments are tensors.
        needed: Sequence[Any] = node.needs_input_grad
        shapes = getattr(node, "opforge_shapes", None)
        if shapes is not None:
            returned, needed = returned[-len(shapes) :], [shape is not None for shape in shapes]
            edges = node.next_functions
        pairs = zip(returned, needed, strict=False)
        found = zip(edges, (grad for grad, is_needed in pairs if is_needed), strict=True)
        return [(edge, grad) for edge, grad in found if edge[0] is not None]
    given = [grads.get(at) for at in range(len(outputs))]
    returned = _as_tuple(node(*given))
    pairs = zip(node.next_functions, returned, strict=False)
    return [(edge, grad) for edge, grad in pairs if edge[0] is not None]


def _zeros(meta: Any) -> torch.Tensor | None:
    """The gradient of an unused output; None if the output is not a tensor.

    Torch knows of the latter what it knows of a number on the CPU, which no function of CUDA
    tensors is known to return.
    """
    if meta.device.type == "cpu" and not meta.shape:
        return None
    return torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device)


def _as_tuple(returned: Any) -> tuple[Any, ...]:
    return returned if isinstance(returned, tuple) else (returned,)
