"""`op__jit` and `op__grad`: operators that the adapter calls where it does not serve a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ENDINGS = ("jit", "grad")


class Helper:
    """One of them; `target` is what it runs, and may be another one later."""

    def __init__(self, op: str, schema: str, ending: str, target: Callable[..., Any]) -> None:
        namespace, _, short = op.partition("::")
        name = f"{short}__{ending}"
        self.name = f"{namespace}::{name}"
        self.target = target
        self.library = torch.library.Library(namespace, "FRAGMENT")
        self.library.define(name + schema.removeprefix(op))
        self.library.impl(name, self._run, "CompositeExplicitAutograd")
        self.library.impl(name, torch.library.fallthrough_kernel, "Autograd")

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)


def advice_without_source(op: str, location: str, rebuild: str) -> str:
    return (
        "pass CUDA tensors such as the library was built for; "
        f"import the module that defines {op} ({location}), whose kernels can then be compiled; "
        f"or declare such calls with native.declare and build the library again: {rebuild}"
    )
