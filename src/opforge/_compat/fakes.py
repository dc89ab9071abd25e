"""Private torch APIs: what bodies do on fake tensors, and how torch refuses it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from traceback import walk_tb
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import first_line
from . import patches, tma
from .fake_backward import has_accelerator

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
        return f"{where}{type(found).__name__}: {first_line(found).partition('. ')[0].rstrip('.')}"
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
