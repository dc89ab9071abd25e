"""A library's folder, read for a report; the library is not opened, and may be for any machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import NotALibrary, StaleLibrary
from ..native.ir.abi import MANIFEST_FORMAT
from ..native.ir.case_text import conditions, describe
from ..native.ir.cases import Case, Launch
from ..native.ir.interface import ChoiceParam
from ..native.library.manifest_reader import Manifest, ManifestOp, reading
from ..records import BadField, Codecs, each, field, read_at
from .model import (
    LIBRARY,
    Build,
    ReportedCase,
    ReportedImage,
    ReportedOperator,
    ReportedVariant,
)

MANIFESTS = "share/*/manifest.json"


def read_library(file: Path) -> Build:
    """The build of a manifest, `dist/share/NAME/manifest.json`."""
    try:
        manifest = Manifest(file.read_bytes(), str(file))
    except OSError as error:
        raise NotALibrary(
            f"{file} cannot be read: {error.strerror}", fix="build the library again"
        ) from None
    if manifest.format != MANIFEST_FORMAT:
        raise StaleLibrary(
            f"{file} has format {manifest.format}, and this opforge reads {MANIFEST_FORMAT}",
            fix="build the library again with this opforge",
        )
    with reading(str(file)):
        name: str = field(manifest.content, "name", str)
        notes = _texts(manifest.content, "notes")
        versions = _named(manifest.content, "versions")
        used = _users(manifest.ops)
        variants = each(manifest.content, "kernels", lambda kernel: _variant(kernel, used))
        operators = tuple(_operator(op) for op in manifest.ops)
    binary = file.parents[2] / "lib" / f"lib{name}.so"
    distinct = _image_sizes(manifest.content)
    size = binary.stat().st_size if binary.is_file() else sum(distinct.values())
    return Build(LIBRARY, name, manifest.archs, size, versions, notes, operators, variants)


def _operator(op: ManifestOp) -> ReportedOperator:
    return ReportedOperator(
        name=op.name,
        torch_name=op.torch_name,
        schema=op.schema,
        location=op.location,
        doc=op.op.doc,
        covers="\n\n".join(op.covers),
        cases=tuple(
            _case(case, op, f"{op.place}.cases[{number}]") for number, case in enumerate(op.cases)
        ),
    )


def _case(case: Case, op: ManifestOp, place: str) -> ReportedCase:
    choices = {p.name: p.values for p in op.op.params if isinstance(p, ChoiceParam)}
    for name, index in case.choices:
        if index >= len(choices.get(name, ())):
            raise BadField(f"is {index}, which is not one of its values", f"{place}.choices.{name}")
    served_by = op.op.served_by
    if case.implementation >= len(served_by):
        raise BadField(f"is {case.implementation}, of {len(served_by)}", f"{place}.implementation")
    whose = f"{served_by[case.implementation].name}: " if len(served_by) > 1 else ""
    refused = [path for path in case.paths if path.refused]
    said = {path: f"where {conditions(path) or 'always'}: {path.why}" for path in refused}
    return ReportedCase(
        case=whose + describe(case, op.op.params),
        paths=len(case.paths) - len(refused),
        # A path whose line is known is one that the body itself refuses.
        uncovered=tuple(text for path, text in said.items() if not path.refused_at),
        raises=tuple(text for path, text in said.items() if path.refused_at),
    )


def _users(ops: tuple[ManifestOp, ...]) -> dict[str, list[str]]:
    """By the key of a kernel, the operators that launch it."""
    used: dict[str, list[str]] = {}
    for op in ops:
        for key in dict.fromkeys(_launched(op)):
            used.setdefault(key, []).append(op.name)
    return used


def _launched(op: ManifestOp) -> Iterator[str]:
    for case in op.cases:
        for path in case.paths:
            for step in path.steps:
                if isinstance(step, Launch):
                    yield from (variant.kernel for variant in step.variants)


# Fields of plain values; those that a manifest lacks are empty.
_PLAIN = Codecs({})
_TEXTS, _NUMBERS, _NAMED = map(_PLAIN.of, (tuple[str, ...], tuple[int, ...], Mapping[str, str]))


def _texts(content: Any, key: str) -> tuple[str, ...]:
    texts: tuple[str, ...] = read_at(key, _TEXTS, field(content, key, list, []))
    return texts


def _named(content: Any, key: str) -> dict[str, str]:
    named: dict[str, str] = read_at(key, _NAMED, field(content, key, dict, {}))
    return named


def _variant(content: Any, used: Mapping[str, list[str]]) -> ReportedVariant:
    types = _texts(content, "types")
    divisible = set(read_at("divisible", _NUMBERS, field(content, "divisible", list, [])))
    name: str = field(content, "name", str)
    module, _, qualified = field(content, "qualified_name", str, "").rpartition(":")
    return ReportedVariant(
        kernel=f"{module}:{qualified}" if module else name,
        location=field(content, "location", str),
        types=tuple(f"{t}:16" if i in divisible else t for i, t in enumerate(types)),
        constants=_named(content, "constants"),
        options=_named(content, "options"),
        images=each(content, "images", _image),
        operators=tuple(used.get(field(content, "key", str), ())),
    )


def _image(content: Any) -> ReportedImage:
    arch: str = field(content, "arch", str)
    numbers = {
        name: _natural(content, name)
        for name in ("registers", "spills", "shared", "bytes", "num_warps")
    }
    return ReportedImage(arch, **numbers)


def _natural(content: Any, key: str) -> int:
    number: int = field(content, key, int)
    if number < 0:
        raise BadField(f"is {number}, expected a number from 0 on", key)
    return number


def _image_sizes(content: Any) -> dict[str, int]:
    """Images that are the same stand in a library once."""
    images = each(
        content,
        "kernels",
        lambda kernel: each(
            kernel, "images", lambda one: (field(one, "sha256", str), field(one, "bytes", int))
        ),
    )
    return dict(image for images_of_one in images for image in images_of_one)
