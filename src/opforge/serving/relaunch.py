"""What a served launch returns, in place of Triton's compiled kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import NotServed


class Relaunch:
    """Launches again: wrappers of packages keep it, for `returned[grid](*args)`.

    They pass all arguments or, as some versions of Triton want it, those without constants.
    """

    def __init__(
        self, kernel: Any, fn: Any, constants: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        self._kernel, self._options = kernel, options
        self._constants = dict(zip(_names(fn, constexpr=True), constants, strict=True))
        self._passed, self._name = _names(fn, constexpr=False), fn.__name__

    def __getitem__(self, grid: Any) -> Any:
        launch = self._kernel.bind(grid)

        def again(*args: Any, stream: None = None, **named: Any) -> Any:
            if stream is not None:
                raise NotServed(
                    f"a launch of {self._name} is given a stream",
                    fix="launch inside `torch.cuda.stream(...)`",
                )
            if len(args) == len(self._passed):
                named |= dict(zip(self._passed, args, strict=True))
            elif args:
                return launch(*args, **named, **self._options)
            return launch(**{**self._constants, **self._options, **named})

        return again

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self._name} is served from a folder, so Triton has not made the compiled kernel "
            f"that has .{name}"
        )


def _names(fn: Any, *, constexpr: bool) -> list[str]:
    return [param.name for param in fn.params if param.is_constexpr is constexpr]
