"""Reads the manifest that `codegen.sources` writes, each part when somebody asks for it.

A loaded library's first call waits for this module, and needs names and schemas only: records
take milliseconds to import.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...records import BadField, each, field

if TYPE_CHECKING:
    from ..ir.cases import Case
    from ..ir.interface import Op


class Manifest:
    """What is in a library or a served folder; `content` is the JSON.

    What cannot be read raises `NotALibrary`.
    """

    def __init__(self, text: bytes, whose: str = "a library") -> None:
        self.text = text
        self._whose = whose
        with reading(whose):
            self.content: dict[str, Any] = json.loads(text)
            # Nothing else of another format need be as it is here.
            self.format: int | None = field(self.content, "format", int, None)

    @functools.cached_property
    def archs(self) -> tuple[str, ...]:
        with reading(self._whose):
            archs: list[str] = field(self.content, "archs", list, [])
            return tuple(archs)

    @functools.cached_property
    def ops(self) -> tuple[ManifestOp, ...]:
        with reading(self._whose):
            read = functools.partial(ManifestOp, whose=self._whose)
            ops: tuple[ManifestOp, ...] = each(self.content, "ops", read)
            for index, op in enumerate(ops):
                op.place = f"ops[{index}]"
            return ops

    def listed(self, key: str, read: Callable[[Any], Any]) -> tuple[Any, ...]:
        """The records in a list, such as that of `kernels`."""
        with reading(self._whose):
            records: tuple[Any, ...] = each(self.content, key, read)
            return records

    def runs_on(self, arch: Any) -> bool:
        """Whether a GPU of this architecture, an `opforge.arch.Arch`, has kernels here.

        NVIDIA's runs images of its major version and at most its minor one, and older PTX. Images
        for sm_90a run on nothing else, and neither do those for an AMD GPU.
        """
        with reading(self._whose):
            # Not with records: see above.
            kernels = each(self.content, "kernels", lambda k: each(k, "images", _image))
        images = [image for images in kernels for image in images]
        return not kernels or any(_runs_on(image, arch) for image in images)


class ManifestOp:
    """An operator of a library."""

    place = "op"

    def __init__(self, content: dict[str, Any], whose: str = "a library") -> None:
        self._content = content
        self.whose = whose
        self.name: str = field(content, "name", str)
        # The C function.
        self.function: str = field(content, "function", str)
        # Formats before this one had fewer keys.
        self.torch_name: str = field(content, "torch_name", str, "")
        self.location: str = field(content, "location", str, "")
        # Empty for a function that is not a torch operator.
        self.schema: str = field(content, "schema", str, "")
        self.has_backward = bool(field(content, "formula", list, []))

    @functools.cached_property
    def op(self) -> Op:
        """The record that was written, without its cases."""
        from ..ir.interface import OP

        with reading(self.whose, self.place):
            record: Op = OP.read(self._content)
        return record

    @functools.cached_property
    def covers(self) -> tuple[str, ...]:
        """By implementation: what it takes and where it is not built, in words."""
        with reading(self.whose, self.place):
            texts: tuple[str, ...] = each(
                self._content, "implementations", lambda one: field(one, "guards", str)
            )
        return texts

    @functools.cached_property
    def cases(self) -> tuple[Case, ...]:
        from ..ir.cases import CASE

        with reading(self.whose, self.place):
            cases: tuple[Case, ...] = each(self._content, "cases", CASE.read)
        return cases


def _image(content: Any) -> tuple[str, bool]:
    """Its architecture, and whether it has PTX."""
    arch: str = field(content, "arch", str)
    return arch, bool(field(content, "ptx_sha256", str | None, None))


def as_asked(image: str) -> str:
    """`sm_90a`, which an image is for, as `opforge build --arch` has it: `sm_90`."""
    return image if image.startswith("gfx") else image.rstrip("af")


def _runs_on(image: tuple[str, bool], device: Any) -> bool:
    arch, has_ptx = image
    if device.is_amd or arch.startswith("gfx"):
        return arch == f"{device}"
    major, minor = device.capability
    name = arch.removeprefix("sm_")
    digits = name.rstrip("af")
    found = (int(digits[:-1]), int(digits[-1]))
    if found == (major, minor):
        return True
    if name != digits:
        return False
    is_older_minor = found[0] == major and found[1] < minor
    return is_older_minor or (has_ptx and found <= (major, minor))


@contextlib.contextmanager
def reading(whose: str, place: str = "") -> Iterator[None]:
    """Tell what is wrong with the manifest, wherever it came from."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        from ...errors import NotALibrary

        told = error.below(place) if isinstance(error, BadField) and place else error
        why = "it is nested too deeply" if isinstance(error, RecursionError) else told
        what = f"the manifest of {whose} cannot be read"
        raise NotALibrary(what, found=str(why), fix="build the library again") from None
