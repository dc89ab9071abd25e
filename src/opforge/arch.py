"""A GPU architecture as a value: NVIDIA's `sm_90`, AMD's `gfx942`.

A named tuple without imports, because programs that load a library wait for it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

# As Triton calls the vendors' backends.
CUDA, HIP = "cuda", "hip"
# From this one on, Triton compiles with features that only this very architecture has (sm_90a).
FIRST_ARCH_SPECIFIC = 90
# The first of AMD's with wavefronts of 32 threads.
_FIRST_OF_32 = 0x1000
_MI350 = 0x950
_NAME = re.compile(r"sm_(?P<cuda>[1-9][0-9]{1,2})|gfx(?P<hip>[1-9][0-9a-f]{2,3})")


class Arch(NamedTuple):
    """Sorts by number, all of NVIDIA's before AMD's.

    `number` is 90 for sm_90, and for AMD's the hexadecimal digits of the name: 0x942 for gfx942.
    """

    backend: str
    number: int

    @classmethod
    def named(cls, name: str) -> Arch:
        """`"sm_90"` -> the architecture, whether or not anything can compile for it.

        Raises `ValueError` for what does not look like a name.
        """
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"the arch must look like 'sm_90' or 'gfx942', got {name!r:.60}")
        return cls(CUDA, int(found[CUDA])) if found[CUDA] else cls(HIP, int(found[HIP], 16))

    def __str__(self) -> str:
        return f"gfx{self.number:x}" if self.is_amd else f"sm_{self.number}"

    @classmethod
    def of_target(cls, target: Any) -> Arch:
        """Of Triton's `GPUTarget`, whose `arch` is 90, or "gfx942"."""
        return cls.named(target.arch) if target.backend == HIP else cls(CUDA, target.arch)

    @property
    def is_amd(self) -> bool:
        return self.backend == HIP

    @property
    def built_name(self) -> str:
        """What images for it run on: `sm_80`, but `sm_90a`."""
        return f"{self}{'a' if not self.is_amd and self.number >= FIRST_ARCH_SPECIFIC else ''}"

    @property
    def vendor(self) -> int:
        """As the C runtime numbers vendors."""
        return int(self.is_amd)

    @property
    def of_triton(self) -> int | str:
        """`arch` of Triton's `GPUTarget`."""
        return str(self) if self.is_amd else self.number

    @property
    def of_hip(self) -> str:
        """As torch's `gcnArchName`, with what GPUs of a data center have switched on by default."""
        return f"{self}:sramecc+:xnack-" if 0x906 <= self.number < _FIRST_OF_32 else str(self)

    @property
    def capability(self) -> tuple[int, int]:
        """As `torch.cuda.get_device_capability` tells it; several of AMD's share one."""
        if self.is_amd:
            return int(f"{self.number >> 8:x}"), self.number >> 4 & 15
        return divmod(self.number, 10)

    @property
    def warp_size(self) -> int:
        return 64 if self.is_amd and self.number < _FIRST_OF_32 else 32

    @property
    def most_shared(self) -> int:
        """The bytes of shared memory that a block of AMD's can have; NVIDIA's boards tell."""
        return 160 << 10 if self.number == _MI350 else 64 << 10

    @property
    def is_hopper_or_later(self) -> bool:
        """Whether it has clusters, tensor maps and programmatic dependent launch."""
        return self.backend == CUDA and self.number >= HOPPER.number


HOPPER = Arch(CUDA, 90)
