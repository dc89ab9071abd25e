"""From the command's arguments to reports: folders of builds, and what was written beside them.

dist served.json tuning.json            one report
dist before.json build-2 after.json     two, to be compared: a file belongs to the folder before it

Builds may be for any machine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadOption, NotALibrary
from ..native.ir.case_text import conditions, describe
from ..native.ir.cases import Case, Launch
from ..native.ir.program import KERNEL, Kernel
from ..native.library.manifest_reader import Manifest, ManifestOp
from ..native.library.shared_library import refuse_other_format
from ..records import BadField, Codecs, each, field, shown
from ..serving import manifest as served_manifests
from ..serving import report as served_report
from ..tuning import table as tables
from .model import (
    LIBRARY,
    SERVED,
    Build,
    Checked,
    Launched,
    Report,
    ReportedCase,
    ReportedImage,
    ReportedOperator,
    ReportedVariant,
    Timed,
    from_content,
)

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
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        fix = _FILES if path.suffix != ".whl" else "give the folder that the wheel was made from"
        raise BadOption(f"{path} is not JSON: {error}", fix=fix) from None


def _refuse_constant(name: str) -> None:
    """Python reads nan and infinity, which are not JSON."""
    raise ValueError(f"it has {name}")


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


# A row of what `opforge check --json` prints, and one of what `benchmarks/ops.py --json` writes.
_CODECS = Codecs(
    {
        Checked: "op name=row status reason? fix? seconds? notes?",
        Timed: "op microseconds dtype? device?",
    },
)


_STATUSES = ("pass", "fail", "skipped")


def _checked_row(content: Any, op: str) -> Checked:
    named = {**content, "op": op} if isinstance(content, dict) else content
    row: Checked = _CODECS.of(Checked).read(named)
    if row.status not in _STATUSES:
        # It might have failed.
        raise BadField(f"is {row.status!r}, expected one of {', '.join(_STATUSES)}", "status")
    return row


def _add_check(report: Report, content: Any, where: str) -> Report:
    def checked(check: Any) -> tuple[Checked, ...]:
        op = field(check, "op", str)
        rows: tuple[Checked, ...] = each(check, "rows", lambda row: _checked_row(row, op))
        return rows

    def unchecked(problem: Any) -> Checked:
        name, message = field(problem, "name", str), field(problem, "message", str)
        return Checked(name, "check", "fail", message)

    try:
        # Of many operators, or of one.
        checks = each(content, "reports", checked) if "reports" in content else (checked(content),)
        rows = [*itertools.chain(*checks), *each(content, "problems", unchecked, [])]
    except BadField as error:
        raise BadOption(
            f"{where} cannot be read", found=str(error), fix="write it with `opforge check --json`"
        ) from None
    if not rows:
        # Nothing that failed would look like a pass.
        raise BadOption(
            f"{where} has no row of a check",
            fix="write it with `opforge check --json`, of operators",
        )
    return replace(report, checked=(*(report.checked or ()), *rows))


def _add_times(report: Report, content: Any, where: str) -> Report:
    try:
        device = field(content, "device", str, "")
        rows = each(content, "rows", _CODECS.of(Timed).read)
    except BadField as error:
        raise BadOption(
            f"{where} has no measured times", found=str(error),
            fix='write {"rows": [{"op": "silu", "dtype": "bf16", "microseconds": {"op": 21.4}}]}',
        ) from None  # fmt: skip
    rows = tuple(replace(row, device=row.device or device) for row in rows)
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

_MANIFESTS = "share/*/manifest.json"
_FOLDER = "give the folder that `opforge build -o` wrote"


def is_built(path: Path) -> bool:
    """A folder, or the binary of one, which stands for it."""
    return path.is_dir() or path.suffix == ".so"


def read_builds(path: Path) -> tuple[Build, ...]:
    """Every library in a folder, and its served kernels; or what a binary is part of."""
    if not path.is_dir():
        return (_read_binary(path.resolve()),)
    served = _served_in(path)
    builds = [] if served is None else [read_served(served, path.resolve().name)]
    builds += map(read_library, sorted(path.glob(_MANIFESTS)))
    if not builds:
        files = ", ".join(sorted(file.name for file in path.iterdir())[:6])
        raise NotALibrary(
            f"{path} is neither a library nor a folder of served kernels",
            found=f"no {_MANIFESTS} and no manifest.json, but {files or 'nothing'}",
            fix=_FOLDER,
        )
    return tuple(builds)


def _read_binary(binary: Path) -> Build:
    """Of a library, of the adapter for torch beside it, or of served kernels."""
    if (binary.parent / served_manifests.NAME).is_file():
        return read_served(binary.parent, binary.parent.name)
    name = binary.stem.removeprefix("lib")
    folders = [binary.parents[1] / "share" / n for n in (name, name.removesuffix("_torch"))]
    for folder in folders:
        if (folder / "manifest.json").is_file():
            return read_library(folder / "manifest.json")
    raise NotALibrary(
        f"{binary} is not part of a build", found=f"no {folders[0] / 'manifest.json'}", fix=_FOLDER
    )


def read_library(file: Path) -> Build:
    """The build of a manifest, `dist/share/NAME/manifest.json`; the library is not opened."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise NotALibrary(
            f"{file} cannot be read: {error.strerror}", fix="build the library again"
        ) from None
    manifest = Manifest(text, str(file))
    refuse_other_format(manifest, str(file), lambda: "build the library again with this opforge")
    content = manifest.content
    kernels: tuple[Kernel, ...] = manifest.listed("kernels", KERNEL.read)
    launches = [(key, op.name) for op in manifest.ops for key in _launched(op)]
    binary = file.parents[2] / "lib" / f"lib{content['name']}.so"
    return Build(
        kind=LIBRARY,
        name=content["name"],
        archs=manifest.archs,
        bytes=binary.stat().st_size if binary.is_file() else _size(kernels),
        versions=content.get("versions", {}),
        notes=tuple(content.get("notes", ())),
        operators=tuple(map(_operator, manifest.ops)),
        variants=tuple(
            _variant(kernel, [name for key, name in launches if key == kernel.key])
            for kernel in kernels
        ),
    )


