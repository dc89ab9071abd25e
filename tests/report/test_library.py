"""A library's folder, read from its manifest."""

import json
import shutil

import pytest

from opforge.errors import NotALibrary, StaleLibrary
from opforge.report.library import read_library

MANIFEST = "share/demo_ops/manifest.json"


@pytest.fixture(scope="module")
def build(dist):
    return read_library(dist / MANIFEST)


def test_operators_have_their_cases_and_what_is_not_built(build):
    add, everything = build.operators
    assert (add.torch_name, add.location) == ("demo::add", "ops.py:10")
    assert [case.case for case in add.cases[:2]] == ["x fp16 1-d, y fp16 1-d",
                                                     "x fp16 2-d, y fp16 2-d"]  # fmt: skip
    assert add.covers.startswith("x: fp16 or fp32")
    (first, *_) = everything.cases
    assert first.case == "x fp32 2-d, bias fp32 1-d, state fp32 1-d, mode 'relu'"
    assert (first.paths, first.raises) == (1, ())
    assert first.uncovered == ("where 1000 < rows: aten.mm at ops.py:62",)


def test_variants_have_what_each_architecture_uses(build):
    (variant,) = [v for v in build.variants if v.types == ("*fp16", "*fp16", "*fp16", "i64")]
    assert (variant.kernel, variant.constants) == ("add_kernel", {"BLOCK": "128"})
    assert variant.operators == ("add",)
    used = [(i.arch, i.registers, i.spills, i.shared, i.num_warps) for i in variant.images]
    assert used == [("sm_80", 40, 0, 1024, 4), ("sm_90a", 40, 0, 1024, 4)]
    assert build.notes == ("a <note>",)


def test_the_size_is_that_of_the_shared_library_once_there_is_one(dist, build, tmp_path):
    assert build.bytes == sum(i.bytes for v in build.variants for i in v.images)
    copied = shutil.copytree(dist, tmp_path / "dist")
    (copied / "lib").mkdir(exist_ok=True)
    (copied / "lib/libdemo_ops.so").write_bytes(bytes(12345))
    assert read_library(copied / MANIFEST).bytes == 12345


def changed(dist, tmp_path, change):
    copied = shutil.copytree(dist, tmp_path / "dist")
    content = json.loads((copied / MANIFEST).read_text())
    change(content)
    (copied / MANIFEST).write_text(json.dumps(content))
    return copied / MANIFEST


def test_a_manifest_of_another_format_is_to_be_built_again(dist, tmp_path):
    file = changed(dist, tmp_path, lambda content: content.update(format=1))
    with pytest.raises(StaleLibrary, match=r"has format 1(.|\n)*fix: build the library again"):
        read_library(file)


def edited(path, value):
    def edit(content):
        *parents, last = path
        for key in parents:
            content = content[key]
        content[last] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (edited(("kernels", 0, "images", 0, "spills"), "many"),
         "kernels[0].images[0].spills is 'many', expected int"),
        (edited(("kernels", 0, "types"), [3]), "kernels[0].types[0] is 3, expected str"),
        (edited(("ops", 1, "cases", 0, "choices", "mode"), 7),
         "ops[1].cases[0].choices.mode is 7, which is not one of its values"),
        (edited(("ops", 1, "cases", 0, "implementation"), 2),
         "ops[1].cases[0].implementation is 2, of 1"),
        (edited(("notes",), "one"), "notes is 'one', expected list"),
    ],
)  # fmt: skip
def test_a_manifest_with_wrong_fields_names_them(dist, tmp_path, edit, found):
    file = changed(dist, tmp_path, edit)
    with pytest.raises(NotALibrary) as raised:
        read_library(file)
    assert f"found: {found}\n  fix: build the library again" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "found"), [('{"name": ', "line 1 column 10"), ("[]", "it is [], expected dict")]
)
def test_a_manifest_that_is_cut_short_says_where(tmp_path, text, found):
    file = tmp_path / "share" / "demo_ops" / "manifest.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(NotALibrary) as raised:
        read_library(file)
    assert found in str(raised.value)
