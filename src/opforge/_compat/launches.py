"""Intercepts kernel launches, and puts them into the graph that torch traces.

`kernel[grid](...)` and `kernel.run(...)` both end in the `run` of the kernel's class. While a
thread has a router, its launches go there; in other threads `run` does what it always did, behind
one attribute read, and once no thread has one it is Triton's own again.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from ..locks import fork_safe_lock
from . import described, kernels, patches, printing, tma
from .dispatcher import concrete

# Of triton.knobs.runtime, those around a launch and around the loading of its kernel (Triton 3.7).
_HOOKS = (
    "launch_enter_hook", "launch_exit_hook", "kernel_load_start_hook", "kernel_load_end_hook",
)  # fmt: skip


class Router(Protocol):
    """Decides what becomes of a launch; `leaves_wrapped` leaves those of `wrap_triton` to torch."""

    leaves_wrapped: bool

    def launch(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...

    def compiled(self, kernel: Any) -> None: ...

    def written(
        self, kernel: Any, names: list[str], tensors: list[str], failure: BaseException | None
    ) -> list[str]: ...


class _LaunchState(threading.local):
    router: Router | None = None
    refuse: Callable[[list[Any]], Any] | None = None
    # The module that torch analyzed last, and the names of its kernel's arguments.
    analyzed: tuple[Any, list[str]] | None = None


_state = _LaunchState()
# What ops launch, by name: those of `torch.library.triton_op`, and ours, as Inductor's cache key
# depends on what is listed here.
kernels_of_ops: dict[str, list[Any]] = torch._library.triton.triton_ops_to_kernels
_analysis_lock = fork_safe_lock()


def current() -> Router | None:
    return _state.router


@contextlib.contextmanager
def routed_to(router: Router | None) -> Iterator[None]:
    """Send this thread's launches to a router; with None, let Triton make them."""
    before = _state.router
    with _ROUTES:
        _state.router = router
        try:
            yield
        finally:
            _state.router = before


def _routes() -> Iterator[patches.Replacement]:
    """A switch in front of every `run`, also of classes that are new since the last time."""
    if not kernels.triton_loaded():
        return
    from triton.runtime.jit import KernelInterface

    from . import settings

    for cls in _subclasses(KernelInterface):
        if "run" in vars(cls):
            yield patches.KERNEL_RUN.by("run", _routed_run, cls)
    yield patches.KERNEL_ITEM.by("__getitem__", _routed_item)
    yield patches.COMPILED_KERNEL.by("__getitem__", _routed_compiled)
    yield from settings.without_fusion_advice()
    if _WRAP in sys.modules:
        yield patches.WRAPPED_KERNEL.by("__getitem__", _renumbered)
        yield patches.WRAPPED_KERNEL.by("__call__", _routed_wrapped)
        yield patches.WRAPPED_KERNEL.by("run", _routed_wrapped)
        yield patches.MUTATION_ANALYSIS.by("get_mutated_tensors", _routed_analysis)
        yield patches.MUTATION_ANALYSIS.by("generate_ttir", _kept)


_ROUTES = patches.PatchScope(_routes)
_WRAP = "torch._higher_order_ops.triton_kernel_wrap"


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


# Each switch is made once: making them anew for every trace would cost it 20 us.
@functools.cache
def _routed_run(original: Any) -> Any:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        router = _state.router
        if router is None:
            return original(self, *args, **kwargs)
        return router.launch(self, functools.partial(original, self), args, kwargs)

    return run


@functools.cache
def _routed_item(original: Any) -> Any:
    @functools.wraps(original)
    def getitem(self: Any, grid: Any) -> Any:
        return original(self, grid) if _state.router is None else kernels.bound(self, grid)

    return getitem


@functools.cache
def _routed_compiled(original: Any) -> Any:
    @functools.wraps(original)
    def getitem(self: Any, grid: Any) -> Any:
        if _state.router is not None:
            _state.router.compiled(self)
        return original(self, grid)

    return getitem


@functools.cache
def _renumbered(original: Any) -> Any:
    @functools.wraps(original)
    def getitem(self: Any, *args: Any) -> Any:
        """Number the kernel anew: torch._dynamo.reset() empties torch's table of kernels."""
        self.kernel_idx = sys.modules[_WRAP].kernel_side_table.add_kernel(self.kernel)
        return original(self, *args)

    return getitem


