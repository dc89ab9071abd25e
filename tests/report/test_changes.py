"""What has changed between two reports, and reports that are not of one build."""

from dataclasses import replace

import pytest

from opforge.report.changes import BETTER, WORSE, Change, compare, no_coverage, unlike
from opforge.report.model import (
    LIBRARY,
    SERVED,
    Build,
    Checked,
    Launched,
    Report,
    ReportedImage,
    ReportedVariant,
    Timed,
)
from opforge.report.read import read_all
from opforge.tuning.table import TunedKernel, TuningRow, TuningTable, as_config


def image(arch="sm_90a", registers=40, spills=0, shared=0, size=1000):
    return ReportedImage(arch, registers, spills, shared, size, 4)


def variant(*images, kernel="add_kernel", types=("*fp16",)):
    return ReportedVariant(kernel, "k.py:1", types, {"BLOCK": "64"}, {}, images)


def report(*variants, size=1000, **more):
    build = Build("library", "lib", ("sm_90a",), size, {}, (), (), variants)
    return Report("it", (build,), **more)


NAME = "add_kernel(*fp16, BLOCK=64) sm_90a"


def test_numbers_of_an_image_are_compared_by_what_it_is():
    old = report(variant(image(registers=40, spills=3, size=1000)))
    new = report(variant(image(registers=64, spills=0, shared=256, size=900)))
    assert set(compare(old, new)) == {
        Change("registers", NAME, 40, 64, WORSE),
        Change("shared", NAME, 0, 256, WORSE),
        Change("spills", NAME, 3, 0, BETTER),
        Change("bytes", NAME, 1000, 900, BETTER),
    }
    # What is worse comes first.
    assert [change.verdict for change in compare(old, new)] == [WORSE, WORSE, BETTER, BETTER]


def test_a_new_image_that_spills_is_a_new_spill():
    old, new = report(), report(variant(image(spills=5)), variant(image(), kernel="mul_kernel"))
    changes = compare(old, new)
    assert [c for c in changes if c.kind == "spills"] == [Change("spills", NAME, None, 5, WORSE)]
    assert Change("image", NAME, None, "added") in changes
    assert Change("image", NAME, "there", "removed") in compare(new, old)


def test_an_image_without_a_record_says_nothing_of_spills():
    unknown = report(variant(image(registers=0)))
    kinds = {change.kind for change in compare(unknown, report(variant(image(spills=5))))}
    assert kinds.isdisjoint({"spills", "registers"})


def test_variants_of_one_name_are_told_apart_by_their_order():
    old = report(variant(image(spills=1)), variant(image(spills=2)))
    new = report(variant(image(spills=1)), variant(image(spills=4)))
    assert compare(old, new) == (Change("spills", f"{NAME} #2", 2, 4, WORSE),)


def test_the_size_of_a_renamed_build_is_compared():
    old, new = (report(variant(image()), size=size) for size in (1000, 900))
    renamed = replace(new, builds=(replace(new.builds[0], name="lib2"),))
    assert compare(old, renamed) == (Change("size", "lib2", 1000, 900, BETTER),)


def test_operators_and_cases_come_and_go(dist):
    (new,) = read_all([str(dist)])
    (build,) = new.builds
    old = replace(new, builds=(replace(build, operators=build.operators[1:]),))
    changes = compare(old, new)
    assert changes[0] == Change("operator", "add", None, "added")
    assert Change("case", "add, x fp16 1-d, y fp16 1-d", None, "added") in changes


@pytest.mark.parametrize(("was", "now", "verdict"), [
    ("pass", "fail", WORSE), ("fail", "pass", BETTER), ("pass", "skipped", ""),
])  # fmt: skip
def test_a_row_of_a_check_may_turn(was, now, verdict):
    old, new = (Report("it", checked=(Checked("a::b", "eager", status),)) for status in (was, now))
    assert compare(old, new) == (Change("check", "a::b, eager", was, now, verdict),)


