"""Private torch APIs that a check uses: fakes, graphs, counters."""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import kernels, patches


def new_fake_mode() -> Any:
    """A fake mode that allows data-dependent sizes, as compiling does."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv())


def as_fake(mode: Any, tensor: torch.Tensor, device: str | None = None) -> torch.Tensor:
    """A fake of `tensor` with fixed sizes, on another device if one is given."""
    with mode:
        fake: torch.Tensor = torch.empty_strided(
            tensor.shape,
            tensor.stride(),
            dtype=tensor.dtype,
            device=tensor.device if device is None else device,
            requires_grad=tensor.requires_grad,
        )
    return fake


def has_contents(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values; fake and meta tensors do not."""
    from torch._subclasses.fake_tensor import FakeTensor

    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def functional_graph(mode: Any, fn: Callable[..., Any], tensors: list[torch.Tensor]) -> Any:
    """The graph that AOTAutograd would get from a function of fake tensors."""
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    with mode:
        return make_fx(dispatch_functionalize(fn))(*tensors)


def outputs_of(graph_module: Any) -> list[torch.Tensor]:
    """What a traced function returns, as fakes."""
    (returned,) = graph_module.graph.output_node().args
    return [node.meta["val"] for node in returned]


def launched_in(graph_module: Any) -> list[str]:
    """The names of the kernels that a graph launches."""
    from torch._higher_order_ops import triton_kernel_wrap as home

    wrappers = (home.triton_kernel_wrapper_functional, home.triton_kernel_wrapper_mutation)
    table = home.kernel_side_table
    nodes = [n for n in graph_module.graph.nodes if n.target in wrappers]
    return [kernels.kernel_name(table.get_kernel(n.kwargs["kernel_idx"])) for n in nodes]


def with_own_code(fn: Any) -> Any:
    """The function with its own code object, by which Dynamo keeps what it has compiled."""
    made = types.FunctionType(
        fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


def tracing_backend(mode: Any) -> Any:
    """A backend for fake inputs: forward and backward graphs run in their fake mode.

    Outside of it `torch.empty(..., device="cuda")` in a graph asks for a GPU, and one on the CPU
    gives a real tensor among fakes. Seen in torch 2.13: `aot_eager` runs graphs without a mode.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def compiled(graph_module: Any, _inputs: list[Any]) -> Any:
        def run(*args: Any) -> Any:
            with mode:
                return graph_module(*args)

        return make_boxed_func(run)

    return aot_autograd(
        fw_compiler=compiled, bw_compiler=compiled, keep_inference_input_mutations=True
    )


@contextlib.contextmanager
def counting_graphs() -> Iterator[Callable[[], int]]:
    """Count the graphs that Dynamo makes, and restore its counters afterwards."""
    from torch._dynamo.utils import counters

    before = copy.deepcopy(dict(counters))
    start = counters["stats"]["unique_graphs"]
    try:
        yield lambda: int(counters["stats"]["unique_graphs"] - start)
    finally:
        counters.clear()
        counters.update(before)


def no_recompiles() -> Any:
    """Make Dynamo raise where it would recompile; its error names the guard that failed."""
    from torch._dynamo import config

    return config.patch(error_on_recompile=True)


def is_recompile(error: BaseException) -> bool:
    from torch._dynamo.exc import RecompileError

    return isinstance(error, RecompileError)


def hides_its_cause(error: BaseException) -> bool:
    """Whether Dynamo raised this "from None", although it is about an error that it caught."""
    # As of torch 2.13: TorchRuntimeError, around Unsupported, around what a fake raised; 2.15 has
    # FakeTensorObservedException between them, which hides it, too.
    return type(error).__name__ in {"TorchRuntimeError", "FakeTensorObservedException"}


def is_compiler_wrapper(error: BaseException) -> bool:
    """Whether Dynamo, Inductor or AOTAutograd raised this around somebody else's error."""
    names = {
        "BackendCompilerFailed",
        "InductorError",
        "InternalTorchDynamoError",
        "LoweringException",
        "CppCompileError",
        "SubgraphLoweringException",
    }
    return type(error).__name__ in names


def without_example_inputs(exported: Any) -> contextlib.AbstractContextManager[None]:
    """Leave example inputs out of a saved program: loading fakes would mean trusting the file."""
    return patches.EXAMPLE_INPUTS.on(exported, _example_inputs=None)


@contextlib.contextmanager
def quiet_vmap_fallback() -> Iterator[None]:
    """Silence the fallback, which warns on stderr past Python's warnings."""
    functorch: Any = torch._C._functorch
    switch = functorch._set_vmap_fallback_warning_enabled
    switch(False)
    try:
        yield
    finally:
        # The previous value cannot be read; torch starts with True.
        switch(True)


@contextlib.contextmanager
def playing_rank(rank: int, ranks: int, device: str) -> Iterator[Any]:
    """A mesh as one of its ranks sees it; nothing is sent, and no other rank has to exist."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield init_device_mesh(device, (ranks,))
    finally:
        dist.destroy_process_group()