@functools.cache
def _routed_wrapped(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        router = _state.router
        if router is None or router.leaves_wrapped:
            return original(self, *args, **kwargs)
        # `run` is given a grid, and a call has that of `kernel[grid]`.
        given = {"grid": self.grid, **kwargs}
        return router.launch(self.kernel, functools.partial(original, self), args, given)

    return call


@functools.cache
def _routed_analysis(original: Any) -> Any:
    @functools.wraps(original)
    def get_mutated_tensors(
        kernel_idx: int, constant_args_idx: int, kwargs: dict[str, Any], *rest: Any
    ) -> list[str]:
        router = _state.router
        if router is None:
            return list(original(kernel_idx, constant_args_idx, kwargs, *rest))
        # It imports Triton, which this module does not.
        from . import pointer_writes

        wrap = sys.modules[_WRAP]
        kernel = wrap.kernel_side_table.get_kernel(kernel_idx)
        tensors = [n for n, v in kwargs.items() if isinstance(v, torch.Tensor)]
        # torch keeps its analyses in one table per process.
        with _analysis_lock, _failures_kept(wrap.log) as failures:
            _state.analyzed = None
            names = list(original(kernel_idx, constant_args_idx, kwargs, *rest))
            if _state.analyzed is not None and not failures:
                written = pointer_writes.written_in(*_state.analyzed)
                if written is not None:
                    names = [n for n in tensors if n in written]
        return router.written(kernel, names, tensors, failures[-1] if failures else None)

    return get_mutated_tensors


@functools.cache
def _kept(original: Any) -> Any:
    @functools.wraps(original)
    def generate_ttir(*args: Any) -> Any:
        made = original(*args)
        if _state.router is not None:
            _state.analyzed = made
        return made

    return generate_ttir


@contextlib.contextmanager
def _failures_kept(log: logging.Logger) -> Iterator[list[BaseException]]:
    """Collect the reasons for failed analyses in this thread, which torch would only log."""
    kept: list[BaseException] = []
    thread = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        failure = record.exc_info[1] if record.exc_info else None
        if failure is None or threading.get_ident() != thread:
            return True
        kept.append(failure)
        return False

    log.addFilter(keep)
    try:
        yield kept
    finally:
        log.removeFilter(keep)


class Unsupported(Exception):
    """torch has no node for a launch; its reason, without the kernel that the caller knows."""


@functools.cache
def _tracing_types() -> tuple[Any, Any]:
    """Subclasses of torch's tracing of launches that refuse with an exception of their own."""
    import torch._higher_order_ops.triton_kernel_wrap as wrap
    from torch._subclasses.functional_tensor import PythonFunctionalizeAPI

    class Tracer(wrap.TracingTritonHOPifier):
        def raise_unsupported(self, msg: str) -> Any:
            raise Unsupported(msg)

        def maybe_unpack_heuristic_result(self, result: Any) -> Any:
            return concrete(result)

        def call_HOP(  # noqa: N802  # torch's name
            # torch 2.14 passes the names of the launch's keywords and of the kernel's parameters,
            # too. A launch whose keywords are options never comes here: capture refuses it.
            self,
            variable: Any,
            grids: Any,
            combined_args: dict[str, Any],
            *_rest: Any,
        ) -> Any:
            values, descriptors = _unpack_descriptors(combined_args)
            graphable, constants = self.store_non_graphable_args(values)
            if _state.refuse is not None:
                unwrap = PythonFunctionalizeAPI().unwrap_tensors
                plain = {
                    n: unwrap(v) if isinstance(v, torch.Tensor) else v for n, v in graphable.items()
                }
                given = (variable.kernel_idx, constants, plain, descriptors)
                names = wrap.get_mutated_tensors(*given)
                return _state.refuse([graphable[n] for n in names])
            return wrap.triton_kernel_wrapper_mutation(
                kernel_idx=variable.kernel_idx,
                constant_args_idx=constants,
                grid=grids,
                tma_descriptor_metadata=descriptors,
                kwargs=graphable,
            )

    tracer = Tracer()

    class Launch(wrap.TraceableTritonKernelWrapper):
        def __init__(self, kernel: Any, kernel_idx: Any, grid: Any, **_source: Any) -> None:
            self.kernel, self.grid, self.kernel_source = None, None, None
            tracer.init_variable(self, kernel, kernel_idx, grid)

    return tracer, Launch


def into_graph(
    kernel: Any,
    grid: Any,
    arguments: dict[str, Any],
    *,
    refuse: Callable[[list[Any]], Any] | None = None,
) -> None:
    """Make a launch a node of the graph that is being traced; or call `refuse` in its place.

    `refuse` gets the tensors that the kernel would write. Leading arguments are passed by
    position: an autotuner's pruning and heuristics get positional arguments by name, and keywords
    as they are.
    """
    tracer, launch = _tracing_types()
    # That may have imported the module whose functions are replaced.
    _ROUTES.refresh()
    args, kwargs = [], dict(arguments)
    for name in kernels.innermost(kernel).arg_names:
        if name not in kwargs:
            break
        args.append(kwargs.pop(name))
    _state.refuse = refuse
    try:
        tracer.call_triton_kernel(
            launch(printing.printable(kernel), None, grid), args, kwargs, None
        )
    finally:
        _state.refuse = None


def prune_configs(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Ask an autotuner's `prune_configs_by`, as torch does for each launch that it traces."""
    from triton.runtime.autotuner import Autotuner

    if not isinstance(kernel, Autotuner):
        return
    early, model = kernel.early_config_prune, kernel.perf_model
    if early is not None or model is not None:
        import torch._higher_order_ops.triton_kernel_wrap as wrap

        named = dict(zip(kernel.arg_names, args, strict=False))
        wrap.TritonHOPifier.do_prune_configs(
            kernel, early, model, kernel.configs_top_k, kernel.configs, named, kwargs
        )


def _unpack_descriptors(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Replace descriptors by the tensors behind them; returns their block shapes by name, too."""
    import torch._higher_order_ops.triton_kernel_wrap as wrap

    plain, found = dict(values), {}
    for name, value in values.items():
        if isinstance(value, tma.descriptor_types()):
            plain[name] = _described_tensor(value)
            found[name] = wrap.create_tma_stable_metadata(list(value.block_shape))
    return plain, found


def _described_tensor(descriptor: Any) -> Any:
    """A tensor with the shape and strides of the descriptor."""
    base, shape, strides = descriptor.base, descriptor.shape, descriptor.strides
    if list(base.shape) == list(shape) and list(base.stride()) == list(strides):
        return base
    return base.as_strided(list(shape), list(strides))


def unsupported(kernel: Any) -> str:
    """Why torch cannot put launches of a kernel into a graph; empty if it can."""
    if kernels.is_gluon(kernel):
        return "it is a Gluon kernel, which Inductor does not support"
    autotuners = [k for k in kernels.chain(kernel) if hasattr(k, "configs")]
    if len(autotuners) > 1:
        return "it has more than one @triton.autotune, and Inductor supports one"
    for tuner in autotuners:
        hooks = [h for h in ("pre_hook", "post_hook") if getattr(tuner, f"user_defined_{h}", False)]
        if any(c.pre_hook is not None for c in tuner.configs):
            hooks.append("pre_hook of a triton.Config")
        if hooks:
            return f"its autotuner has a {hooks[0]}, and compiled code runs no Python at launch"
        if getattr(tuner, "use_cuda_graph", False):
            return "its autotuner has use_cuda_graph=True, which Inductor does not support"
        if getattr(tuner, "num_warmups", None) not in (None, 25) or getattr(
            tuner, "num_reps", None
        ) not in (None, 100):
            return "its autotuner sets warmup= or rep=, which Inductor does not support"
    return printing.obstacle(kernel)


def launch_hooks(kernel: Any) -> Iterator[tuple[str, Any]]:
    """What Triton calls at a launch of a kernel besides it: where it was set, and the function."""
    from triton import knobs

    for name in _HOOKS:
        chain = getattr(knobs.runtime, name)
        # Somebody may put a function, or nothing, in the place of the chain.
        calls = getattr(chain, "calls", [] if chain is None else [chain])
        yield from ((f"triton.knobs.runtime.{name}", call) for call in calls)
    for call in kernels.innermost(kernel).pre_run_hooks:
        yield f"pre_run_hooks of {kernels.kernel_name(kernel)}", call


def launch_options() -> list[str]:
    """Keywords of a launch that are not parameters of the kernel: num_warps, maxnreg, ..."""
    from triton.compiler.compiler import make_backend
    from triton.runtime import driver

    from . import settings

    backend = make_backend(driver.active.get_current_target())
    return list(vars(backend.parse_options(settings.with_fusion({}))))


def mock_tensor(dtype: torch.dtype) -> Any:
    """What `warmup` accepts in place of a tensor."""
    from triton.runtime.jit import MockTensor

    return MockTensor(dtype)


def compiled_name(kernel: Any) -> str:
    return str(getattr(kernel, "name", type(kernel).__name__))


def parameters(kernel: Any) -> dict[str, Any]:
    """Parameters of the jitted function and their defaults, if any (`inspect.Parameter.empty`)."""
    signature = inspect.signature(kernels.innermost(kernel).fn)
    return {p.name: p.default for p in signature.parameters.values()}


def constexpr_parameters(kernel: Any) -> set[str]:
    base = kernels.innermost(kernel)
    return {p.name for p in getattr(base, "params", ()) if p.is_constexpr}


def is_no_gpu(error: BaseException) -> bool:
    """Whether a launch failed because there is no GPU, or because tensors are not on it."""
    if isinstance(error, described.NeedsRealGpu):
        return True
    if isinstance(error, RuntimeError):
        return "active drivers" in str(error)
    return isinstance(error, ValueError) and "cannot be accessed from Triton" in str(error)
