"""Rules that an op gets after its decoration, by the methods of `torch.library.custom_op`'s object.

@scale.register_kernel("cpu")
def _(x, factor=2.0):
    return torch.from_numpy(x.numpy() * factor)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption, ModeRefused, first_line
from ..model import Lowered
from .register import Definition, Registration
from .rules import check_call, names_of


class LateRules:
    """What an op can be given afterwards.

    Every rule has the signature of the op's own function, whatever its schema is. `amend` registers
    the op again with other options, and with other `device_kernels`.
    """

    def __init__(self, registration: Registration, amend: Callable[..., None]) -> None:
        self._registration = registration
        self._amend = amend
        self._disabled: set[str] = set()

    def attach(self) -> None:
        """Make these methods the handle's."""
        op = self._registration.handle
        for name in _METHODS:
            setattr(op, name, getattr(self, name))

    def register_kernel(
        self,
        device_types: str | Sequence[str] | None,
        fn: Callable[..., Any] | None = None,
        /,
    ) -> Any:
        """Run a function instead of the body on these device types; works as a decorator.

        `None` stands for all that an op with `device_types=` has no kernel for.
        """

        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            with self._located():
                if not callable(fn):
                    raise BadOption(f"register_kernel got {fn!r}", fix="give a function")
                check_call("kernel", fn, *names_of(self._registration.definition.fn))
            kernels = self._registration.definition.device_kernels
            self._amend(device_kernels={**kernels, **dict.fromkeys(names, fn)})
            for name in self._disabled:
                self._registration.choose_kernel(name, own=False)
            return fn

        with self._located():
            names = _read_for_kernel(device_types, self._registration.definition)
        return register if fn is None else register(fn)

    def register_fake(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """The option `fake`; the names of its parameters do not matter here."""
        self._amend(fake=fn)
        return fn

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """The options `backward` and `setup_context`."""
        self._amend(backward=backward, setup_context=setup_context)

    def register_vmap(self, func: Callable[..., Any] | str | None = None) -> Any:
        """The option `vmap`; works as a decorator."""

        def register(func: Callable[..., Any] | str) -> Any:
            self._amend(vmap=func)
            return func

        return register if func is None else register(func)

    def register_autocast(self, device_type: str, cast_inputs: torch.dtype) -> None:
        """The option `autocast`, for one device type."""
        known = self._registration.definition.autocast
        self._amend(autocast={**known, device_type: cast_inputs})

    @contextlib.contextmanager
    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002  # as in torch
        """Run the body instead of a kernel that was registered for a device type, or not."""
        before = device_type in self._disabled
        self._set_disabled(device_type, disabled=not enabled)
        try:
            yield
        finally:
            self._set_disabled(device_type, disabled=before)

    @contextlib.contextmanager
    def _located(self) -> Iterator[None]:
        """Let errors name the op and its line."""
        definition = self._registration.definition
        try:
            yield
        except BadOption as error:
            raise error.locate(definition.name, definition.location) from None

    def _set_disabled(self, device_type: str, *, disabled: bool) -> None:
        (self._disabled.add if disabled else self._disabled.discard)(device_type)
        self._registration.choose_kernel(device_type, own=not disabled)


_METHODS = (
    "register_kernel", "register_fake", "register_autograd", "register_vmap", "register_autocast",
    "set_kernel_enabled",
)  # fmt: skip


@dataclass(frozen=True)
class _Refusal:
    """Stands for a method on a function that mode "none" leaves as it is."""

    method: str
    name: str
    location: str
    fix: str

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ModeRefused(
            f"{self.method} has nothing to add to: in mode 'none' the op is the function itself, "
            "which torch does not know",
            fix=self.fix,
        ).locate(self.name, self.location)


def attach_refusals(fn: Callable[..., Any], name: str, location: str, fix: str) -> None:
    """Give a function in mode "none" the same methods; each raises, and says what helps."""
    detach_refusals(fn)
    for method in _METHODS:
        vars(fn).setdefault(method, _Refusal(method, name, location, fix))


def detach_refusals(fn: Callable[..., Any]) -> None:
    for method in _METHODS:
        if isinstance(vars(fn).get(method), _Refusal):
            del vars(fn)[method]


def read_device_types(option: Any) -> tuple[str, ...]:
    """`"cpu"` -> ("cpu",); None -> ()."""
    listed = () if option is None else (option,) if isinstance(option, str) else option
    if not isinstance(listed, (list, tuple, set, frozenset)):
        raise BadOption(
            f"device_types={option!r} is not a list of device types", fix='device_types="cpu"'
        )
    for name in listed:
        _check_device_type(name)
    return tuple(dict.fromkeys(listed))


def _check_device_type(name: Any) -> None:
    try:
        _compat.backend_key(name)
    except (RuntimeError, TypeError) as error:
        raise BadOption(
            f"{name!r} is not a device type", found=first_line(error), fix='"cpu" or "cuda"'
        ) from None


def _read_for_kernel(device_types: Any, definition: Definition) -> tuple[str | None, ...]:
    if device_types is None and definition.device_types:
        return (None,)
    names = read_device_types(device_types)
    if not names:
        raise BadOption(
            "register_kernel needs a device type: the body already serves all the others",
            fix='register_kernel("cpu"), or say what the body is for: device_types="cuda"',
        )
    check_device_types(names, definition.lowered)
    return names


def check_device_types(device_types: Sequence[str], lowered: Lowered) -> None:
    """Refuse an op whose calls do not say which device they are for."""
    by_device = lowered.tensors or any(a.type in {"Device", "Device?"} for a in lowered.arguments)
    if device_types and not by_device:
        raise BadOption(
            "the op takes neither a tensor nor a device, so no call tells which kernel to run",
            fix="give it a parameter `device: torch.device`, or drop device_types and the kernels",
        )
