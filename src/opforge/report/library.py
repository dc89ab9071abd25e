"""A library's folder, read for a report; the library is not opened, and may be for any machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..errors import NotALibrary
from ..native.ir.case_text import conditions, describe
from ..native.ir.cases import Case, Launch
from ..native.ir.interface import ChoiceParam
from ..native.ir.kernel_codec import BuiltKernel, read_kernels
from ..native.library.manifest_reader import Manifest, ManifestOp, reading
from ..native.library.shared_library import refuse_other_format
from ..records import BadField, Codecs
from .model import (
    LIBRARY,
    Build,
    ReportedCase,
    ReportedImage,
    ReportedOperator,
    ReportedVariant,
)

MANIFESTS = "share/*/manifest.json"


class _Head(NamedTuple):
    name: str
    versions: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


_HEAD = Codecs({_Head: "name versions? notes?"}).of(_Head)


def read_library(file: Path) -> Build:
    """The build of a manifest, `dist/share/NAME/manifest.json`."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise NotALibrary(
            f"{file} cannot be read: {error.strerror}", fix="build the library again"
        ) from None
    manifest = Manifest(content, str(file))
    refuse_other_format(manifest, str(file), lambda: "build the library again with this opforge")
    with reading(str(file)):
        head = _HEAD.read(manifest.content)
        kernels = read_kernels(manifest.content)
        used = _users(manifest.ops)
        operators = tuple(_operator(op) for op in manifest.ops)
    variants = tuple(_variant(one, used) for one in kernels)
    binary = file.parents[2] / "lib" / f"lib{head.name}.so"
    # Images that are the same stand in a library once.
    distinct = {image.sha256: image.bytes for one in kernels for image in one.images}
    size = binary.stat().st_size if binary.is_file() else sum(distinct.values())
    return Build(
        LIBRARY, head.name, manifest.archs, size, head.versions, head.notes, operators, variants
    )


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


def _variant(built: BuiltKernel, used: Mapping[str, list[str]]) -> ReportedVariant:
    kernel = built.kernel
    module, _, qualified = kernel.qualified_name.rpartition(":")
    return ReportedVariant(
        kernel=f"{module}:{qualified}" if module else kernel.name,
        location=kernel.location,
        types=tuple(f"{t}:16" if i in kernel.divisible else t for i, t in enumerate(kernel.types)),
        constants=dict(kernel.constants),
        options=dict(kernel.options),
        images=tuple(
            ReportedImage(i.arch, i.registers, i.spills, i.shared, i.bytes, i.num_warps)
            for i in built.images
        ),
        operators=tuple(used.get(kernel.key, ())),
    )
