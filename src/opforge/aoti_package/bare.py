"""Refuses a model's own launches while torch.export runs it on tensors without memory.

torch hands a fake tensor's pointer out as 0, and Triton would launch with it: on a GPU that is an
illegal memory access, after which the process can use the GPU no more.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

from .. import _compat
from ..errors import BareKernel, OpforgeWarning


class Refusal:
    """Stands where Triton launches; ops put their own router there while their bodies run."""

    leaves_wrapped = True

    def launch(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if kwargs.get("warmup"):
            return run(*args, **kwargs)
        raise BareKernel(f"a bare launch of {_compat.kernels.kernel_name(kernel)}")

    def compiled(self, kernel: Any) -> None:
        raise BareKernel(f"a bare launch of {_compat.launches.compiled_name(kernel)}")

    def written(
        self,
        kernel: Any,
        names: list[str],
        tensors: list[str],  # noqa: ARG002  # the protocol's
        failure: BaseException | None,
    ) -> list[str]:
        """What torch found; its log line about a failure came here instead of to the user."""
        if failure is not None:
            known = _compat.kernels
            warnings.warn(
                f"what kernel {known.kernel_name(kernel)} ({known.kernel_location(kernel)}) "
                f"writes could not be analysed ({type(failure).__name__}: {failure}); it is taken "
                "to write every tensor it is given",
                OpforgeWarning,
                stacklevel=2,
            )
        return names


def bare_launches_refused() -> contextlib.AbstractContextManager[None]:
    return _compat.launches.routed_to(Refusal())
