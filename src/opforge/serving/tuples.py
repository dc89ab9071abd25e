"""Launches with tuples as arguments: a kernel of the folder is given their items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from .gaps import Gap, gap
from .manifest import ServedKernel

_OTHER = gap("nothing was built for tuples of these lengths")
_HOOKS = gap("it has pre_run_hooks")
_WHOLE = "_opforge_whole"


def with_tuples(
    fn: Any,
    kernel: ServedKernel,
    make: Callable[[Any, ServedKernel], Any],
    hand_over: Callable[[Any, Any, Any, Any, Gap], Any],
) -> Any:
    """What serves a jitted function; `make` makes it of one that takes no tuples."""
    if not any(instance.names for instance in kernel.instances):
        return make(fn, kernel)
    return _TupleKernel(fn, kernel, make, hand_over)


class _TupleKernel:
    """A kernel for each way in which its tuples are made up."""

    def __init__(
        self,
        fn: Any,
        kernel: ServedKernel,
        make: Callable[[Any, ServedKernel], Any],
        hand_over: Callable[[Any, Any, Any, Any, Gap], Any],
    ) -> None:
        self._fn, self._hand_over = fn, hand_over
        self._made = {}
        for names in {(), *(instance.names for instance in kernel.instances)}:
            own = tuple(one for one in kernel.instances if one.names == names)
            flat = _flattened(fn, names) if names else fn
            self._made[names] = make(flat, kernel._replace(instances=own))

    def bind(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self._launch(grid, args, kwargs)

    def _launch(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        fn = self._fn
        named = {name: value for name, value in kwargs.items() if name in fn.arg_names}
        try:
            bound = fn.signature.bind(*args, **named)
        except TypeError:
            # Triton refuses it.
            return self._made[()].bind(grid)(*args, **kwargs)
        bound.apply_defaults()
        free = {param.name for param in fn.params if not param.is_constexpr}
        items = [
            item
            for name, value in bound.arguments.items()
            for item in (_items(name, value) if name in free else [(name, value)])
        ]
        if len(items) == len(bound.arguments) and not any("." in name for name, _ in items):
            return self._made[()].bind(grid)(*args, **kwargs)
        names = tuple(name for name, _ in items if name.partition(".")[0] in free)
        found = self._made.get(names)
        if found is None or fn.pre_run_hooks:
            return self._hand_over(fn, grid, args, kwargs, _HOOKS if found else _OTHER)
        if callable(grid):
            grid = grid(dict(bound.arguments))
        options = {name: value for name, value in kwargs.items() if name not in named}
        return found.bind(grid)(**dict(items), **options)

    def counts(self) -> dict[str, int]:
        each = [made.counts() for made in self._made.values()]
        return {name: sum(counts[name] for counts in each) for name in ("served", "general")}


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """`xs.0` and `xs.1` of a tuple `xs`; anything else as it is."""
    if type(value) is not tuple:
        yield name, value
        return
    for at, item in enumerate(value):
        yield from _items(f"{name}.{at}", item)


def _flattened(fn: Any, names: tuple[str, ...]) -> Any:
    """The jitted function, with items of tuples for parameters."""
    made = object.__new__(type(fn))
    vars(made).update(vars(fn))
    vars(made)[_WHOLE] = fn
    made.params = [p for param in fn.params for p in _parameters(param, names)]
    return made


def _parameters(param: Any, names: tuple[str, ...]) -> list[Any]:
    if param.is_constexpr:
        return [param]
    return [
        SimpleNamespace(
            name=name,
            is_constexpr=False,
            has_default=False,
            default=None,
            do_not_specialize=param.do_not_specialize,
            do_not_specialize_on_alignment=param.do_not_specialize_on_alignment,
            annotation_type=param.annotation_type,
        )
        for name in names
        if name.partition(".")[0] == param.name
    ]


def whole(fn: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """A launch as the program made it: the jitted function, and its tuples."""
    original = vars(fn).get(_WHOLE)
    if original is None:
        return fn, kwargs
    joined: dict[str, Any] = {}
    for name, value in kwargs.items():
        holder, (*path, last) = joined, name.split(".")
        for place in path:
            holder = holder.setdefault(place, {})
        holder[last] = value
    # A value that was a dict before is an option's, and has no items of its own.
    taken = {name.partition(".")[0] for name in kwargs if "." in name}
    return original, {n: _tupled(v) if n in taken else v for n, v in joined.items()}


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value.values())) if type(value) is dict else value
