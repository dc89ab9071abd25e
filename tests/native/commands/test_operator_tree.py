"""Operator trees: what is walked, what is loaded, and what is wrong with the rest."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

import opforge
from opforge.errors import BadOption, NotFound
from opforge.native.commands import build, operator_tree
from opforge.native.commands import list as list_command
from opforge.native.ir import places
from opforge.registry import registry

OP = """
import torch
import opforge
from opforge import native

@opforge.op("{name}")
def {function}(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)

native.declare({function}, x=native.tensor("n", dtype="fp32"))
"""
numbers = itertools.count()


@pytest.fixture
def ops(tmp_path):
    """Writes trees with unique names; their operators are unregistered after the test."""
    before = {entry.name for entry in registry}
    folder = tmp_path / f"tree{next(numbers)}"
    folder.mkdir()

    def write(**files):
        for path, text in files.items():
            place = folder / path / "op.py"
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)
        return folder

    yield write
    for entry in registry:
        if entry.name not in before:
            opforge.unregister(entry.name)


def op(function, namespace="tree_tests"):
    return OP.format(name=f"{namespace}::{function}", function=function)


def names(found):
    return [opforge.info(operator).name for _, operator in found.operators]


def test_a_tree_gives_the_operators_of_each_folder(ops):
    folder = ops(add=op("add"), silu=op("silu"))
    for name in ("__pycache__", "_shared", ".git"):
        (folder / name).mkdir()
    found = operator_tree.load(folder)
    assert names(found) == ["tree_tests::add", "tree_tests::silu"]
    assert found.problems == []
    # Shown with the operator's folder.
    assert places.short(f"{folder}/add/op.py:3") == f"{folder.name}/add/op.py:3"


def test_an_op_imports_shared_modules_of_the_tree_and_its_neighbours(ops):
    uses = "from ..common import SIZE\nfrom .own import NAME\n"
    folder = ops(add=uses + op("add"), mul=uses + op("mul"))
    (folder / "common.py").write_text("SIZE = 1\n")
    for name in ("add", "mul"):
        (folder / name / "own.py").write_text(f"NAME = {name!r}\n")
    assert operator_tree.load(folder).problems == []
    assert sys.modules[f"{folder.name}.mul.own"].NAME == "mul"


def test_each_folder_that_is_wrong_is_named_and_the_others_are_there(ops):
    folder = ops(
        add=op("add"),
        broken="1 / 0\n",
        ending="raise SystemExit(3)\n",
        idle="x = 1\n",
        undeclared=op("undeclared").rpartition("native.declare")[0],
    )
    (folder / "nothing").mkdir()
    found = operator_tree.load(folder)
    told = {problem.folder.name: problem.message for problem in found.problems}
    assert "tree_tests::add" in names(found)
    assert sorted(told) == ["broken", "ending", "idle", "nothing", "undeclared"]
    assert "ZeroDivisionError" in told["broken"]
    assert "SystemExit(3)" in told["ending"]
    assert "no operators" in told["idle"]
    assert "no op.py" in told["nothing"]
    assert "has no native.declare" in told["undeclared"]
    with pytest.raises(BadOption, match="5 folders of ops/ cannot be built") as raised:
        operator_tree.refuse("ops/", found.problems)
    assert all(f"{folder / name}: " in str(raised.value) for name in told)


@pytest.mark.parametrize("namespaces", [("tree_one", "tree_one"), ("tree_one", "tree_two")])
def test_two_operators_of_one_c_function_are_refused_with_both_locations(ops, namespaces):
    folder = ops(one=op("same", namespaces[0]), two=op("same", namespaces[1]))
    (problem,) = operator_tree.load(folder).problems
    assert problem.folder == folder / "two"
    assert all(str(folder / name / "op.py") in problem.message for name in ("one", "two"))


def test_an_operator_that_another_folder_imports_is_not_duplicated(ops):
    folder = ops(one=op("first"))
    ops(two="from ..one.op import first\n" + op("second"))
    found = operator_tree.load(folder)
    assert found.problems == []
    assert sorted(set(names(found))) == ["tree_tests::first", "tree_tests::second"]


def test_a_tree_may_be_called_as_an_installed_package_is(tmp_path, ops):
    folder = ops(add=op("named")).rename(tmp_path / "triton")
    found = operator_tree.load(folder)
    assert found.problems == []
    assert registry.get("tree_tests::named").fn.__module__ == "triton_2.add.op"
    assert sys.modules["triton"].__file__ != str(folder)


def test_a_package_that_can_be_imported_is_a_tree_only_with_a_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ops").mkdir()
    assert operator_tree.is_tree("ops")
    Path("ops", "__init__.py").touch()
    assert not operator_tree.is_tree("ops")
    assert operator_tree.is_tree("ops/")
    assert not operator_tree.is_tree("absent/")


def test_a_new_folder_makes_another_build(tmp_path):
    (tmp_path / "add").mkdir()
    given = build.BuildArguments((str(tmp_path),), "dist", ("80",))
    before = given.deciding()
    (tmp_path / "mul").mkdir()
    assert given.deciding() != before


def test_only_names_operators_with_or_without_their_namespace(ops):
    found = [o for _, o in operator_tree.load(ops(add=op("add"), mul=op("mul"))).operators]
    assert operator_tree.select(found, ()) == found
    assert operator_tree.select(found, ("mul",)) == found[1:]
    assert operator_tree.select(found, ("tree_tests::add",)) == found[:1]
    with pytest.raises(NotFound, match="did you mean mul") as raised:
        operator_tree.select(found, ("add", "mull"))
    assert "found: the operators add, mul" in str(raised.value)


def test_make_reads_a_depfile(tmp_path):
    (tmp_path / "a folder").mkdir()
    read = [tmp_path / "a folder" / "b.py", tmp_path / "c$d#.py"]
    for file in read:
        file.touch()
    text = build.depfile(tmp_path / "made", [*read, tmp_path / "a folder" / ".." / "c$d#.py"])
    assert len(text.splitlines()) == 3
    (tmp_path / "makefile").write_text(text + "\t@echo made\n")
    command_ = ["make", "-C", tmp_path, "-s"]
    done = subprocess.run(command_, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("made\n", 0), done.stderr
    read[1].unlink()
    done = subprocess.run(command_, capture_output=True, text=True, check=False)
    assert "c$d#.py" in done.stderr


def test_any_tree_of_files_loads_where_no_declaration_is_needed(ops):
    plain = op("plain").partition("native.declare")[0]
    folder = ops(add=op("add"), nested=plain)
    (folder / "nested" / "again.py").write_text("from .op import plain\n")
    (folder / "helpers.py").write_text("x = 1\n")
    (folder / "test_add.py").write_text("1 / 0\n")
    (folder / "broken.py").write_text("1 / 0\n")
    found = operator_tree.load_files(folder)
    assert names(found) == ["tree_tests::add", "tree_tests::plain"]
    (problem,) = found.problems
    assert problem.folder.name == "broken.py"
    assert "ZeroDivisionError" in problem.message


def test_a_folder_whose_files_have_no_operators_is_refused(ops):
    folder = written(ops(), {"helpers.py": "x = 1\n"})
    with pytest.raises(BadOption, match="has no operators"):
        operator_tree.load_files(folder)


def written(folder, texts):
    for path, text in texts.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def test_a_file_of_a_tree_imports_the_files_beside_it_as_if_it_were_alone(ops):
    """As `opforge check tree/add/uses.py` does; each folder has a `beside` of its own."""
    uses = "import beside\nfrom beside import own\nimport below.deep\nfrom below import deep\n"
    folder = ops()
    for name in ("add", "mul"):
        texts = {
            "uses.py": f"{uses}assert own is beside.own and deep is below.deep\n{op(name)}",
            "beside.py": f"own = object()\nname = {name!r}\n{op(name + '_too')}",
            "below/deep.py": "",
        }
        written(folder / name, texts)
    found = operator_tree.load_files(folder)
    assert found.problems == []
    each = ["add_too", "add", "mul_too", "mul"]
    assert names(found) == [f"tree_tests::{name}" for name in each]
    # Nothing is executed twice, and no name is left behind.
    for name in ("add", "mul"):
        module = sys.modules[f"{folder.name}.{name}.uses"]
        assert module.beside is sys.modules[f"{folder.name}.{name}.beside"]
        assert module.beside.name == name
    assert not {"beside", "below", "below.deep"} & sys.modules.keys()


def test_what_fails_in_a_file_beside_shows_the_users_lines_alone(ops):
    texts = {"add/uses.py": "import failing_beside\n", "add/failing_beside.py": "1 / 0\n"}
    folder = written(ops(), texts)
    uses = next(p for p in operator_tree.load_files(folder).problems if p.folder.stem == "uses")
    lines = [line for line in uses.message.splitlines() if line.lstrip().startswith("File ")]
    assert [Path(line.split('"')[1]).stem for line in lines] == ["uses", "failing_beside"]


def test_every_command_reads_the_same_files_of_a_folder(ops):
    texts = {
        "flat.py": op("flat"),
        "nested/deep/under.py": op("under"),
        "package/__init__.py": op("packaged"),
        "package/again.py": "from . import packaged\n",
        "_private.py": op("private"),
        ".hidden/in.py": op("hidden"),
        "test_flat.py": op("tested"),
        "nested/conftest.py": "1 / 0\n",
    }
    folder = written(ops(), texts)
    (folder / "loop").symlink_to(folder)
    expected = ["tree_tests::flat", "tree_tests::under", "tree_tests::packaged"]
    assert names(operator_tree.load_files(folder)) == expected
    listed = list_command.collect([f"{folder}/"])
    assert listed.problems == []
    assert [operator["name"] for operator in listed.operators] == expected
    folders = [Path(operator["folder"]).name for operator in listed.operators]
    assert folders == [folder.name, "deep", "package"]


def test_list_also_tells_what_keeps_a_tree_of_operators_from_being_built(ops):
    folder = written(ops(add=op("add")), {"nested/file.py": op("nested"), "broken.py": "1 / 0\n"})
    listed = list_command.collect([f"{folder}/"])
    assert [o["name"] for o in listed.operators] == ["tree_tests::add", "tree_tests::nested"]
    layout, broken = listed.problems
    assert layout.startswith(f"{folder / 'nested'}: it has no op.py")
    assert broken.startswith(f"{folder / 'broken.py'}: ")
