"""Takes every launch of a traced body, also those that a wrapper's code makes."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeGuard

import torch

from .. import _compat
from ..errors import UnsupportedBody, first_line

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
