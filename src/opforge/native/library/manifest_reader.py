"""Reads the manifest that `codegen.manifest` writes, each part when somebody asks for it.

A loaded library's first call waits for this module, and needs names and schemas only: records
take milliseconds to import.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..ir.cases import Case
    from ..ir.interface import Op


class Manifest:
    """What is in a library; `content` is the JSON."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.content: dict[str, Any] = json.loads(text)
        self.format = self.content.get("format")
        self.archs: tuple[str, ...] = tuple(self.content.get("archs", ()))
        self.ops = tuple(ManifestOp(op) for op in self.content["ops"])

    def runs_on(self, major: int, minor: int) -> bool:
        """Whether a GPU of this compute capability has kernels here.

        It runs images of its major version and at most its minor one, and older PTX. Images for
        sm_90a run on nothing else.
        """
        kernels = self.content["kernels"]
        images = [image for kernel in kernels for image in kernel["images"]]
        return not kernels or any(_image_runs_on(image, major, minor) for image in images)


class ManifestOp:
    """An operator of a library."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content
        self.name: str = content["name"]
        # The C function.
        self.function: str = content["function"]
        # Formats before this one had fewer keys.
        self.torch_name: str = content.get("torch_name", "")
        self.location: str = content.get("location", "")
        # Empty for a function that is not a torch operator.
        self.schema: str = content.get("schema", "")
        self.has_backward = bool(content.get("formula"))

    @functools.cached_property
    def op(self) -> Op:
        """The record that was written, without its cases."""
        from ..ir.op_codec import OP

        record: Op = OP.read(self._content)
        return record

    @functools.cached_property
    def cases(self) -> tuple[Case, ...]:
        from ..ir.case_codec import CASE

        return tuple(CASE.read(case) for case in self._content["cases"])


def _image_runs_on(image: dict[str, Any], major: int, minor: int) -> bool:
    name = image["arch"].removeprefix("sm_")
    digits = name.rstrip("af")
    arch = (int(digits[:-1]), int(digits[-1]))
    if arch == (major, minor):
        return True
    if name != digits:
        return False
    is_older_minor = arch[0] == major and arch[1] < minor
    return is_older_minor or bool(image["ptx_sha256"] and arch <= (major, minor))
