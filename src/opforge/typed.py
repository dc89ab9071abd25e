"""What type checkers see of `opforge.op` and of the ops that it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import torch

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])
Given = ParamSpec("Given")


class Op(Protocol[P, R_co]):
    """An op: called like its function, with the methods of `torch.library.custom_op`'s object."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def register_kernel(self, device_types: str | Sequence[str], fn: F, /) -> F: ...
    @overload
    def register_kernel(self, device_types: str | Sequence[str], /) -> Callable[[F], F]: ...
    def register_fake(self, fn: F, /) -> F: ...
    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None: ...
    def register_vmap(self, func: F) -> F: ...
    def register_autocast(self, device_type: str, cast_inputs: torch.dtype) -> None: ...
    def set_kernel_enabled(
        self,
        device_type: str,
        enabled: bool = True,  # noqa: FBT001, FBT002  # as in torch
    ) -> AbstractContextManager[None]: ...


class Decorator(Protocol):
    """What `op` returns when it is given options and no function."""

    def __call__(self, fn: Callable[P, R], /) -> Op[P, R]: ...


class Typed(Protocol[Given]):
    """`op` to a type checker: the options as they stand there, and the function's own type."""

    @overload
    def __call__(
        self, target: Callable[P, R], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Op[P, R]: ...
    @overload
    def __call__(
        self, target: str | None = None, /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Decorator: ...
