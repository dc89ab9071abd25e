"""While a body is traced, takes its kernel launches: into the graph, or wherever a router says.

A body that runs on fake tensors must not launch anything, and one that runs under
functionalization must leave its launches as nodes. Both hold for every kernel that the body
reaches, however it reaches it: launches are taken where Triton makes them, not where the body
writes them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeGuard

import torch

from . import _compat
from .errors import NeedsGpu, UnsupportedBody, first_line
from .gpu_target import DEFAULT
from .tuning.choose import pinned

_NAME = "opforge::needs_gpu"
# It is said to write what the kernel would have written, or compilers would drop it.
_SCHEMA = "(Tensor(a!)[] written, str op, str location, str who) -> ()"


def cpu_refusal(op: str, location: str, who: str, devices: Sequence[str]) -> NeedsGpu:
    """The error for kernels that were given CPU tensors, or no tensor and no GPU."""
    what = f"{who} launches Triton kernels, which cannot use CPU tensors"
    if not devices:
        what = f"{who} launches Triton kernels, and there is no GPU"
    own = (
        'register a CPU kernel: op.register_kernel("cpu")'
        if who == "the op"
        else "give it a branch for CPU tensors"
    )
    return NeedsGpu(
        what,
        found=f"tensors on {', '.join(devices)}" if devices else None,
        fix=(
            "pass CUDA tensors; or start Python with TRITON_INTERPRET=1, which runs kernels on the "
            f"CPU; or {own}"
        ),
        op=op,
        location=location,
    )


def _raise(written: list[torch.Tensor], op: str, location: str, who: str) -> None:
    raise cpu_refusal(op, location, who, sorted({str(t.device) for t in written}))


# Defined on import, and not by the trace that needs it: torch may find the code in its cache.
_defined = _compat.define(_NAME, _SCHEMA)
_defined.kernels.impl("needs_gpu", _raise, "CompositeExplicitAutograd")
_defined.kernels.impl("needs_gpu", lambda *_: None, "Meta")
needs_gpu = _defined.overload


_launches = _compat.launches
_kernels = _compat.kernels

_Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def is_refused_launch(error: BaseException) -> TypeGuard[UnsupportedBody]:
    """Whether an error is about a launch that cannot become part of a graph."""
    return isinstance(error, UnsupportedBody) and error.cause == "launch"


class Owner(Protocol):
    """The op whose body is traced."""

    name: str
    location: str

    def looks_through(self, wrapper: Any, kernel: Any, why: str) -> None:
        """Hear that a wrapper's own code was skipped."""


