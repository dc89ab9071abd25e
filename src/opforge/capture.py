"""While a body is traced, routes its kernel launches into the graph.

A body that runs on fake tensors must not launch anything, and one that runs under
functionalization must leave its launches as nodes. Both hold for every kernel the body reaches,
however it reaches it: the route is taken where Triton launches, not where the body says so.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from . import _compat
from .errors import CannotCapture, first_line
from .gpu_target import DEFAULT
from .tuning.use import pinned

_launches = _compat.launches
_kernels = _compat.kernels

_OPAQUE = "register the op opaque: mode='custom_op'"
# Options that torch's node for a launch carries.
_CARRIED = ("num_warps", "num_stages")


_Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


class Owner(Protocol):
    """Whose body is traced."""

    name: str
    location: str

    def launches(self, kernel: Any, *, inside: str) -> None:
        """Hear of a launch; `inside` names the nested op whose body it stands in, if any."""

    def assumes(self, kernel: Any, why: str) -> None:
        """Hear that what a kernel writes is not known."""

    def looks_through(self, wrapper: Any, kernel: Any, why: str) -> None:
        """Hear that a wrapper's own code was passed over."""


class Capture:
    """One run of a body under a trace."""

    leaves_wrapped = False

    def __init__(
        self,
        owner: Owner,
        above: Capture | None,
        *,
        into_graph: bool,
        inputs: Sequence[torch.Tensor] = (),
    ) -> None:
        self.owner = owner
        self.above = above
        self.into_graph = into_graph
        self.inputs = inputs
        # Per input, how many of its writes rest on an assumption and not on an analysis.
        self.assumed = [0] * len(inputs)
        # Per written input, the first kernel that an analysis shows to write it.
        self.writers: dict[int, Any] = {}
        self._assumed_now = False
        self._launched: list[_Launch] = []

    def launch(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if kwargs.pop("warmup", False):
            return self._warm_up(kernel, run, args, kwargs)
        inner = _kernels.launched_kernel(kernel)
        if inner is not kernel:
            return self._run_wrapper(kernel, inner, run, args, kwargs)
        return self._launch(inner, args, dict(kwargs))

    def _launch(self, inner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._launched.append((inner, args, dict(kwargs)))
        self._tell(inner)
        if not self.into_graph:
            return None
        grid = kwargs.pop("grid", None)
        self._refuse_unsupported(inner)
        inner, kwargs = self._evaluate_heuristics(inner, args, kwargs)
        arguments = self._arguments(inner, args, kwargs)
        inner = pinned(inner, {**dict(zip(arguments, args, strict=False)), **kwargs})
        self._trace(inner, grid, arguments)
        return None

    def _run_wrapper(
        self,
        kernel: Any,
        inner: Any,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A wrapper's own code decides what it launches, which comes here in its turn.

        It runs on a copy, because wrappers keep compiled kernels. One that asks for a tensor's
        address, or for what only a real launch gives, fails, and one may launch where nobody
        sees it; then the launch is made as the body asked for it, if the kernel inside needs no
        more than that.
        """
        before = len(self._launched)
        asked = (inner, args, kwargs)
        enough = inner is not None and _suffices(*asked)
        told = False
        try:
            result = run.func(_disposable(kernel), *args, warmup=False, **kwargs)  # type: ignore[attr-defined]
        except Exception as error:
            made = self._launched[before:]
            # After the launch a wrapper keeps what a real one gives, which nothing has here.
            expected = isinstance(error, AttributeError) if made else _cannot_trace(error)
            same = not made or (len(made) == 1 and _same_launch(made[0], asked))
            if not (enough and expected and same):
                raise
            self.owner.looks_through(kernel, inner, f"{type(error).__name__}: {first_line(error)}")
            result, told = None, True
        if len(self._launched) > before or inner is None:
            return result
        if not enough:
            raise self._cannot(
                f"{type(kernel).__qualname__} launched nothing that could be seen", inner
            )
        if not told:
            self.owner.looks_through(kernel, inner, "it launched nothing that could be seen")
        return self._launch(inner, args, dict(kwargs))

    def compiled(self, kernel: Any) -> None:
        raise self._cannot(
            f"the body launches {_launches.compiled_name(kernel)}, which is compiled already",
            fix=f"launch the @triton.jit function itself, or {_OPAQUE}",
        )

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
        above = self.above
        while above is not None:
            above.owner.launches(kernel, inside=self.owner.name)
            above = above.above

    def _trace(self, kernel: Any, grid: Any, arguments: dict[str, Any]) -> None:
        levels = list(self._levels())
        before = [[_compat.write_count(t) for t in level.inputs] for level in levels]
        self._assumed_now = False
        try:
            _launches.into_graph(kernel, grid, arguments)
        except _launches.Unsupported as error:
            raise self._cannot(str(error), kernel, fix=_OPAQUE) from error
        for level, counts in zip(levels, before, strict=True):
            for index, (tensor, count) in enumerate(zip(level.inputs, counts, strict=True)):
                writes = _compat.write_count(tensor) - count
                if writes and self._assumed_now:
                    level.assumed[index] += writes
                elif writes:
                    level.writers.setdefault(index, kernel)

    def _levels(self) -> Iterator[Capture]:
        level: Capture | None = self
        while level is not None:
            yield level
            level = level.above

    def _refuse_unsupported(self, kernel: Any) -> None:
        if _kernels.is_interpreted(kernel):
            raise self._cannot(
                "it is a kernel of Triton's interpreter, which no graph can hold",
                kernel,
                fix="run without TRITON_INTERPRET=1, or make what launches it an op of its own",
            )
        why = _launches.unsupported(kernel)
        if why:
            raise self._cannot(why, kernel, fix=_OPAQUE)

    def _evaluate_heuristics(
        self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Outermost heuristics are evaluated here, because graphs hold autotuners and functions."""
        kwargs = dict(kwargs)
        while _kernels.is_heuristics(kernel):
            named = dict(zip(kernel.arg_names, args, strict=False))
            for name in kernel.values:
                kwargs[name] = self._evaluate(kernel, name, {**named, **kwargs})
            kernel = kernel.fn
        return kernel, kwargs

    def _evaluate(self, kernel: Any, name: str, given: dict[str, Any]) -> Any:
        try:
            return kernel.values[name](given)
        except Exception as error:
            if not isinstance(error, KeyError) and not _compat.is_fake_refusal(error):
                raise
            raise self._heuristic_needs_more(kernel, name, error) from error

    def _heuristic_needs_more(self, kernel: Any, name: str, error: Exception) -> CannotCapture:
        return self._cannot(
            f"the heuristic for {name!r} needs what is not known while tracing",
            kernel,
            found=f"{type(error).__name__}: {first_line(error)}",
            fix="stack it so that a config's values are known to it: @triton.autotune over "
            f"@triton.heuristics over @triton.jit; let it read shapes only; or {_OPAQUE}",
        )

    def _arguments(
        self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """All arguments by name, defaults too; what a graph's node would lose is refused."""
        defaults = _launches.parameters(kernel)
        constexprs = _launches.constexpr_parameters(kernel)
        names = list(defaults)
        if len(args) > len(names):
            raise self._cannot(f"it takes {len(names)} arguments, got {len(args)}", kernel)
        by_position = dict(zip(names, args, strict=False))
        twice = [n for n in kwargs if n in by_position]
        if twice:
            raise self._cannot(f"argument {twice[0]!r} is given twice", kernel)
        given = {**by_position, **kwargs}
        for name, value in given.items():
            if name not in defaults:
                self._check_option(kernel, name)
            elif isinstance(value, (tuple, list)) and name not in constexprs:
                raise self._cannot(
                    f"argument {name!r} is a {type(value).__name__}, and Inductor passes none",
                    kernel,
                    fix=f"annotate it tl.constexpr, pass its elements one by one, or {_OPAQUE}",
                )
            elif isinstance(value, _launches.descriptor_type()):
                self._check_descriptor(kernel, name, value)
        later = _set_by_configs(kernel)
        missing = {n: d for n, d in defaults.items() if n not in given and n not in later}
        without = [n for n, d in missing.items() if d is inspect.Parameter.empty]
        if without:
            raise self._cannot(f"argument {without[0]!r} is missing", kernel)
        filled = {**given, **missing}
        ordered = [n for n in (*names, *filled) if n in filled]
        return {n: _settled(filled[n], fixed=n in constexprs) for n in ordered}

    def _check_option(self, kernel: Any, name: str) -> None:
        if name in _CARRIED:
            return
        if name not in _launches.launch_options():
            raise self._cannot(f"it has no parameter {name!r}", kernel)
        raise self._cannot(
            f"{name!r} is given at the launch, and Inductor would drop it",
            kernel,
            fix=f"leave it out, or {_OPAQUE}",
        )

    def _check_descriptor(self, kernel: Any, name: str, descriptor: Any) -> None:
        for option, plain in (("padding", "zero"), ("round_f32_to_tf32", False)):
            found = getattr(descriptor, option, plain)
            if found != plain:
                raise self._cannot(
                    f"argument {name!r} is a tensor descriptor with {option}={found!r}, which "
                    "Inductor would drop",
                    kernel,
                    fix=_OPAQUE,
                )

    def _warm_up(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """`kernel.warmup(...)` compiles and launches nothing; fakes have all it asks for."""
        name = _kernels.kernel_name(kernel)
        if _compat.driver.current() is not None or _kernels.is_interpreted(kernel):
            return NotCompiled(
                self._cannot(
                    f"the body uses what {name}.warmup(...) gave, which needs a GPU to compile it",
                    kernel,
                    fix=f"launch the @triton.jit function itself, or {_OPAQUE}",
                )
            )
        before = _launches.route_to(None)
        try:
            return run(*map(_mock, args), warmup=True, **{k: _mock(v) for k, v in kwargs.items()})
        finally:
            _launches.route_to(before)

    def _cannot(
        self, what: str, kernel: Any = None, *, found: str = "", fix: str = ""
    ) -> CannotCapture:
        who = ""
        if kernel is not None:
            who = f"kernel {_kernels.kernel_name(kernel)} ({_kernels.kernel_location(kernel)}): "
        return CannotCapture(
            who + what,
            found=found or None,
            fix=fix or None,
            op=self.owner.name,
            location=self.owner.location,
        )


class NotCompiled:
    """What `warmup` gives where nothing can be compiled; using it says why."""

    def __init__(self, error: CannotCapture) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error

    def __getitem__(self, grid: Any) -> Any:
        raise self._error


@contextlib.contextmanager
def capture(
    owner: Owner, *, into_graph: bool, inputs: Sequence[torch.Tensor] = ()
) -> Iterator[Capture]:
    """Route this thread's launches: into the graph, or, for a body on fakes, nowhere.

    Where the machine has no GPU, the questions that tracing asks one are answered for a target.
    """
    above = _launches.current()
    own = Capture(
        owner, above if isinstance(above, Capture) else None, into_graph=into_graph, inputs=inputs
    )
    with contextlib.ExitStack() as stack:
        if _compat.driver.current() is None and not _compat.driver.has_driver():
            stack.enter_context(_compat.driver.standing_in(DEFAULT))
        before = _launches.route_to(own)
        try:
            yield own
        finally:
            _launches.route_to(before)


def _cannot_trace(error: Exception) -> bool:
    """Whether code failed because tensors are fake, or nothing was launched for real."""
    kinds = (CannotCapture, _compat.driver.NoGpu)
    return isinstance(error, kinds) or _compat.is_fake_refusal(error)


def _disposable(wrapper: Any) -> Any:
    """A copy of a wrapper with containers of its own, and the same kernels in them."""
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
    given = {*list(defaults)[: len(args)], *kwargs, *_set_by_configs(kernel)}
    return all(n in given or d is not inspect.Parameter.empty for n, d in defaults.items())


def _set_by_configs(kernel: Any) -> set[str]:
    """Parameters that an autotuner or heuristics set."""
    names: set[str] = set()
    for part in _kernels.chain(kernel):
        if _kernels.is_heuristics(part):
            names.update(part.values)
        for config in getattr(part, "configs", ()):
            names.update(config.all_kwargs())
    return names


def _settled(value: Any, *, fixed: bool) -> Any:
    """An argument as a graph holds it; what a constexpr receives is specialized.

    Before the grid is asked: a symbolic block size would make it an expression of a page.
    """
    value = _launches.unwrap_constexpr(value)
    if not fixed:
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(_settled(v, fixed=True) for v in value)
    return _compat.concrete(value)


def _mock(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _launches.mock_tensor(value.dtype)
    return _compat.concrete(value)
