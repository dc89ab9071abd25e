"""What a native library or a folder that is served is made of, between tracing and C.

Tracing fills a `Path` for every way through an op's body, and compiling gives each kernel variant
its images. Sources, headers and the manifest are written from this alone, so the same program
always gives the same files. Plain data: it can be pickled and printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...arch import Arch
from ...notebook import counted, html_table
from ...records import Codecs
from .interface import Op
from .kernel_request import Requests
from .kernels import CODECS, Image, ServedFunction
from .places import Place

Archs = tuple[Arch, ...]


@dataclass
class Plan:
    """What a build will make: operators with their paths or functions to be served, and kernels.

    Of `spare` kernels, those for all sizes, one that does not compile is dropped.
    """

    name: str
    ops: list[Op]
    archs: Archs
    requests: Requests = field(default_factory=dict)
    spare: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    functions: list[ServedFunction] = field(default_factory=list)
    settings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        variants = counted(self._variants, "kernel variant")
        return f"<Plan of {self.name}: {counted(len(self.ops), 'operator')}, {variants} to compile>"

    def _repr_html_(self) -> str:
        title = f"{self.name}: {counted(self._variants, 'kernel variant')} to compile"
        return html_table(title, OP_COLUMNS, op_rows(self.ops))

    @property
    def _variants(self) -> int:
        return sum(len(archs) for _, archs in self.requests.values())


OP_COLUMNS = ("operator", "parameters", "cases", "location")


def op_rows(ops: Sequence[Op]) -> list[tuple[str, ...]]:
    """Operators as rows of a table."""
    return [
        (op.name, ", ".join(p.name for p in op.params), str(len(op.cases)), op.location)
        for op in ops
    ]


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
    archs: Archs
    versions: tuple[tuple[str, str], ...] = ()
    # By file name, the Triton source of kernels that opforge wrote for torch calls.
    sources: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    # The jitted functions whose launches the kernels serve, and the variables that were set and
    # change what Triton compiles.
    functions: tuple[ServedFunction, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()


# How a kernel stands in the manifest.
KERNEL = Codecs(
    {Kernel: "key name qualified_name location types constants divisible options images"},
    {Image: CODECS.of(Image)},
).of(Kernel)
