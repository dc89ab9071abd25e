"""What compiled code does where a kernel would need a GPU that is not there: it raises NeedsGpu."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _compat
from ..errors import NeedsGpu

_NAME = "opforge::needs_gpu"
# It is said to write what the kernel would have written, or compilers would drop it.
_SCHEMA = "(Tensor(a!)[] written, str op, str location, str who) -> ()"


def cpu_refusal(op: str, location: str, who: str, devices: Sequence[str]) -> NeedsGpu:
    """The error for kernels that were given CPU tensors, or no tensor and no GPU."""
    what = f"{who} launches Triton kernels, which cannot use CPU tensors"
    if not devices:
        what = f"{who} launches Triton kernels, and there is no GPU"
    own = (
        'register a CPU kernel: op.register_kernel("cpu")'
        if who == "the op"
        else "give it a branch for CPU tensors"
    )
    return NeedsGpu(
        what,
        found=f"tensors on {', '.join(devices)}" if devices else None,
        fix=(
            "pass CUDA tensors; or start Python with TRITON_INTERPRET=1, which runs kernels on the "
            f"CPU; or {own}"
        ),
        op=op,
        location=location,
    )


def _raise(written: list[torch.Tensor], op: str, location: str, who: str) -> None:
    raise cpu_refusal(op, location, who, sorted({str(t.device) for t in written}))


# Defined on import, and not by the trace that needs it: torch may find the code in its cache.
_defined = _compat.define(_NAME, _SCHEMA)
_defined.kernels.impl("needs_gpu", _raise, "CompositeExplicitAutograd")
_defined.kernels.impl("needs_gpu", lambda *_: None, "Meta")
needs_gpu = _defined.overload
