"""Refuses launches outside ops while torch.export runs a model on tensors without memory.

A fake tensor's pointer is 0. A Triton launch with it is an illegal memory access on a GPU, after
which the process can no longer use the GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from .. import _compat
from ..errors import UnsupportedBody, warn


class Refusal:
    """Routes launches outside ops; ops install their own router while their bodies run."""

    leaves_wrapped = True

    def launch(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if kwargs.get("warmup"):
            return run(*args, **kwargs)
        raise UnsupportedBody(f"a bare launch of {_compat.kernels.kernel_name(kernel)}")

    def compiled(self, kernel: Any) -> None:
        raise UnsupportedBody(f"a bare launch of {_compat.launches.compiled_name(kernel)}")

    def written(
        self,
        kernel: Any,
        names: list[str],
        tensors: list[str],  # noqa: ARG002  # the protocol's
        failure: BaseException | None,
    ) -> list[str]:
        """What torch's analysis found; a failure becomes a warning instead of torch's log line."""
        if failure is not None:
            known = _compat.kernels
            warn(
                f"cannot analyse what kernel {known.kernel_name(kernel)} "
                f"({known.kernel_location(kernel)}) writes ({type(failure).__name__}: {failure}); "
                "assuming that it writes every tensor it is given"
            )
        return names


def bare_launches_refused() -> contextlib.AbstractContextManager[None]:
    return _compat.launches.routed_to(Refusal())
