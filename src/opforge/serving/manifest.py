"""The manifest of a folder that is served, and the words in which it tells types."""

from __future__ import annotations

from collections.abc import KeysView
from pathlib import Path

from ..errors import NotALibrary, NotServable
from ..native.ir.abi import MANIFEST_FORMAT, SERVED_ABI
from ..native.ir.kernels import CODECS, Image, ServedFunction
from ..native.library.manifest_reader import Manifest, reading
from ..records import each, field

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


class ServedManifest(Manifest):
    """A folder's functions, and the keys of its kernels, whose images are read when one is used."""

    def __init__(self, text: bytes, whose: str) -> None:
        super().__init__(text, whose)
        self.abi = self.content.get("abi")
        if (self.format, self.abi) != (MANIFEST_FORMAT, SERVED_ABI):
            raise NotServable(
                f"{whose} has format {self.format}, ABI {self.abi}, but this opforge reads format "
                f"{MANIFEST_FORMAT}, ABI {SERVED_ABI}",
                fix=AGAIN,
            )
        self.functions: tuple[ServedFunction, ...] = self.listed(
            "functions", CODECS.of(ServedFunction).read
        )
        self._kernels = dict(self.listed("kernels", lambda one: (field(one, "key", str), one)))
        with reading(whose):
            settings = field(self.content, "settings", dict)
        # The variables that were set when it was built and change what Triton compiles.
        self.settings: tuple[tuple[str, str], ...] = tuple(settings.items())

    @property
    def keys(self) -> KeysView[str]:
        return self._kernels.keys()

    def images(self, key: str) -> tuple[Image, ...]:
        images: tuple[Image, ...] = each(self._kernels[key], "images", CODECS.of(Image).read)
        return images


def read(folder: Path, text: bytes | None = None) -> ServedManifest:
    """The manifest of a folder, or from what was read of it before; raises `NotServable`."""
    path = folder / NAME
    try:
        return ServedManifest(path.read_bytes() if text is None else text, str(path))
    except NotALibrary as error:
        raise NotServable(f"{path} cannot be read", found=error.found, fix=AGAIN) from None
    except OSError as error:
        if any(folder.glob(f"share/*/{NAME}")):
            raise NotServable(
                f"{folder} is a C library of operators, not recorded kernels",
                fix="open it in the program with opforge.load; to serve a program's own launches, "
                "record it: `opforge record -o launches.json -- python program.py`, then "
                "`opforge build launches.json`",
            ) from None
        raise NotServable(f"{folder} has no {NAME}: {error.strerror}", fix=AGAIN) from None
