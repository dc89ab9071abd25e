"""Whether two reports are of the same thing: what is said if not, and what cannot be judged."""

from __future__ import annotations

from .facts import all_images, has_launches, knows_coverage, named
from .model import LIBRARY, Report


def unlike(old: Report, new: Report) -> str:
    """Why two reports are not of two states of one build; empty if they are."""
    for report in (old, new):
        if not report.builds:
            other = new if report is old else old
            return f"{report.source} has no build" if other.builds else ""
    if {build.kind for build in old.builds}.isdisjoint(build.kind for build in new.builds):
        return f"{_kind(old)}, and {_kind(new)}"
    if _libraries(old) and _libraries(new) and _libraries(old).isdisjoint(_libraries(new)):
        return f"{_names(old)} and {_names(new)} are different libraries"
    if _archs(old).isdisjoint(_archs(new)):
        archs = (", ".join(sorted(_archs(report))) for report in (old, new))
        return "the older build is for {}, the newer one for {}".format(*archs)
    if not _libraries(new) and _kernels(old) and _kernels(old).isdisjoint(_kernels(new)):
        return f"{_names(old)} and {_names(new)} have no kernel in common"
    return ""


def no_growth(old: Report, new: Report) -> str:
    """Why sizes and spills cannot be compared; empty if they can be."""
    if not old.builds and not new.builds:
        return f"neither {old.source} nor {new.source} has a build"
    return "" if _common_images(old, new) else unlike(old, new)


def no_coverage(old: Report, new: Report) -> str:
    """Why gaps cannot be compared; empty if they can be."""
    for report in (old, new):
        if report.launched is not None and not has_launches(report):
            return f"no launch was counted in {report.source}"
        if not knows_coverage(report):
            return f"{report.source} does not tell what is covered"
    if has_launches(old) != has_launches(new):
        return f"only {(old if has_launches(old) else new).source} has launches"
    return no_growth(old, new) if old.builds or new.builds else ""


def _common_images(old: Report, new: Report) -> set[str]:
    before, after = ({named(*pair) for pair in all_images(report)} for report in (old, new))
    return before & after


def _names(report: Report) -> str:
    return ", ".join(build.name for build in report.builds)


def _kind(report: Report) -> str:
    what = "a library" if report.builds[0].kind == LIBRARY else "a folder of served kernels"
    return f"{_names(report)} is {what}"


def _libraries(report: Report) -> set[str]:
    """The folder of served kernels may have any name."""
    return {build.name for build in report.builds if build.kind == LIBRARY}


def _archs(report: Report) -> set[str]:
    return {arch for build in report.builds for arch in build.archs}


def _kernels(report: Report) -> set[str]:
    return {variant.kernel for build in report.builds for variant in build.variants}