def test_launches_by_triton_are_a_gap_in_coverage():
    old = Report("it", launched=(Launched("m:k", served=9),))
    new = Report("it", launched=(Launched("m:k", 5, 2, 4, ("it was edited",)),))
    assert compare(old, new) == (
        Change("coverage", "m:k", "covered", "it was edited", WORSE),
        Change("general", "m:k", 0, 2, WORSE),
    )
    assert compare(new, old)[0] == Change("coverage", "m:k", "it was edited", "covered", BETTER)


def test_a_gap_of_what_is_gone_is_not_covered(dist):
    (old,) = read_all([str(dist)])
    (build,) = old.builds
    new = replace(old, builds=(replace(build, operators=build.operators[:1]),))
    gone = [one for one in compare(old, new) if one.kind == "coverage"]
    assert {(one.after, one.verdict) for one in gone} == {("removed", "")}
    back = [one for one in compare(new, old) if one.kind == "coverage"]
    assert {(one.before, one.verdict) for one in back} == {(None, WORSE)}


def test_launches_that_nobody_counted_are_not_covered():
    old = Report("it", launched=(Launched("m:k", 5, 2, 4, ("it was edited",)),))
    assert compare(old, Report("it", launched=())) == ()
    assert compare(Report("it"), old) == ()


def test_a_tuned_row_is_compared_whatever_the_source_of_its_kernel():
    def tuned(source, us, block):
        table = TuningTable()
        kernel = TunedKernel("gemm", source, "sm_90", ("float16",), ("m",))
        table.add(kernel, TuningRow((16,), as_config({"BLOCK": block}), us))
        return Report("it", tuning=table)

    where = "gemm for sm_90, float16, m=16"
    assert compare(tuned("a", 10.0, 64), tuned("b", 12.0, 128)) == (
        Change("time", where, 10.0, 12.0, WORSE),
        Change("config", where, "BLOCK=64", "BLOCK=128"),
    )


def test_a_time_within_the_noise_is_neither_better_nor_worse():
    old, new = (Report("it", times=(Timed("silu", {"op": us}, "bf16"),)) for us in (20.0, 20.9))
    assert compare(old, new) == (Change("time", "silu bf16, op", 20.0, 20.9),)


def named(source, name, kernel="k", arch="sm_90", kind=LIBRARY, **more):
    images = (image(arch),)
    build = Build(kind, name, (arch,), 1000, {}, (), (), (variant(*images, kernel=kernel),))
    return Report(source, (build,), **more)


OLD = named("dist", "fresh")
COUNTED = (Launched("k", 3),)


@pytest.mark.parametrize(
    ("new", "datum"),
    [
        (named("o1", "other", "k2"), "fresh (library) for sm_90 and other (library) for sm_90"),
        (named("kernels", "kernels", kind=SERVED), "kernels (served)"),
        (named("dist80", "fresh", arch="sm_80"), "fresh (library) for sm_80"),
        (Report("check.json"), "check.json has no build"),
    ],
)  # fmt: skip
def test_builds_that_are_not_alike_are_said_to_be(new, datum):
    assert datum in unlike(OLD, new)
    # The size of another thing is neither better nor worse.
    assert {c.verdict for c in compare(OLD, new) if c.kind == "size"} <= {""}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OLD, named("dist", "renamed")),
        (OLD, named("dist", "fresh", "edited")),
        (named("kernels", "kernels", kind=SERVED), named("kernels2", "kernels2", kind=SERVED)),
    ],
)
def test_an_edited_or_renamed_build_is_still_the_same(old, new):
    assert unlike(old, new) == no_coverage(OLD, OLD) == ""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (OLD, replace(OLD, launched=COUNTED, source="new"), "only new has launches"),
        (OLD, replace(OLD, launched=(), source="new"), "new does not tell what is covered"),
        (named("old", "a", kind=SERVED), named("new", "a", kind=SERVED, launched=COUNTED),
         "old does not tell what is covered"),
        (Report("a", launched=COUNTED), Report("b", launched=COUNTED), ""),
    ],
)  # fmt: skip
def test_gaps_are_compared_where_both_tell_them(old, new, why):
    assert no_coverage(old, new) == why
