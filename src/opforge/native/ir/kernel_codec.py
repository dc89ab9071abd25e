"""How a kernel stands in the manifest; of its images, all but their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ...records import Codecs, each
from .program import Image, Kernel, TensorMap


@dataclass(frozen=True)
class BuiltImage:
    """What is read of an image; `arch` is what it runs on, as `sm_90a`."""

    arch: str
    bytes: int
    sha256: str
    # Of the PTX that it was made from, if that is in the library, too.
    ptx_sha256: str | None
    num_warps: int
    shared: int
    registers: int
    spills: int


class BuiltKernel(NamedTuple):
    """A kernel variant without its images, and what is told of these."""

    kernel: Kernel
    images: tuple[BuiltImage, ...]


_CODECS = Codecs(
    {
        Kernel: "key name qualified_name location types constants divisible options",
        Image: "num_warps num_ctas shared cooperative pdl global_scratch_size "
        "global_scratch_align profile_scratch_size registers spills maps? descriptor_flags?",
        TensorMap: "element element_size swizzle block is_padded_fp4",
        BuiltImage: "arch bytes sha256 ptx_sha256 num_warps shared registers spills",
    },
)
KERNEL, IMAGE, _BUILT_IMAGE = map(_CODECS.of, (Kernel, Image, BuiltImage))


def read_kernels(manifest: Any) -> tuple[BuiltKernel, ...]:
    """Raises `BadField` for what `codegen.manifest` does not write."""
    kernels: tuple[BuiltKernel, ...] = each(manifest, "kernels", _read)
    return kernels


def _read(content: Any) -> BuiltKernel:
    return BuiltKernel(KERNEL.read(content), each(content, "images", _BUILT_IMAGE.read))
