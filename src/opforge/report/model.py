"""What a report holds, as records and as JSON.

Everything is read from files, and nothing is measured or compiled: torch is not imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import __version__
from ..errors import BadOption
from ..records import BadField, Between, Codecs, JsonCodec
from ..tuning.table import TuningTable, parse

FORMAT = 1
LIBRARY, SERVED = "library", "served"


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
        given = [*self.constants.items(), *self.options.items()]
        inner = ", ".join([*self.types, *(f"{name}={value}" for name, value in given)])
        return f"{self.kernel}({inner})"


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

    def to_content(self) -> dict[str, Any]:
        """JSON, which `from_content` reads."""
        head = {"opforge_report": FORMAT, "opforge": __version__}
        content: dict[str, Any] = _REPORT.write(self)
        return {**head, **content}


def from_content(content: Any, where: str) -> Report:
    """A report from its JSON; errors call it `where`."""
    found = content.get("opforge_report")
    if found != FORMAT:
        raise BadOption(
            f"{where} has format {found!r}, but this opforge reads {FORMAT}", fix=_AGAIN
        )
    try:
        report: Report = _REPORT.read(content)
    except BadField as error:
        raise BadOption(f"{where} cannot be read", found=str(error), fix=_AGAIN) from None
    return report


_AGAIN = "write it again with `opforge report FOLDER -o report.json`"


def _read_table(content: Any) -> TuningTable:
    return parse(json.dumps(content), "the tuning table in the report")


_COUNT = Between(0, 2**63 - 1)
_TABLE = JsonCodec(lambda table: json.loads(table.to_json()), _read_table)
_REPORT = Codecs(
    {
        ReportedImage: "arch registers spills shared bytes num_warps",
        ReportedVariant: "kernel location types constants options operators lacks images",
        ReportedCase: "case paths uncovered raises",
        ReportedOperator: "name torch_name schema location doc covers cases",
        Build: "kind name archs bytes versions notes operators variants",
        Launched: "kernel served general by_triton reasons",
        Timed: "op dtype device microseconds",
        Checked: "op row status reason fix seconds notes",
        Report: "source builds launched tuning times checked",
    },
    {TuningTable: _TABLE},
    {
        ReportedImage: dict.fromkeys(
            ("registers", "spills", "shared", "bytes", "num_warps"), _COUNT
        ),
        ReportedCase: {"paths": _COUNT},
        Build: {"kind": frozenset({LIBRARY, SERVED}), "bytes": _COUNT},
        Launched: dict.fromkeys(("served", "general", "by_triton"), _COUNT),
        Timed: {"microseconds": Between(0, 10**15)},
        Checked: {"status": frozenset({"pass", "fail", "skipped"}), "seconds": Between(0, 10**9)},
    },
).of(Report)
