"""What a native library is made of, between tracing and C.

Tracing fills a `Path` for every way through an op's body, and compiling gives each kernel variant
its images. Sources, headers and the manifest are written from this alone, so the same program
always gives the same files. Plain data: it can be pickled and printed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...arch import Arch
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
