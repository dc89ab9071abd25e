"""`--widen "softmax_kernel:BLOCK=1024..32768"`: values of a constant that were not recorded."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import BadOption
from ..recording.model import RecordedKernel, Recording

_FORM = re.compile(r"(?P<kernel>[\w.:]+):(?P<constant>\w+)=(?P<values>[\d.,]+)")


_MOST = 32


@dataclass(frozen=True)
class Widening:
    """More values of a kernel's constant."""

    text: str
    kernel: str
    constant: str
    values: tuple[int, ...]

    def names(self, kernel: RecordedKernel) -> bool:
        # As `opforge list` prints it, too.
        full = (f"{kernel.module}.{kernel.name}", f"{kernel.module}:{kernel.name}")
        return self.kernel in {kernel.name, *full}

    def refuse_unused(self, recording: Recording) -> None:
        """Raise if it names nothing that was recorded."""
        named = [kernel for kernel in recording.kernels if self.names(kernel)]
        if not named:
            names = ", ".join(sorted({kernel.name for kernel in recording.kernels}))
            raise BadOption(
                f"--widen {self.text!r} names no recorded kernel", found=names or "no kernels"
            )
        constants = {n for kernel in named for v in kernel.variants for n, _ in v.constants}
        if self.constant not in constants:
            raise BadOption(
                f"--widen {self.text!r} names no constant of {self.kernel}",
                found=", ".join(sorted(constants)) or "no constants",
            )


def parse_widening(text: str) -> Widening:
    """`"k:BLOCK=64..512"` -> 64, 128, 256, 512; `"k:BLOCK=48,96"` -> 48, 96."""
    match = _FORM.fullmatch(text)
    values = _values(match["values"]) if match else ()
    if match is None or not values:
        raise BadOption(
            f"--widen {text!r} cannot be read",
            fix='write --widen "softmax_kernel:BLOCK=1024..32768" for powers of two, or "k:N=3,5"',
        )
    if len(values) > _MOST:
        raise BadOption(
            f"--widen {text!r} has {len(values)} values; the most are {_MOST}",
            fix="give fewer: each is compiled with every variant",
        )
    return Widening(text, match["kernel"], match["constant"], values)


def _values(text: str) -> tuple[int, ...]:
    low, dots, high = text.partition("..")
    try:
        if not dots:
            return tuple(int(word) for word in text.split(","))
        first, last = int(low), int(high)
    except ValueError:
        return ()
    powers = [1 << power for power in range(63)]
    return tuple(n for n in powers if first <= n <= last)
