"""What a report holds, what it comes to, and its JSON.

Everything is read from files, and nothing is measured or compiled: torch is not imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .. import __version__
from ..errors import BadOption
from ..records import BadField, Codecs, JsonCodec
from ..tuning.table import TuningTable, parse

FORMAT = 1
LIBRARY, SERVED = "library", "served"


def listed(pairs: Iterable[tuple[str, object]]) -> str:
    """`m=16, n=4096`."""
    return ", ".join(f"{name}={value}" for name, value in pairs)


@dataclass(frozen=True)
class ReportedImage:
    """A variant compiled for one architecture.

    `registers` is 0, and `spills` says nothing, where the image has no record of them.
    """

    arch: str
    registers: int
    spills: int
    shared: int
    bytes: int
    num_warps: int


@dataclass(frozen=True)
class ReportedVariant:
    """A kernel in one of its compiled forms.

    `types` says what each argument must be: `*fp16`, `i32:16` for a multiple of 16. `lacks` are the
    architectures of the build that it has no image for, although launches may need one.
    """

    kernel: str
    location: str
    types: tuple[str, ...]
    constants: Mapping[str, str]
    options: Mapping[str, str]
    images: tuple[ReportedImage, ...]
    operators: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kernel}({', '.join(filter(None, (*self.types, self.constants_text)))})"

    @property
    def constants_text(self) -> str:
        """`BLOCK=64, num_warps=4`."""
        return listed((*self.constants.items(), *self.options.items()))


@dataclass(frozen=True)
class ReportedCase:
    """`paths` are those that are built; `uncovered` says where there is none, and why.

    `raises` is the same for sizes that the body itself refuses.
    """

    case: str
    paths: int
    uncovered: tuple[str, ...] = ()
    raises: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportedOperator:
    """An operator of a library."""

    name: str
    torch_name: str
    schema: str
    location: str
    doc: str
    covers: str
    cases: tuple[ReportedCase, ...]


@dataclass(frozen=True)
class Build:
    """A library, or a folder of served kernels.

    `bytes` is the size of libNAME.so, or of the images and the extension that serves them; of a
    library that was not compiled, of its images.
    """

    kind: str
    name: str
    archs: tuple[str, ...]
    bytes: int
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    operators: tuple[ReportedOperator, ...]
    variants: tuple[ReportedVariant, ...]


@dataclass(frozen=True)
class Gap:
    """A call that a build does not cover; `launches` is how often one was seen."""

    what: str
    why: str
    launches: int = 1


@dataclass(frozen=True)
class Launched:
    """Launches of a kernel: served, those of them by a general variant, and by Triton."""

    kernel: str
    served: int = 0
    general: int = 0
    by_triton: int = 0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timed:
    """Measured times of one operator, in microseconds, by what was measured: `op`, `torch`."""

    op: str
    microseconds: Mapping[str, float]
    dtype: str = ""
    device: str = ""


@dataclass(frozen=True)
class Checked:
    """A row of a check of one operator; an operator that could not be checked has one row."""

    op: str
    row: str
    status: str
    reason: str = ""
    fix: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """All that is known of one state of a project.

    `launched` and `checked` are None where nobody has looked, which is not the same as nothing.
    """

    source: str
    builds: tuple[Build, ...] = ()
    launched: tuple[Launched, ...] | None = None
    tuning: TuningTable = field(default_factory=TuningTable)
    times: tuple[Timed, ...] = ()
    checked: tuple[Checked, ...] | None = None

    @property
    def images(self) -> list[tuple[ReportedVariant, ReportedImage]]:
        variants = [variant for build in self.builds for variant in build.variants]
        return [(variant, image) for variant in variants for image in variant.images]

    @property
    def has_launches(self) -> bool:
        """Whether any launch was counted; counts of a program that made none tell nothing."""
        return any(kernel.served + kernel.by_triton for kernel in self.launched or ())

    @property
    def knows_coverage(self) -> bool:
        """Of served kernels, only launches tell."""
        if self.launched is not None:
            return self.has_launches
        return bool(self.builds) and all(build.kind == LIBRARY for build in self.builds)

    @property
    def gaps(self) -> list[Gap]:
        """Paths that a library refuses, images that it lacks, and launches that were Triton's."""
        paths = [
            Gap(f"{operator.name}, {case.case}", text)
            for build in self.builds
            for operator in build.operators
            for case in operator.cases
            for text in case.uncovered
        ]
        images = [
            Gap(f"{variant} {arch}", "it has no image for this architecture")
            for build in self.builds
            for variant in build.variants
            for arch in variant.lacks
        ]
        launches = [
            Gap(kernel.kernel, "; ".join(kernel.reasons), kernel.by_triton)
            for kernel in self.launched or ()
            if kernel.by_triton
        ]
        return [*paths, *images, *launches]

    def totals(self) -> dict[str, int]:
        """The numbers at the top of the page, each with the name that JSON has for it."""
        numbers = {}
        if self.builds:
            operators = [operator for build in self.builds for operator in build.operators]
            images = [image for _, image in self.images]
            numbers = {
                "operators": len(operators),
                "cases": sum(len(operator.cases) for operator in operators),
                "variants": sum(len(build.variants) for build in self.builds),
                "images": len(images),
                "bytes": sum(build.bytes for build in self.builds),
                "registers": max((image.registers for image in images), default=0),
                "shared": max((image.shared for image in images), default=0),
                "spilling": sum(image.spills > 0 for image in images),
            }
        if self.knows_coverage:
            numbers["uncovered"] = sum(gap.launches for gap in self.gaps)
        if self.launched is not None:
            numbers["launches"] = sum(k.served + k.by_triton for k in self.launched)
        if self.has_launches:
            numbers["general"] = sum(kernel.general for kernel in self.launched or ())
        if len(self.tuning):
            numbers["tuned"] = len(self.tuning)
        if self.checked is not None:
            numbers["checks"] = len(self.checked)
            numbers["failed"] = sum(row.status == "fail" for row in self.checked)
        return numbers

    def to_content(self) -> dict[str, Any]:
        """JSON, which `from_content` reads."""
        content: dict[str, Any] = _REPORT.write(self)
        return {"opforge_report": FORMAT, "opforge": __version__, **content}


def from_content(content: Any, where: str) -> Report:
    """A report from its JSON; errors call it `where`."""
    version = content.get("opforge_report")
    if version != FORMAT:
        raise BadOption(
            f"{where} has format {version!r}, but this opforge reads {FORMAT}", fix=_AGAIN
        )
    try:
        report: Report = _REPORT.read(content)
    except BadField as error:
        raise BadOption(f"{where} cannot be read", found=str(error), fix=_AGAIN) from None
    return report


_AGAIN = "write it again with `opforge report FOLDER -o report.json`"


def _read_table(content: Any) -> TuningTable:
    return parse(json.dumps(content), "the tuning table in the report")


_RECORDS = (
    *(ReportedImage, ReportedVariant, ReportedCase, ReportedOperator, Build),
    *(Launched, Timed, Checked, Report),
)
_REPORT = Codecs(
    {kind: " ".join(field.name for field in fields(kind)) for kind in _RECORDS},
    {
        TuningTable: JsonCodec(lambda table: json.loads(table.to_json()), _read_table),
    },
).of(Report)
