"""From the command's arguments to reports: folders of builds, and what was written beside them.

dist served.json tuning.json            one report
dist before.json build-2 after.json     two, to be compared: a file belongs to the folder before it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadOption
from ..records import BadField, Codecs, shown
from ..serving import report as served_report
from ..tuning import table as tables
from .builds import is_built, read_builds
from .model import NUMBERS, STATUSES, Checked, Launched, Report, Timed, from_content

Adder = Callable[[Report, Any, str], Report]


def read_all(sources: Sequence[str]) -> list[Report]:
    """One report, or two of which the second is the newer."""
    # By path, the content of files; those before the first build belong to it.
    groups: list[dict[Path, Any]] = [{}]
    builds: list[str] = []
    for path in map(Path, sources):
        if not path.exists():
            raise BadOption(
                f"there is no {path}", fix="give a folder of `opforge build`, or a file"
            )
        content = None if is_built(path) else _json(path)
        if is_built(path) or _is_report(content):
            builds.append(str(path))
            if len(builds) > 1:
                groups.append({})
        groups[-1][path] = content
    if len(builds) > 2:
        raise BadOption(
            f"{len(builds)} builds cannot be compared with one another",
            found=", ".join(builds),
            fix="give one, or two: the old one and the new one",
        )
    return [_read(group) for group in groups]


def _read(contents: dict[Path, Any]) -> Report:
    report = Report("")
    # The build first, whatever stands before it.
    for path, content in sorted(contents.items(), key=lambda item: not _is_report(item[1])):
        if is_built(path):
            report = replace(report, builds=read_builds(path))
        else:
            report = _adder(path, content)(report, content, str(path))
    return replace(report, source=", ".join(map(str, contents)))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        fix = _FILES if path.suffix != ".whl" else "give the folder that the wheel was made from"
        raise BadOption(f"{path} is not JSON: {error}", fix=fix) from None


def _is_report(content: Any) -> bool:
    return isinstance(content, dict) and "opforge_report" in content


def _adder(path: Path, content: Any) -> Adder:
    keys = set(content) if isinstance(content, dict) else set()
    for needed, add in _ADDERS:
        if needed <= keys:
            return add
    found = f"an object with {', '.join(sorted(keys)[:8])}" if keys else shown(content)
    raise BadOption(f"{path} has nothing that a report shows", found=found, fix=_FILES)


def _add_report(_: Report, content: Any, where: str) -> Report:
    return from_content(content, where)


def _add_served(report: Report, content: Any, where: str) -> Report:
    served = served_report.from_content(content, where)
    kernels = {kernel.kernel: kernel for kernel in report.launched or ()}
    for name, count in served.launches.items():
        kernel = kernels.get(name, Launched(name))
        general = kernel.general + served.general.get(name, 0)
        kernels[name] = replace(kernel, served=kernel.served + count, general=general)
    for (name, reason), count in served.handed_over.items():
        kernel = kernels.get(name, Launched(name))
        reasons = tuple(dict.fromkeys((*kernel.reasons, reason)))
        kernels[name] = replace(kernel, by_triton=kernel.by_triton + count, reasons=reasons)
    return replace(report, launched=tuple(kernels[name] for name in sorted(kernels)))


def _add_tuning(report: Report, content: Any, where: str) -> Report:
    report.tuning.update(tables.parse(json.dumps(content), where))
    return report


class _Row(NamedTuple):
    name: str
    status: str
    reason: str = ""
    fix: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


class _Check(NamedTuple):
    """What `opforge check --json` prints of one operator."""

    op: str
    rows: tuple[_Row, ...]


class _Problem(NamedTuple):
    """An operator that could not be checked."""

    name: str
    message: str


class _Checks(NamedTuple):
    """What it prints of many."""

    reports: tuple[_Check, ...]
    problems: tuple[_Problem, ...] = ()


class _Times(NamedTuple):
    """What `benchmarks/ops.py --json` writes: see docs/how-to/report.md."""

    rows: tuple[Timed, ...]
    device: str = ""


_CODECS = Codecs(
    {
        _Row: "name status reason? fix? seconds? notes?",
        _Check: "op rows",
        _Problem: "name message",
        _Checks: "reports problems?",
        Timed: "op microseconds dtype? device?",
        _Times: "rows device?",
    },
    NUMBERS,
    {_Row: {"status": STATUSES}},
)


def _add_check(report: Report, content: Any, where: str) -> Report:
    try:
        if "reports" in content:
            checks: _Checks = _CODECS.of(_Checks).read(content)
        else:
            checks = _Checks((_CODECS.of(_Check).read(content),))
    except BadField as error:
        raise BadOption(
            f"{where} cannot be read", found=str(error), fix="write it with `opforge check --json`"
        ) from None
    rows = [Checked(check.op, *row) for check in checks.reports for row in check.rows]
    rows += [Checked(name, "check", "fail", message) for name, message in checks.problems]
    if not rows:
        # Nothing that failed would look like a pass.
        raise BadOption(
            f"{where} has no row of a check",
            fix="write it with `opforge check --json`, of operators",
        )
    return replace(report, checked=(*(report.checked or ()), *rows))


def _add_times(report: Report, content: Any, where: str) -> Report:
    try:
        times: _Times = _CODECS.of(_Times).read(content)
    except BadField as error:
        raise BadOption(
            f"{where} has no measured times", found=str(error),
            fix='write {"rows": [{"op": "silu", "dtype": "bf16", "microseconds": {"op": 21.4}}]}',
        ) from None  # fmt: skip
    rows = [replace(row, device=row.device or times.device) for row in times.rows]
    return replace(report, times=(*report.times, *rows))


def _refuse_recording(_report: Report, _content: Any, where: str) -> Report:
    raise BadOption(
        f"{where} is a recording, of which nothing is compiled yet",
        fix=f"build it with `opforge build {where} -o kernels`, and give that folder",
    )


# By the keys that tell what wrote a file, the first that has them all.
_ADDERS: tuple[tuple[set[str], Adder], ...] = (
    ({"opforge_report"}, _add_report),
    ({"served_format"}, _add_served),
    ({"kernels", "processes"}, _refuse_recording),
    ({"kernels"}, _add_tuning),
    ({"reports"}, _add_check),
    ({"outcome", "rows"}, _add_check),
    ({"rows"}, _add_times),
)
_FILES = (
    "give JSON of `opforge serve --counts`, `opforge.served().to_json()`, `opforge tune`, `opforge "
    "check --json`, measured times, or `opforge report --json`"
)
