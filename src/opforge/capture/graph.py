"""Puts the launches of a body into the graph that is being traced, or, for fakes, nowhere."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from .. import _compat
from ..errors import first_line
from ..gpu_target import DEFAULT
from ..tuning.use import pinned
from .absent_gpu import needs_gpu
from .router import LaunchRouter, Owner, correct_launch, set_by_configs

_launches = _compat.launches
_kernels = _compat.kernels

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
