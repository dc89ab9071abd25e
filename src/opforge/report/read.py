"""From the command's arguments to reports: folders of builds, and what was written beside them.

dist served.json tuning.json            one report
dist before.json build-2 after.json     two, to be compared: a file belongs to the folder before it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import BadOption, NotALibrary
from ..records import shown
from ..serving import report as served_report
from ..tuning import table as tables
from .checked import read_check
from .library import MANIFESTS, read_library
from .model import Build, Launched, Report, from_content
from .served import read_served, served_in
from .timed import read_times

Adder = Callable[[Report, Any, str], Report]


@dataclass
class _Group:
    """What makes up one report: a build, if there is one, and the files that belong to it."""

    build: Path | None = None
    # By path, in the order given; files of JSON have their content.
    contents: dict[Path, Any] = field(default_factory=dict)

    def read(self) -> Report:
        named = ", ".join(map(str, self.contents))
        report = Report(named)
        if self.build is not None and _is_built(self.build):
            report = Report(named, read_builds(self.build))
        elif self.build is not None:
            report = replace(from_content(self.contents[self.build], str(self.build)), source=named)
        for path, content in self.contents.items():
            if path != self.build:
                report = _kind_of(path, content)(report, content, str(path))
        return report


def read_all(sources: Sequence[str]) -> list[Report]:
    """One report, or two of which the second is the newer."""
    groups = [_Group()]
    for path in map(Path, sources):
        if not path.exists():
            raise BadOption(
                f"there is no {path}", fix="give a folder of `opforge build`, or a file"
            )
        content = None if _is_built(path) else _json(path)
        is_build = _is_built(path) or _is_report(content)
        if is_build and groups[-1].build is not None:
            groups.append(_Group())
        if is_build:
            groups[-1].build = path
        groups[-1].contents[path] = content
    _refuse_many(groups)
    return [group.read() for group in groups]


def _is_built(path: Path) -> bool:
    """A folder, or the binary of one, which stands for it."""
    return path.is_dir() or path.suffix == ".so"


def read_builds(path: Path) -> tuple[Build, ...]:
    """Every library in a folder, or its served kernels; or what a binary is part of."""
    if not path.is_dir():
        return (_read_binary(path),)
    served = served_in(path)
    if served is not None:
        return (read_served(served, path.resolve().name),)
    found = sorted(path.glob(MANIFESTS))
    if not found:
        inside = ", ".join(sorted(one.name for one in path.iterdir())[:6])
        raise NotALibrary(
            f"{path} is neither a library nor a folder of served kernels",
            found=f"no {MANIFESTS} and no manifest.json, but {inside or 'nothing'}",
            fix=_FOLDER,
        )
    return tuple(map(read_library, found))


def _read_binary(path: Path) -> Build:
    """Of a library, of the adapter for torch beside it, or of served kernels."""
    binary = path.resolve()
    folder, name = binary.parent.parent, binary.stem.removeprefix("lib")
    for one in (name, name.removesuffix("_torch")):
        manifest = folder / "share" / one / "manifest.json"
        if manifest.is_file():
            return read_library(manifest)
    if served_in(binary.parent) == binary.parent:
        return read_served(binary.parent, binary.parent.name)
    missing = folder / "share" / name / "manifest.json"
    raise NotALibrary(f"{path} is not part of a build", found=f"no {missing}", fix=_FOLDER)


_FOLDER = "give the folder that `opforge build -o` wrote"


def _json(path: Path) -> Any:
    if path.suffix == ".whl":
        raise BadOption(
            f"{path} is a wheel, and its files are packed",
            fix="give the folder that it was made from, or the package where it is installed",
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise BadOption(f"{path} is not text", fix=_FILES) from None
    except OSError as error:
        raise BadOption(f"{path} cannot be read: {error.strerror}", fix=_FILES) from None
    except (ValueError, RecursionError) as error:
        raise BadOption(f"{path} is not JSON: {error}", fix=_FILES) from None


def _is_report(content: Any) -> bool:
    return isinstance(content, dict) and "opforge_report" in content


def _kind_of(path: Path, content: Any) -> Adder:
    keys = set(content) if isinstance(content, dict) else set()
    for needed, add in _KINDS:
        if needed <= keys:
            return add
    found = f"an object with {', '.join(sorted(keys)[:8])}" if keys else shown(content)
    raise BadOption(f"{path} has nothing that a report shows", found=found, fix=_FILES)


def _add_served(report: Report, content: Any, where: str) -> Report:
    served = served_report.from_content(content, where)
    known = {one.kernel: one for one in report.launched or ()}
    for name, count in served.launches.items():
        one = known.get(name, Launched(name))
        general = one.general + served.general.get(name, 0)
        known[name] = replace(one, served=one.served + count, general=general)
    for (name, reason), count in served.handed_over.items():
        one = known.get(name, Launched(name))
        reasons = tuple(dict.fromkeys((*one.reasons, reason)))
        known[name] = replace(one, by_triton=one.by_triton + count, reasons=reasons)
    return replace(report, launched=tuple(sorted(known.values(), key=lambda one: one.kernel)))


def _add_tuning(report: Report, content: Any, where: str) -> Report:
    report.tuning.update(tables.parse(json.dumps(content), where))
    return report


def _add_check(report: Report, content: Any, where: str) -> Report:
    return replace(report, checked=(*(report.checked or ()), *read_check(content, where)))


def _add_times(report: Report, content: Any, where: str) -> Report:
    return replace(report, times=(*report.times, *read_times(content, where)))


def _refuse_recording(_report: Report, _content: Any, where: str) -> Report:
    raise BadOption(
        f"{where} is a recording, of which nothing is compiled yet",
        fix=f"build it with `opforge build {where} -o kernels`, and give that folder",
    )


# By the keys that tell what wrote a file, the first that has them all.
_KINDS: tuple[tuple[set[str], Adder], ...] = (
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


def _refuse_many(groups: Sequence[_Group]) -> None:
    if len(groups) > 2:
        raise BadOption(
            f"{len(groups)} builds cannot be compared with one another",
            found=", ".join(str(group.build) for group in groups),
            fix="give one, or two: the old one and the new one",
        )