def _operator(op: ManifestOp) -> ReportedOperator:
    return ReportedOperator(
        name=op.name,
        torch_name=op.torch_name,
        schema=op.schema,
        location=op.location,
        doc=op.op.doc,
        covers="\n\n".join(op.covers),
        cases=tuple(_case(case, op) for case in op.cases),
    )


def _case(case: Case, op: ManifestOp) -> ReportedCase:
    served_by = op.op.served_by
    owner = f"{served_by[case.implementation].name}: " if len(served_by) > 1 else ""
    refused = [path for path in case.paths if path.refused]
    texts = {path: f"where {conditions(path) or 'always'}: {path.why}" for path in refused}
    return ReportedCase(
        case=owner + describe(case, op.op.params),
        paths=len(case.paths) - len(refused),
        # A path whose line is known is one that the body itself refuses.
        uncovered=tuple(text for path, text in texts.items() if not path.refused_at),
        raises=tuple(text for path, text in texts.items() if path.refused_at),
    )


def _launched(op: ManifestOp) -> Iterator[str]:
    """The keys of the kernels that an operator launches."""
    for case in op.cases:
        for path in case.paths:
            for step in path.steps:
                if isinstance(step, Launch):
                    yield from (variant.kernel for variant in step.variants)


def _variant(
    kernel: Kernel, operators: Iterable[str] = (), archs: Iterable[str] = ()
) -> ReportedVariant:
    """Of a kernel for these operators, which is wanted for architectures."""
    module, _, qualified = kernel.qualified_name.rpartition(":")
    images = tuple(
        ReportedImage(i.arch.built_name, i.registers, i.spills, i.shared, i.size, i.num_warps)
        for i in kernel.images
    )
    built = {image.arch for image in images}
    return ReportedVariant(
        kernel=f"{module}:{qualified}" if module else kernel.name,
        location=kernel.location,
        types=tuple(f"{t}:16" if i in kernel.divisible else t for i, t in enumerate(kernel.types)),
        constants=dict(kernel.constants),
        options=dict(kernel.options),
        images=images,
        operators=tuple(dict.fromkeys(operators)),
        lacks=tuple(arch for arch in archs if arch not in built),
    )


def _served_in(folder: Path) -> Path | None:
    """The folder of served kernels that a folder is, or has as the package of a wheel."""
    places = [folder, *([folder / "kernels"] if (folder / "__init__.py").is_file() else [])]
    return next((place for place in places if (place / served_manifests.NAME).is_file()), None)


def read_served(folder: Path, name: str) -> Build:
    """The build of a folder of served kernels, under a name."""
    manifest = served_manifests.read(folder)
    kernels: tuple[Kernel, ...] = manifest.listed("kernels", KERNEL.read)
    extensions = [file.stat().st_size for file in folder.glob("*.abi3.so")]
    return Build(
        kind=SERVED,
        name=name,
        archs=manifest.archs,
        bytes=_size(kernels) + sum(extensions),
        versions={**manifest.content.get("versions", {}), **dict(manifest.settings)},
        notes=tuple(manifest.content.get("notes", ())),
        operators=(),
        variants=tuple(_variant(kernel, archs=manifest.archs) for kernel in kernels),
    )


def _size(kernels: Iterable[Kernel]) -> int:
    """Of all images; those that are the same count once."""
    distinct = {i.sha256: i.size for kernel in kernels for i in kernel.images}
    return sum(distinct.values())
