"""What a native library is made of, between tracing and C.

Tracing fills a `Path` for every way through an op's body, and compiling gives each kernel variant
its images. Sources, headers and the manifest are written from this alone, so the same program
always gives the same files. Plain data: it can be pickled and printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ...arch import Arch
from ...records import Codecs, each
from .interface import Op
from .places import Place


@dataclass(frozen=True)
class TensorMap:
    """What a compiled kernel expects of a descriptor's tensor map, in CUDA's numbers."""

    element: int
    # In bytes; of two 4-bit numbers in a byte, that byte's.
    element_size: int
    swizzle: int
    block: tuple[int, ...]
    is_padded_fp4: bool = False


@dataclass(frozen=True)
class Image:
    """A kernel variant compiled for one architecture, and what a launch of it needs."""

    arch: Arch
    # Of AMD's the hsaco.
    cubin: bytes
    function: str
    num_warps: int
    shared: int = 0
    ptx: str = ""
    global_scratch_size: int = 0
    global_scratch_align: int = 1
    profile_scratch_size: int = 0
    num_ctas: int = 1
    cooperative: bool = False
    registers: int = 0
    spills: int = 0
    # Programmatic dependent launch, Triton's `launch_pdl`.
    pdl: bool = False
    # One per tensor descriptor; none where the kernel takes addresses, sizes and strides instead.
    maps: tuple[TensorMap, ...] = ()
    # How many flags such a kernel takes with them.
    descriptor_flags: int = 2


@dataclass(frozen=True)
class Kernel:
    """A kernel variant: `key` names it among the library's, and in `Variant.kernel`.

    `types` holds one entry per run-time parameter in order, as in the variants that use it;
    `images` holds one per architecture it is needed on.
    """

    key: str
    name: str
    location: Place
    types: tuple[str, ...]
    constants: tuple[tuple[str, str], ...]
    images: tuple[Image, ...] = ()
    # Which parameters are assumed to be multiples of 16, in order of `types`.
    divisible: tuple[int, ...] = ()
    # Module and qualified name, by which the tests' stand-in finds the Python function.
    qualified_name: str = ""
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Library:
    """All that is written out."""

    name: str
    ops: tuple[Op, ...]
    kernels: tuple[Kernel, ...]
    archs: tuple[Arch, ...]
    versions: tuple[tuple[str, str], ...] = ()
    # By file name, the Triton source of kernels that opforge wrote for torch calls.
    sources: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


# How kernels stand in the manifest: of an image, all but its bytes.


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
    """Raises `BadField` for what `codegen.sources` does not write."""
    kernels: tuple[BuiltKernel, ...] = each(manifest, "kernels", _read)
    return kernels


def _read(content: Any) -> BuiltKernel:
    return BuiltKernel(KERNEL.read(content), each(content, "images", _BUILT_IMAGE.read))