class LaunchRouter(ABC):
    """Routes the launches of one run of a body; `on_launch` decides what becomes of each."""

    leaves_wrapped = False
    # What errors advise where a launch cannot be made as they say.
    alternative = ""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._launched: list[_Launch] = []

    @abstractmethod
    def on_launch(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take a launch of one of Triton's own kernels; `kwargs` may be changed."""

    def launch(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if kwargs.pop("warmup", False):
            return self._warm_up(kernel, run, args, kwargs)
        inner = _kernels.launched_kernel(kernel)
        if inner is not kernel:
            return self._run_wrapper(kernel, inner, run, args, kwargs)
        return self._launch(inner, args, kwargs)

    def compiled(self, kernel: Any) -> None:
        raise self.error(
            f"the body launches {_launches.compiled_name(kernel)}, which is already compiled",
            fix=self._or_alternative("launch the @triton.jit function itself"),
        )

    def written(
        self,
        kernel: Any,  # noqa: ARG002  # the protocol's
        names: list[str],
        tensors: list[str],  # noqa: ARG002
        failure: BaseException | None,  # noqa: ARG002
    ) -> list[str]:
        """What a launch is taken to write, given what torch made of Triton's analysis."""
        return names

    def evaluate_heuristic(self, kernel: Any, name: str, given: dict[str, Any]) -> Any:
        """The value that `@triton.heuristics` gives a parameter."""
        try:
            return kernel.values[name](given)
        except Exception as error:
            if not isinstance(error, KeyError) and not _compat.fakes.is_fake_refusal(error):
                raise
            raise self.error(
                f"the heuristic for {name!r} needs something that is unknown while tracing",
                kernel,
                found=f"{type(error).__name__}: {first_line(error)}",
                fix=self._or_alternative(
                    "stack it so that it knows a config's values: @triton.autotune over "
                    "@triton.heuristics over @triton.jit; let it read only shapes"
                ),
            ) from error

    def error(
        self, what: str, kernel: Any = None, *, found: str = "", fix: str = ""
    ) -> UnsupportedBody:
        """An error about the body, or about its launch of a kernel."""
        who = ""
        if kernel is not None:
            who = f"kernel {_kernels.kernel_name(kernel)} ({_kernels.kernel_location(kernel)}): "
        refusal = UnsupportedBody(
            who + what,
            found=found or None,
            fix=fix or None,
            op=self._owner.name,
            location=self._owner.location,
            cause="launch",
        )
        refusal.kernel = kernel
        return refusal

    def _or_alternative(self, fix: str) -> str:
        return f"{fix}, or {self.alternative}" if self.alternative else fix

    def _launch(self, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._launched.append((inner, args, dict(kwargs)))
        self.on_launch(inner, args, dict(kwargs))

    def _run_wrapper(
        self,
        kernel: Any,
        inner: Any,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A wrapper's own code decides what it launches, and those launches come here in turn.

        It runs on a copy, because wrappers keep compiled kernels. It fails if it asks for a
        tensor's address or for the result of a real launch, and it may launch where nobody sees
        it. Then the launch is made as the body asked for it, provided that the kernel inside
        needs no more than that.
        """
        before = len(self._launched)
        asked = (inner, args, kwargs)
        enough = inner is not None and _suffices(*asked)
        why = ""
        try:
            result = run.func(_disposable(kernel), *args, warmup=False, **kwargs)  # type: ignore[attr-defined]
        except Exception as error:
            made = self._launched[before:]
            # After the launch a wrapper keeps what a real one returns, and here nothing does.
            expected = isinstance(error, AttributeError) if made else _cannot_trace(error)
            same = not made or (len(made) == 1 and _same_launch(made[0], asked))
            if not (enough and expected and same):
                raise
            result, why = None, f"{type(error).__name__}: {first_line(error)}"
        unseen = len(self._launched) == before and inner is not None
        if unseen and not enough:
            raise self.error(f"{type(kernel).__qualname__} made no launch that can be seen", inner)
        if unseen or why:
            why = why or "it made no launch that can be seen"
            self._owner.looks_through(kernel, inner, why)
        return self._launch(inner, args, kwargs) if unseen else result

    def _warm_up(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """`kernel.warmup(...)` compiles and launches nothing; fakes have all it asks for."""
        name = _kernels.kernel_name(kernel)
        if _compat.driver.current() is not None or _kernels.is_interpreted(kernel):
            return NotCompiled(
                self.error(
                    f"the body uses the result of {name}.warmup(...), which only a GPU can compile",
                    kernel,
                    fix=self._or_alternative("launch the @triton.jit function itself"),
                )
            )
        with _launches.routed_to(None):
            return run(*map(_mock, args), warmup=True, **{k: _mock(v) for k, v in kwargs.items()})


class NotCompiled:
    """What `warmup` returns where nothing can be compiled; using it raises the reason."""

    def __init__(self, error: UnsupportedBody) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error

    def __getitem__(self, grid: Any) -> Any:
        raise self._error


def correct_launch(names: Iterable[str]) -> str:
    """The fix for a launch whose arguments are not the kernel's parameters."""
    return f"correct the launch; the kernel's parameters are {', '.join(names)}"


def set_by_configs(kernel: Any) -> set[str]:
    """Parameters that an autotuner or heuristics set."""
    names: set[str] = set()
    for part in _kernels.chain(kernel):
        if _kernels.is_heuristics(part):
            names.update(part.values)
        for config in getattr(part, "configs", ()):
            names.update(config.all_kwargs())
    return names


def _cannot_trace(error: Exception) -> bool:
    """Whether code failed because tensors are fake, or because nothing was really launched."""
    if is_refused_launch(error) or isinstance(error, _compat.described.NeedsRealGpu):
        return True
    return _compat.fakes.is_fake_refusal(error)


def _disposable(wrapper: Any) -> Any:
    """A copy of a wrapper with its own containers and the same kernels in them."""
    copied = copy.copy(wrapper)
    for name, value in _kernels.instance_dict(wrapper).items():
        vars(copied)[name] = _own_containers(value)
    return copied


def _own_containers(value: Any) -> Any:
    if type(value) in (list, tuple, set):
        return type(value)(_own_containers(v) for v in value)
    if isinstance(value, dict):
        return copy.copy(value)
    return value


def _same_launch(one: _Launch, other: _Launch) -> bool:
    """Whether two launches are of one function with the same arguments."""
    if _kernels.innermost(one[0]) is not _kernels.innermost(other[0]):
        return False
    named = [
        {**dict(zip(_launches.parameters(kernel), args, strict=False)), **kwargs, "grid": None}
        for kernel, args, kwargs in (one, other)
    ]
    for given in named:
        given.pop("warmup", None)
    first, second = named
    return first.keys() == second.keys() and all(
        v is second[n] or (not isinstance(v, torch.Tensor) and v == second[n])
        for n, v in first.items()
    )


def _suffices(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a wrapper was given all that the kernel inside it needs."""
    defaults = _launches.parameters(kernel)
    given = {*list(defaults)[: len(args)], *kwargs, *set_by_configs(kernel)}
    return all(n in given or d is not inspect.Parameter.empty for n, d in defaults.items())


def _mock(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _launches.mock_tensor(value.dtype)
    return _compat.concrete(value)


_OPAQUE = "register the op opaque: mode='custom_op'"


class GraphOwner(Owner, Protocol):
    """The op whose body is traced into a graph."""

    def launches(self, kernel: Any, *, inside: str) -> None:
        """Hear of a launch; `inside` names the nested op whose body makes it, if any."""

    def assumes(self, kernel: Any, why: str) -> None:
        """Hear that it is not known what a kernel writes."""


class Capture(LaunchRouter):
    """One run of a body under a trace."""

    alternative = _OPAQUE

    def __init__(
        self,
        owner: GraphOwner,
        above: Capture | None,
        *,
        into_graph: bool,
        prunes: bool = False,
        inputs: Sequence[torch.Tensor] = (),
        who: str = "the op",
    ) -> None:
        super().__init__(owner)
        self.owner = owner
        self.above = above
        self.into_graph = into_graph
        self.prunes = prunes
        self.who = who
        self.inputs = inputs
        # Per input, how many of its writes rest on an assumption and not on an analysis.
        self.assumed = [0] * len(inputs)
        # Per written input, the first kernel that an analysis shows to write it.
        self.writers: dict[int, Any] = {}
        # Whether questions about the GPU are answered for one that is not there.
        self.lacks_gpu = False
        self._assumed_now = False

    def on_launch(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tell(kernel)
        grid = kwargs.pop("grid", None)
        if not self.into_graph:
            if self.prunes:
                _launches.prune_configs(kernel, args, kwargs)
            return
        self._refuse_unsupported(kernel)
        kernel, kwargs = self._evaluate_heuristics(kernel, args, kwargs)
        arguments = self._arguments(kernel, args, kwargs)
        kernel = pinned(kernel, {**dict(zip(arguments, args, strict=False)), **kwargs})
        self._trace(kernel, grid, arguments)

    def written(
        self, kernel: Any, names: list[str], tensors: list[str], failure: BaseException | None
    ) -> list[str]:
        """What a launch is taken to write, given what torch made of Triton's analysis."""
        why = ""
        if failure is not None:
            why = f"{type(failure).__name__}: {first_line(failure)}"
        elif not names and tensors:
            why = "it shows no write at all, and a launch that writes nothing would be dropped"
        if not why:
            return names
        self._assumed_now = True
        self.owner.assumes(kernel, why)
        return tensors

    def _tell(self, kernel: Any) -> None:
        self.owner.launches(kernel, inside="")
        for level in [*self._levels()][1:]:
            level.owner.launches(kernel, inside=self.owner.name)

    def _trace(self, kernel: Any, grid: Any, arguments: dict[str, Any]) -> None:
        levels = [*self._levels()]
        before = [[_compat.write_count(t) for t in level.inputs] for level in levels]
        self._assumed_now = False
        try:
            _launches.into_graph(kernel, grid, arguments, refuse=self._refusing(arguments))
        except _launches.Unsupported as error:
            raise self.error(str(error), kernel, fix=_OPAQUE) from error
        for level, counts in zip(levels, before, strict=True):
            for index, (tensor, count) in enumerate(zip(level.inputs, counts, strict=True)):
                writes = _compat.write_count(tensor) - count
                if writes and self._assumed_now:
                    level.assumed[index] += writes
                elif writes:
                    level.writers.setdefault(index, kernel)

    def _refusing(self, arguments: dict[str, Any]) -> Callable[[list[Any]], Any] | None:
        """What the graph gets in place of a launch that could not run here."""
        # A tensor descriptor has its tensor as `base`.
        given = [getattr(value, "base", value) for value in arguments.values()]
        on_cpu = any(isinstance(v, torch.Tensor) and v.device.type == "cpu" for v in given)
        if not (self.lacks_gpu and on_cpu and _compat.traces_to_run()):
            return None
        owner = self.owner
        return functools.partial(needs_gpu, op=owner.name, location=owner.location, who=self.who)

    def _levels(self) -> Iterator[Capture]:
        level: Capture | None = self
        while level is not None:
            yield level
            level = level.above

    def _refuse_unsupported(self, kernel: Any) -> None:
        if _kernels.is_interpreted(kernel):
            raise self.error(
                "it runs in Triton's interpreter, and no graph can hold it",
                kernel,
                fix="run without TRITON_INTERPRET=1, or make what launches it an op of its own",
            )
        why = _launches.unsupported(kernel)
        if why:
            raise self.error(why, kernel, fix=_OPAQUE)

    def _evaluate_heuristics(
        self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Outermost heuristics are evaluated here, because graphs hold autotuners and functions."""
        kwargs = dict(kwargs)
        while _kernels.is_heuristics(kernel):
            named = dict(zip(kernel.arg_names, args, strict=False))
            for name in kernel.values:
                kwargs[name] = self.evaluate_heuristic(kernel, name, {**named, **kwargs})
            kernel = kernel.fn
        return kernel, kwargs

    def _arguments(
        self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """All arguments by name, defaults too; what a graph's node would lose is refused."""
        defaults = _launches.parameters(kernel)
        constexprs = _launches.constexpr_parameters(kernel)
        names = list(defaults)
        if len(args) > len(names):
            what = f"it takes {len(names)} arguments, got {len(args)}"
            raise self.error(what, kernel, fix=correct_launch(names))
        by_position = dict(zip(names, args, strict=False))
        twice = [n for n in kwargs if n in by_position]
        if twice:
            what = f"argument {twice[0]!r} is given twice"
            raise self.error(what, kernel, fix=correct_launch(names))
        given = {**by_position, **kwargs}
        for name, value in given.items():
            if name not in defaults:
                self._check_option(kernel, name)
            elif isinstance(value, (tuple, list)) and name not in constexprs:
                raise self.error(
                    f"argument {name!r} is a {type(value).__name__}, which Inductor cannot pass",
                    kernel,
                    fix=f"annotate it tl.constexpr, pass its elements one by one, or {_OPAQUE}",
                )
            elif isinstance(value, _compat.tma.descriptor_types()):
                self._check_descriptor(kernel, name, value)
        later = set_by_configs(kernel)
        missing = {n: d for n, d in defaults.items() if n not in given and n not in later}
        without = [n for n, d in missing.items() if d is inspect.Parameter.empty]
        if without:
            what = f"argument {without[0]!r} is missing"
            raise self.error(what, kernel, fix=correct_launch(names))
        filled = {**given, **missing}
        ordered = [n for n in (*names, *filled) if n in filled]
        return {n: _specialized(filled[n], fixed=n in constexprs) for n in ordered}

    def _check_option(self, kernel: Any, name: str) -> None:
        if name in _kernels.CARRIED_OPTIONS:
            return
        if name not in _launches.launch_options():
            fix = correct_launch(_launches.parameters(kernel))
            raise self.error(f"it has no parameter {name!r}", kernel, fix=fix)
        raise self.error(
            f"{name!r} is given at the launch, and Inductor would drop it",
            kernel,
            fix=f"leave it out, or {_OPAQUE}",
        )

    def _check_descriptor(self, kernel: Any, name: str, descriptor: Any) -> None:
        for option, plain in (("padding", "zero"), ("round_f32_to_tf32", False)):
            found = getattr(descriptor, option, plain)
            if found != plain:
                raise self.error(
                    f"argument {name!r} is a tensor descriptor with {option}={found!r}, which "
                    "Inductor would drop",
                    kernel,
                    fix=_OPAQUE,
                )


@contextlib.contextmanager
def capture(
    owner: GraphOwner,
    *,
    into_graph: bool,
    prunes: bool = False,
    inputs: Sequence[torch.Tensor] = (),
    who: str = "the op",
) -> Iterator[Capture]:
    """Route this thread's launches: into the graph, or, for a body on fakes, nowhere.

    `prunes`: a launch that goes nowhere still asks an autotuner's `prune_configs_by`. Where the
    machine has no GPU, the questions that tracing asks one are answered for a target.
    """
    found = _launches.current()
    above = found if isinstance(found, Capture) else None
    own = Capture(owner, above, into_graph=into_graph, prunes=prunes, inputs=inputs, who=who)
    with contextlib.ExitStack() as stack:
        if above is not None:
            own.lacks_gpu = above.lacks_gpu
        elif _compat.driver.current() is None and not _compat.driver.has_driver():
            own.lacks_gpu = True
            stack.enter_context(_compat.driver.standing_in(DEFAULT))
        stack.enter_context(_launches.routed_to(own))
        yield own


def _specialized(value: Any, *, fixed: bool) -> Any:
    """An argument as a graph holds it: a constexpr's is specialized.

    That happens before the grid is evaluated, where a symbolic block size would make a page-long
    expression.
    """
    value = _compat.kernels.unwrap_constexpr(value)
    if not fixed:
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(_specialized(v, fixed=True) for v in value)
    return _compat.concrete(value)
