"""Compiled kernels as a manifest has them: images, and the jitted functions that they serve.

Named tuples, because a dataclass takes a millisecond to define, and a served program waits for it.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from ...arch import Arch
from ...records import Codecs, JsonCodec, as_text


class TensorMap(NamedTuple):
    """What a compiled kernel expects of a descriptor's tensor map, in CUDA's numbers."""

    element: int
    # In bytes; of two 4-bit numbers in a byte, that byte's.
    element_size: int
    swizzle: int
    block: tuple[int, ...]
    is_padded_fp4: bool = False


class Image(NamedTuple):
    """A kernel variant compiled for one architecture, and what a launch of it needs.

    A manifest has sizes and hashes in place of `cubin` and `ptx`, which what is read of it lacks.
    """

    arch: Arch
    function: str
    num_warps: int
    shared: int = 0
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
    size: int = 0
    sha256: str = ""
    # Of the PTX that it was made from, if that is in the library, too.
    ptx_sha256: str | None = None
    # Of AMD's the hsaco.
    cubin: bytes = b""
    ptx: str = ""

    def holding(self, cubin: bytes, ptx: str = "") -> Image:
        """The same with these contents."""
        return self._replace(
            cubin=cubin,
            ptx=ptx,
            size=len(cubin),
            sha256=hashlib.sha256(cubin).hexdigest(),
            ptx_sha256=hashlib.sha256(ptx.encode()).hexdigest() if ptx else None,
        )


def image_file(key: str, arch: Arch) -> str:
    """Where the image of a kernel is in a folder that is served."""
    return f"images/{key}.{arch}.{'hsaco' if arch.is_amd else 'cubin'}"


class Choice(NamedTuple):
    """The configuration that an autotuner chose for a key, `{"n": 4096}`."""

    key: tuple[tuple[str, Any], ...]
    dtypes: tuple[str, ...]
    config: tuple[tuple[str, Any], ...]
    arch: str


class ServedVariant(NamedTuple):
    """`types` has an entry per parameter that is not a constexpr; `kernel` is the key of one.

    "p16", "i32:16", "1", "none", or "d" of a tensor descriptor.
    """

    types: tuple[str, ...]
    kernel: str


class ServedInstance(NamedTuple):
    """Constants, the kinds of the other arguments, and launch options.

    Kinds are "*fp32", "int", "none", or Triton's "tensordesc<fp16[64, 32]>". If some of the
    arguments are tuples, their items stand in place of them, and `names` has `xs.0` and `xs.1`.
    `variants` stand in the order in which a launch tries them.
    """

    constants: tuple[tuple[str, Any], ...]
    kinds: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]
    variants: tuple[ServedVariant, ...]
    names: tuple[str, ...] = ()


class ServedFunction(NamedTuple):
    """A jitted function, by its module, name and the hash of its source."""

    module: str
    name: str
    source: str
    location: str
    instances: tuple[ServedInstance, ...]
    choices: tuple[Choice, ...] = ()


def _of_image(name: str) -> Arch:
    """`sm_90a`, which an image for sm_90 runs on alone."""
    return Arch.named(name if name.startswith("gfx") else name.rstrip("af"))


CODECS = Codecs(
    {
        Image: "arch function bytes=size sha256 ptx_sha256 num_warps num_ctas shared cooperative "
        "pdl global_scratch_size global_scratch_align profile_scratch_size registers spills maps? "
        "descriptor_flags?",
        TensorMap: "element element_size swizzle block is_padded_fp4",
        ServedFunction: "module name source location instances choices",
        ServedInstance: "constants kinds options variants names?",
        ServedVariant: "types kernel",
        Choice: "key dtypes config arch",
    },
    {Arch: JsonCodec(lambda arch: arch.built_name, as_text(_of_image, "an architecture").read)},
)
