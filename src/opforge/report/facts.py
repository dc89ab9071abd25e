"""What a report comes to: totals, and every row that a limit can be checked against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .model import SERVED, Build, Report, ReportedImage, ReportedVariant


@dataclass(frozen=True)
class Gap:
    """A call that a build does not cover; `launches` is how often one was seen."""

    what: str
    why: str
    launches: int = 1


def images(build: Build) -> Iterator[tuple[ReportedVariant, ReportedImage]]:
    for variant in build.variants:
        for image in variant.images:
            yield variant, image


def all_images(report: Report) -> list[tuple[ReportedVariant, ReportedImage]]:
    return [pair for build in report.builds for pair in images(build)]


def named(variant: ReportedVariant, image: ReportedImage) -> str:
    """`add_kernel(*fp16:16, i32, BLOCK=128) sm_90a`."""
    return f"{variant} {image.arch}"


def gaps(report: Report) -> list[Gap]:
    """Paths that a library refuses, images that it lacks, and launches that were Triton's."""
    found = [
        Gap(f"{operator.name}, {case.case}", text)
        for build in report.builds
        for operator in build.operators
        for case in operator.cases
        for text in case.uncovered
    ]
    found += [
        Gap(f"{variant} {arch}", "it has no image for this architecture")
        for build in report.builds
        for variant in build.variants
        for arch in variant.lacks
    ]
    found += [
        Gap(one.kernel, "; ".join(one.reasons), one.by_triton)
        for one in report.launched or ()
        if one.by_triton
    ]
    return found


def has_launches(report: Report) -> bool:
    """Whether any launch was counted; counts of a program that made none tell nothing."""
    return any(one.served + one.by_triton for one in report.launched or ())


def knows_coverage(report: Report) -> bool:
    """Of served kernels, only launches tell."""
    if report.launched is not None:
        return has_launches(report)
    served = any(build.kind == SERVED for build in report.builds)
    return bool(report.builds) and not served


def totals(report: Report) -> dict[str, int]:
    """The numbers at the top of the page, each with the name that JSON has for it."""
    made = all_images(report)
    operators = [operator for build in report.builds for operator in build.operators]
    launched, checked = report.launched or (), report.checked or ()
    found = {
        "operators": len(operators),
        "cases": sum(len(operator.cases) for operator in operators),
        "variants": sum(len(build.variants) for build in report.builds),
        "images": len(made),
        "bytes": sum(build.bytes for build in report.builds),
        "registers": max((image.registers for _, image in made), default=0),
        "shared": max((image.shared for _, image in made), default=0),
        "spilling": sum(image.spills > 0 for _, image in made),
    }
    if not report.builds:
        found = {}
    if knows_coverage(report):
        found["uncovered"] = sum(gap.launches for gap in gaps(report))
    if report.launched is not None:
        found["launches"] = sum(one.served + one.by_triton for one in launched)
    if has_launches(report):
        found["general"] = sum(one.general for one in launched)
    if len(report.tuning):
        found["tuned"] = len(report.tuning)
    if report.checked is not None:
        found["checks"] = len(checked)
        found["failed"] = sum(row.status == "fail" for row in checked)
    return found
