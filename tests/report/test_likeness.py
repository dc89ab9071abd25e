"""Two reports that are not of one build."""

from dataclasses import replace

import pytest

from opforge.errors import BadOption
from opforge.report.changes import Change, compare
from opforge.report.likeness import no_coverage, no_growth, unlike
from opforge.report.limits import judge, parse_limits
from opforge.report.model import (
    LIBRARY,
    SERVED,
    Build,
    Launched,
    Report,
    ReportedImage,
    ReportedVariant,
)


def report(source, name, kernel="k", arch="sm_90", kind=LIBRARY, **more):
    image = ReportedImage(arch, 40, 0, 0, 1000, 4)
    variant = ReportedVariant(kernel, "k.py:1", ("*fp16",), {}, {}, (image,))
    build = Build(kind, name, (arch,), 1000, {}, (), (), (variant,))
    return Report(source, (build,), **more)


OLD = report("dist", "fresh")
COUNTED = (Launched("k", 3),)


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (report("o1", "other", "k2"), "fresh and other are different libraries"),
        (report("kernels", "kernels", "k2", kind=SERVED),
         "fresh is a library, and kernels is a folder of served kernels"),
        (report("dist80", "fresh", arch="sm_80"),
         "the older build is for sm_90, the newer one for sm_80"),
        (Report("check.json"), "check.json has no build"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("text", ["grown_bytes>0", "new_spills>0"])
def test_what_differs_is_said_and_limits_on_growth_are_refused(new, why, text):
    assert unlike(OLD, new) == why
    with pytest.raises(BadOption) as raised:
        judge(new, compare(OLD, new), parse_limits(text), OLD)
    assert str(raised.value) == (
        f"--fail-on {text}: {new.source} cannot be compared with dist\n"
        f"  found: {why}\n"
        "  fix: compare two builds of the same kernels for the same architectures, with counts of "
        f"launches for both or for neither, or leave out {text}"
    )


def test_the_size_of_another_library_is_neither_better_nor_worse():
    other = report("o1", "other", "k2")
    smaller = replace(other, builds=(replace(other.builds[0], bytes=900),))
    (size,) = [one for one in compare(OLD, smaller) if one.kind == "size"]
    assert size == Change("size", "other", 1000, 900)


def test_folders_of_served_kernels_may_have_any_name_but_share_kernels():
    old, new = (report(name, name, kind=SERVED) for name in ("kernels", "kernels2"))
    assert unlike(old, new) == ""
    other = report("o", "other", "k2", kind=SERVED)
    assert unlike(old, other) == "kernels and other have no kernel in common"


def test_a_library_is_compared_with_itself_under_another_name():
    renamed = report("dist", "renamed")
    assert unlike(OLD, renamed) == "fresh and renamed are different libraries"
    assert no_growth(OLD, renamed) == no_coverage(OLD, renamed) == ""


def test_an_edited_library_is_still_the_same():
    edited = report("dist", "fresh", "k2")
    assert unlike(OLD, edited) == no_growth(OLD, edited) == ""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (OLD, replace(OLD, launched=COUNTED, source="new"), "only new has launches"),
        (OLD, replace(OLD, launched=(), source="new"), "no launch was counted in new"),
        (report("old", "a", kind=SERVED), report("new", "a", kind=SERVED, launched=COUNTED),
         "old does not tell what is covered"),
        (OLD, report("o1", "other", "k2"), "fresh and other are different libraries"),
        (Report("a", launched=COUNTED), Report("b", launched=COUNTED), ""),
    ],
)  # fmt: skip
def test_gaps_are_compared_where_both_tell_them(old, new, why):
    assert no_coverage(old, new) == why


def test_without_any_build_nothing_has_grown():
    assert no_growth(Report("a.json"), Report("b.json")) == "neither a.json nor b.json has a build"
