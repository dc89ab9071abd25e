"""What a folder of served kernels holds, and its JSON.

Named tuples, because a dataclass takes a millisecond to define, and programs wait for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ..arch import Arch
from ..errors import NotServable
from ..recording.constants import RecordedChoice
from ..records import BadField, Codecs, as_text

# Another one wherever the extension or what it is given changes.
FORMAT = 9
NAME = "manifest.json"
# The module of the C extension; its file adds `.abi3.so`.
EXTENSION = "_opforge_served"
AGAIN = "build it again with `opforge build launches.json`"

# Types of integers and of other numbers that a launch of the JIT has.
INTEGERS = ("i32", "i64", "u64")
OTHERS = ("fp32", "u1")
# Those that it has by an annotation alone, but Inductor's launches have anyway.
PRINTED = ("i8", "i16", "u8", "u16", "u32", "fp64")
# How a variant takes a tensor descriptor, whose kind is Triton's type: "tensordesc<fp16[64, 32]>".
DESCRIPTOR = "d"


def kind_of(type_name: str) -> str:
    """`"i64"` -> `"int"`: what tells instances apart; pointers and others as they are."""
    if type_name == "fp64":
        return "fp32"
    return "int" if type_name in (*INTEGERS, *PRINTED) else type_name


class ServedMap(NamedTuple):
    """What an image expects of a descriptor's tensor map, in CUDA's numbers."""

    element: int
    element_size: int
    swizzle: int
    block: tuple[int, ...]
    is_padded_fp4: bool


class ServedImage(NamedTuple):
    """A variant compiled for one architecture; `file` is its place in the folder."""

    arch: Arch
    file: str
    size: int
    symbol: str
    num_warps: int
    shared: int
    num_ctas: int
    cooperative: bool
    pdl: bool
    scratch_size: int
    scratch_align: int
    # One per tensor descriptor; none where it takes addresses, sizes, strides and flags instead.
    maps: tuple[ServedMap, ...] = ()
    descriptor_flags: int = 2


class ServedVariant(NamedTuple):
    """`types` has an entry per parameter that is not a constexpr.

    "p16", "i32:16", "1", "none", or "d" of a tensor descriptor.
    """

    types: tuple[str, ...]
    images: tuple[ServedImage, ...]


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


class ServedKernel(NamedTuple):
    """A jitted function, by its module, name and the hash of its source."""

    module: str
    name: str
    source: str
    location: str
    instances: tuple[ServedInstance, ...]
    choices: tuple[RecordedChoice, ...] = ()


class Manifest(NamedTuple):
    """A folder's kernels, the architectures of their images, and the Triton that made them.

    `settings` are the variables that were set when it was built and change what Triton compiles.
    """

    archs: tuple[Arch, ...]
    triton: str
    kernels: tuple[ServedKernel, ...]
    settings: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> str:
        content = {"format": FORMAT, **_CODECS.of(Manifest).write(self)}
        return json.dumps(content, indent=1) + "\n"


_CODECS = Codecs(
    {
        ServedImage: (
            "arch file size symbol num_warps shared num_ctas cooperative pdl "
            "scratch_size scratch_align maps? descriptor_flags?"
        ),
        ServedMap: "element element_size swizzle block is_padded_fp4",
        ServedVariant: "types images",
        ServedInstance: "constants kinds options variants names?",
        ServedKernel: "module name source location instances choices",
        RecordedChoice: "key dtypes config arch",
        Manifest: "triton settings archs kernels",
    },
    {Arch: as_text(Arch.named, "an architecture")},
)


def read(folder: Path, text: bytes | None = None) -> Manifest:
    """The manifest of a folder, or from what was read of it before; raises `NotServable`."""
    path = folder / NAME
    try:
        content = json.loads(path.read_bytes() if text is None else text)
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise BadField(f"is {found!r}, but this opforge reads {FORMAT}", "format")
        manifest: Manifest = _CODECS.of(Manifest).read(content)
    except OSError as error:
        if any(folder.glob(f"share/*/{NAME}")):
            raise NotServable(
                f"{folder} is a C library of operators, not recorded kernels",
                fix="open it in the program with opforge.load; to serve a program's own launches, "
                "record it: `opforge record -o launches.json -- python program.py`, then "
                "`opforge build launches.json`",
            ) from None
        raise NotServable(f"{folder} has no {NAME}: {error.strerror}", fix=AGAIN) from None
    except (ValueError, RecursionError) as error:
        raise NotServable(f"{path} cannot be read", found=str(error), fix=AGAIN) from None
    return manifest
