"""A driver for Triton that is made only when torch cannot answer: making it compiles C."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import patches


class LazyDriver:
    """Answers what torch knows, and makes Triton's own driver for the rest."""

    def __init__(self, real: Any) -> None:
        self._real = real

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> Any:
        """Of Triton's driver, which code compares with the backend's."""
        from triton.backends import backends

        return backends["nvidia"].driver if "nvidia" in backends else LazyDriver

    def get_current_target(self) -> Any:
        cuda = self._cuda()
        if cuda is None:
            return self._machine().get_current_target()
        from triton.backends.compiler import GPUTarget

        major, minor = cuda.get_device_capability()
        return GPUTarget("cuda", major * 10 + minor, 32)

    def get_current_device(self) -> Any:
        cuda = self._cuda()
        return self._machine().get_current_device() if cuda is None else cuda.current_device()

    def get_device_capability(self, device: Any) -> Any:
        cuda = self._cuda()
        asked = self._machine() if cuda is None else cuda
        return asked.get_device_capability(device)

    def get_device_interface(self) -> Any:
        return self._cuda() or self._machine().get_device_interface()

    def get_active_torch_device(self) -> Any:
        cuda = self._cuda()
        if cuda is None:
            return self._machine().get_active_torch_device()
        import torch

        return torch.device("cuda", cuda.current_device())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine(), name)

    def _cuda(self) -> Any:
        """torch.cuda, as long as it can answer."""
        # Programs import Triton before torch, and need not import torch at all.
        import torch

        there = torch.version.cuda is not None and torch.cuda.is_available()
        return torch.cuda if self._real is None and there else None

    def _machine(self) -> Any:
        if self._real is None:
            from triton.runtime import driver

            self._real = driver.default
        return self._real


def replacements() -> Iterator[patches.Replacement]:
    """Triton's active driver, as a lazy one."""
    yield patches.SERVED_DRIVER.by("_active", LazyDriver)
