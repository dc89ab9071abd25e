"""What a served launch returns, in place of Triton's compiled kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import _compat
from ..errors import NotServed
from .kinds import DESCRIPTOR
from .manifest import ServedInstance


class Relaunch:
    """Launches again: wrappers of packages keep it, for `returned[grid](*args)`.

    They pass all arguments or, as some versions of Triton want it, those without constants. Its
    other attributes are those of Triton's kernel: `compiled(attribute)` makes it for the first.
    """

    def __init__(
        self,
        kernel: Any,
        passed: list[str],
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
        compiled: Callable[[str], Any],
    ) -> None:
        self._kernel, self._passed = kernel, passed
        self._constants, self._options = constants, options
        self._compiled, self._made = compiled, None

    def __getitem__(self, grid: Any) -> Any:
        launch = self._kernel.bind(grid)

        def again(*args: Any, stream: None = None, **named: Any) -> Any:
            if stream is not None:
                raise NotServed(
                    "what a launch returned is given a stream",
                    fix="launch inside `torch.cuda.stream(...)`",
                )
            if len(args) == len(self._passed):
                named |= dict(zip(self._passed, args, strict=True))
            elif args:
                return launch(*args, **named, **self._options)
            return launch(**{**self._constants, **self._options, **named})

        return again

    def __getattr__(self, name: str) -> Any:
        # Python asks for those that it knows: to copy, to pickle, to show.
        if name.startswith("__"):
            raise AttributeError(name)
        if self._made is None:
            self._made = self._compiled(name)
        return getattr(self._made, name)


def for_triton(
    fn: Any,
    instance: ServedInstance,
    types: tuple[str, ...],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
) -> _compat.compiling.Variant:
    """What Triton is to compile for a variant: ("*fp16", "p16") is "*fp16", divisible by 16."""
    # Of a kernel whose tuples are taken apart, the names of their items.
    names = [param.name for param in fn.params]
    runtime = [param.name for param in fn.params if not param.is_constexpr]
    kinds = zip(instance.kinds, types, strict=True)
    pairs: dict[str, tuple[str, str]] = dict(zip(runtime, kinds, strict=True))
    fixed: dict[str, Any] = {"1": 1, "none": None}
    values = {**constants, **{n: fixed[t] for n, (_, t) in pairs.items() if t in fixed}}

    def type_of(name: str) -> str:
        if name in values:
            return "constexpr"
        kind, given = pairs[name]
        return kind if given in {"p", "p16", DESCRIPTOR} else given.partition(":")[0]

    by_16 = {name for name, (_, given) in pairs.items() if given.endswith("16")}
    return _compat.compiling.Variant(
        fn,
        _compat.device.device_arch(),
        {name: type_of(name) for name in names},
        values,
        options,
        tuple(at for at, name in enumerate(names) if name in by_16),
    )
