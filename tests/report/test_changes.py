"""What has changed between two reports."""

from dataclasses import replace

import pytest

from opforge.report.changes import BETTER, WORSE, Change, compare, grown_bytes, new_spills
from opforge.report.model import (
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


def test_the_same_build_has_no_changes(dist):
    (one,), (other,) = read_all([str(dist)]), read_all([str(dist)])
    assert compare(one, other) == ()


def test_numbers_of_an_image_are_compared_by_what_it_is():
    old = report(variant(image(registers=40, spills=3, size=1000)))
    new = report(variant(image(registers=64, spills=0, shared=256, size=900)))
    assert compare(old, new) == (
        Change("registers", NAME, 40, 64, WORSE),
        Change("shared", NAME, 0, 256, WORSE),
        Change("spills", NAME, 3, 0, BETTER),
        Change("bytes", NAME, 1000, 900, BETTER),
    )


def test_a_new_image_that_spills_is_a_new_spill():
    old, new = report(), report(variant(image(spills=5)), variant(image(), kernel="mul_kernel"))
    changes = compare(old, new)
    assert new_spills(changes) == [Change("spills", NAME, None, 5, WORSE)]
    assert Change("image", NAME, None, "added") in changes
    assert Change("image", NAME, "there", "removed") in compare(new, old)


def test_an_image_without_a_record_says_nothing_of_spills():
    unknown = report(variant(image(registers=0)))
    assert new_spills(compare(unknown, report(variant(image(spills=5))))) == []


def test_variants_of_one_name_are_told_apart_by_their_order():
    old = report(variant(image(spills=1)), variant(image(spills=2)))
    new = report(variant(image(spills=1)), variant(image(spills=4)))
    assert compare(old, new) == (Change("spills", f"{NAME} #2", 2, 4, WORSE),)


def test_sizes_of_all_builds_add_up():
    old, new = report(size=1000), report(size=1500)
    extra = replace(new, builds=(*new.builds, replace(new.builds[0], name="more", bytes=200)))
    assert grown_bytes(compare(old, extra)) == 700
    assert grown_bytes(compare(extra, old)) == -700


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
