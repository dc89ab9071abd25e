"""From targets to operators: names in modules, files, folders, selection, and mistakes in them."""

import itertools
import sys
from pathlib import Path

import pytest

import opforge
from opforge.check.command import arguments_of
from opforge.commands import list as list_command
from opforge.errors import BadOption, NotFound, TargetFailed, WrongArgument
from opforge.native.ir import places
from opforge.native.targets import buildable, is_tree, load, operators
from opforge.registry import registry

numbers = itertools.count()


def named_by(target):
    return load(target).operators


SOURCE = """
import opforge
import torch

@opforge.op("{space}::double", mode="custom_op")
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@opforge.op("{space}::triple", mode="custom_op")
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3

twice = double

def helper(x):
    return x
"""


@pytest.fixture
def stem(tmp_path, monkeypatch):
    """A fresh module name with two operators, in a file in the current folder."""
    name = f"targets_sample_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(space=name))
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_name_in_a_module_or_a_file_gives_that_operator(stem, tmp_path):
    (op,) = named_by(f"{stem}:double")
    assert op is sys.modules[stem].double
    assert named_by(f"{tmp_path / stem}.py:double") == [op]


@pytest.mark.parametrize("ending", ["", ".py"])
def test_a_bare_module_or_file_gives_all_its_operators_once(stem, ending):
    module_ops = named_by(stem + ending)
    module = sys.modules[stem]
    assert [id(op) for op in module_ops] == [id(module.double), id(module.triple)]
    assert all(opforge.is_op(op) for op in module_ops)


LOOP = """
import opforge
import torch

def make(name, factor):
    @opforge.op(f"{space}::{{name}}", mode="custom_op")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor
    return scaled

for name, factor in (("double", 2), ("triple", 3)):
    make(name, factor)
"""


def test_operators_that_a_loop_made_are_found_by_their_own_names(stem, tmp_path):
    (tmp_path / f"{stem}.py").write_text(LOOP.format(space=stem))
    assert [opforge.info(op).name for op in named_by(stem)] == [
        f"{stem}::double",
        f"{stem}::triple",
    ]
    (op,) = named_by(f"{stem}:triple")
    assert opforge.info(op).name == f"{stem}::triple"


def test_a_file_can_import_its_neighbours(stem, tmp_path):
    path = tmp_path / "neighbourly.py"
    path.write_text(f"from {stem} import double\n")
    try:
        assert named_by(f"{path}:double") == named_by(f"{stem}:double")
    finally:
        sys.modules.pop("neighbourly", None)


def test_a_file_in_a_package_is_refused_with_its_module_name(tmp_path):
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "relative.py").write_text("from . import other\n")
    with pytest.raises(TargetFailed, match="attempted relative import") as caught:
        named_by(f"{package}/relative.py")
    assert f"run from {tmp_path}, and name it outer.inner.relative" in str(caught.value)


def test_the_import_path_is_as_it_was_afterwards(stem):
    before = list(sys.path)
    named_by(f"{stem}.py")
    assert sys.path == before


def test_a_misspelt_operator_is_refused_with_a_close_name(stem):
    with pytest.raises(BadOption, match=r"did you mean double\?") as caught:
        named_by(f"{stem}:doubl")
    assert caught.value.found == "the operators double, triple, twice"


def test_a_function_that_is_not_an_operator_is_reported_as_such(stem):
    with pytest.raises(BadOption, match=r"'helper' in .* is not an operator") as caught:
        named_by(f"{stem}:helper")
    assert caught.value.found == "a function"
    assert "@opforge.op" in caught.value.fix


def test_a_misspelt_file_is_refused_with_a_close_name(stem):
    with pytest.raises(BadOption, match=rf"did you mean {stem}\.py"):
        named_by(f"{stem}x.py")


@pytest.mark.parametrize(
    ("path", "why"),
    [("", "is a folder"), ("nope", "no file or folder"), ("README.md", "is not a Python file")],
)
def test_a_path_that_is_no_python_file_is_refused(tmp_path, path, why):
    (tmp_path / "README.md").write_text("# readme")
    with pytest.raises(BadOption) as caught:
        named_by(f"{tmp_path}/{path}:op")
    assert why in str(caught.value)


def test_a_target_without_operators_is_refused():
    with pytest.raises(BadOption, match="json has no operators"):
        named_by("json")
    with pytest.raises(BadOption, match="'decoder' in json is not an operator") as caught:
        named_by("json:decoder")
    assert caught.value.fix == "decorate it with @opforge.op"


def test_names_that_are_not_alike_are_not_suggested(stem, tmp_path):
    (tmp_path / "dec.py").write_text("")
    for target in ("nope", str(tmp_path / "nope.py"), f"{stem}:nope"):
        with pytest.raises(BadOption) as caught:
            named_by(target)
        assert "did you mean" not in caught.value.fix


@pytest.mark.parametrize("call", ["sys.exit(3)", "sys.exit()"])
def test_a_file_that_exits_when_it_is_loaded_is_an_error(tmp_path, call):
    file = tmp_path / "exits_on_load.py"
    file.write_text(f"import sys\n\n{call}\n")
    with pytest.raises(TargetFailed) as caught:
        named_by(str(file))
    assert caught.value.what == f"{file} called {call} while it was loaded"
    assert caught.value.found == f"at {file}:3"
    assert "exits_on_load" not in sys.modules


@pytest.mark.parametrize("kind", ["BaseException", "StopIteration"])
def test_a_file_that_raises_any_exception_is_an_error(tmp_path, kind):
    file = tmp_path / "raises_on_load.py"
    file.write_text(f"class Own({kind}):\n    pass\n\nraise Own('no GPU here')\n")
    with pytest.raises(TargetFailed, match="Own: no GPU here") as caught:
        named_by(str(file))
    assert "importlib" not in str(caught.value)
    assert "raises_on_load" not in sys.modules


def test_control_c_while_a_file_is_loaded_is_no_error_of_the_file(tmp_path):
    file = tmp_path / "interrupted_on_load.py"
    file.write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        named_by(str(file))


UNFRIENDLY = """
class Unfriendly(type):
    def refuse(self, *args):
        raise BaseException("do not touch")

    __getattribute__ = __eq__ = __hash__ = __bool__ = __repr__ = __call__ = refuse

class Thing:
    __getattribute__ = __eq__ = __hash__ = __bool__ = __repr__ = __len__ = Unfriendly.refuse

class Answers:
    __class__ = property(Unfriendly.refuse)
    __getattr__ = Unfriendly.refuse

thing, answers = Thing(), Answers()

class Other(metaclass=Unfriendly):
    pass

other = object.__new__(Other)
"""


def test_objects_that_refuse_every_question_do_not_hide_the_operators_beside_them(stem, tmp_path):
    with (tmp_path / f"{stem}.py").open("a") as file:
        file.write(UNFRIENDLY)
    assert named_by(f"{stem}:triple") == [sys.modules[stem].triple]
    assert len(named_by(stem)) == 2
    for name in ("thing", "answers", "Other"):
        with pytest.raises(BadOption, match=f"'{name}' in {stem} is not an operator"):
            named_by(f"{stem}:{name}")


def test_a_path_may_have_colons(tmp_path):
    folder = tmp_path / "with:colon::s"
    folder.mkdir()
    file = folder / "targets_colon.py"
    file.write_text(SOURCE.format(space="targets_colon"))
    assert len(named_by(str(file))) == 2
    assert named_by(f"{file}:triple") == [sys.modules["targets_colon"].triple]


@pytest.mark.parametrize("target", ["", ":", "json:", ":double"])
def test_an_incomplete_target_is_refused_with_how_to_write_one(target):
    with pytest.raises(BadOption, match="is not a target") as caught:
        named_by(target)
    assert "module:op" in caught.value.fix


def test_a_file_named_like_a_loaded_module_does_not_replace_it(tmp_path):
    path = tmp_path / "json.py"
    path.write_text("")
    with pytest.raises(BadOption, match="another module has the name 'json'") as caught:
        named_by(str(path))
    assert caught.value.found == sys.modules["json"].__file__


def test_an_import_that_fails_inside_the_module_is_not_blamed_on_the_target(tmp_path, monkeypatch):
    (tmp_path / "targets_incomplete.py").write_text("import no_such_dependency\n")
    monkeypatch.chdir(tmp_path)
    for target in ("targets_incomplete", "targets_incomplete.py"):
        with pytest.raises(TargetFailed, match="No module named 'no_such_dependency'") as caught:
            named_by(target)
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_operators_name_is_distinguished_from_a_module():
    with pytest.raises(BadOption, match="does not say where it is defined") as caught:
        named_by("mylib::silu")
    assert "file.py:silu" in str(caught.value)


FUNCTIONS = """
def pair():
    return [1, 2], {"y": 3}

def one():
    return 1

def flat():
    return 1, {}

def short():
    return ((1,),)

def raises():
    raise ValueError("no data here")
"""


@pytest.fixture
def functions(tmp_path):
    path = tmp_path / "targets_functions.py"
    path.write_text(FUNCTIONS)
    yield path
    sys.modules.pop("targets_functions", None)


@pytest.mark.parametrize(
    ("name", "found"), [("one", "a int"), ("flat", "(int, dict)"), ("short", "(tuple)")]
)
def test_a_function_that_returns_something_else_is_refused(functions, name, found):
    with pytest.raises(WrongArgument) as caught:
        arguments_of(None, (), f"{functions}:{name}")
    assert f"{functions}:{name} must return (args, kwargs)" in str(caught.value)
    assert f"found: {found}\n" in str(caught.value)


def test_an_error_in_the_users_function_keeps_its_own_traceback(functions):
    with pytest.raises(TargetFailed) as caught:
        arguments_of(None, (), f"{functions}:raises")
    assert str(caught.value).startswith(f"{functions}:raises() raised\n\nTraceback")
    assert "no data here" in str(caught.value)
    assert arguments_of(None, (), f"{functions}:pair") == ((1, 2), {"y": 3})
    assert "opforge/commands" not in str(caught.value)


OP = """
import torch
import opforge
from opforge import native

@opforge.op("{name}")
def {function}(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)

native.declare({function}, x=native.tensor("n", dtype="fp32"))
"""


def op(function, namespace="tree_tests"):
    return OP.format(name=f"{namespace}::{function}", function=function)


def undeclared(function):
    return op(function).partition("native.declare")[0]


@pytest.fixture
def tree(tmp_path):
    """Writes a folder of a unique name; its operators are unregistered after the test."""
    before = {entry.name for entry in registry}
    folder = tmp_path / f"tree{next(numbers)}"
    folder.mkdir()

    def write(texts):
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    yield write
    for entry in registry:
        if entry.name not in before:
            opforge.unregister(entry.name)


def names(loaded):
    return [opforge.info(operator).name for operator in loaded.operators]


def test_a_tree_gives_the_operators_of_each_folder(tree):
    folder = tree({"add/op.py": op("add"), "silu/op.py": op("silu")})
    for name in ("__pycache__", "_shared", ".git"):
        (folder / name).mkdir()
    loaded = load(f"{folder}/", buildable)
    assert names(loaded) == ["tree_tests::add", "tree_tests::silu"]
    assert loaded.problems == []
    # Shown with the operator's folder.
    assert places.short(f"{folder}/add/op.py:3") == f"{folder.name}/add/op.py:3"


def test_an_op_imports_shared_modules_of_the_tree_and_its_neighbours(tree):
    texts = {"common.py": "SIZE = 1\n"}
    for name in ("add", "mul"):
        uses = "from ..common import SIZE\nfrom .own import NAME\n"
        texts |= {f"{name}/op.py": uses + op(name), f"{name}/own.py": f"NAME = {name!r}\n"}
    folder = tree(texts)
    assert load(f"{folder}/", buildable).problems == []
    assert sys.modules[f"{folder.name}.mul.own"].NAME == "mul"


def test_each_folder_that_is_wrong_is_named_and_the_others_are_there(tree):
    texts = {
        "add": op("add"),
        "broken": "1 / 0\n",
        "ending": "raise SystemExit(3)\n",
        "idle": "x = 1\n",
        "undeclared": undeclared("undeclared"),
    }
    folder = tree({f"{name}/op.py": text for name, text in texts.items()})
    (folder / "nothing").mkdir()
    loaded = load(f"{folder}/", buildable)
    told = {problem.path.name: problem.message for problem in loaded.problems}
    assert "tree_tests::add" in names(loaded)
    assert sorted(told) == ["broken", "ending", "idle", "nothing", "undeclared"]
    assert "ZeroDivisionError" in told["broken"]
    assert f"sys.exit(3) while it was loaded\n  found: at {folder}/ending" in told["ending"]
    assert "no operators" in told["idle"]
    assert "no op.py" in told["nothing"]
    assert "has no native.declare" in told["undeclared"]
    with pytest.raises(BadOption, match=f"5 folders of {folder}/ cannot be built") as raised:
        operators([f"{folder}/"])
    assert all(f"{folder / name}: " in str(raised.value) for name in told)


def test_two_operators_of_one_c_function_are_told_with_both_locations(tree):
    folder = tree({f"{space}/op.py": op("same", f"tree_{space}") for space in ("one", "two")})
    (problem,) = list_command.collect([f"{folder}/"]).problems
    assert "the C function same" in problem
    assert all(str(file) in problem for file in folder.glob("*/op.py"))


def test_an_operator_that_another_folder_imports_is_not_duplicated(tree):
    uses = "from ..one.op import first\n" + op("second")
    folder = tree({"one/op.py": op("first"), "two/op.py": uses})
    loaded = load(f"{folder}/", buildable)
    assert loaded.problems == []
    assert names(loaded) == ["tree_tests::first", "tree_tests::second"]


def test_a_tree_may_be_called_as_an_installed_package_is(tmp_path, tree):
    folder = tree({"add/op.py": op("named")}).rename(tmp_path / "triton")
    assert load(f"{folder}/", buildable).problems == []
    assert registry.get("tree_tests::named").fn.__module__ == "triton_2.add.op"
    assert sys.modules["triton"].__file__ != str(folder)


def test_a_package_that_can_be_imported_is_a_tree_only_with_a_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ops").mkdir()
    assert is_tree("ops")
    Path("ops", "__init__.py").touch()
    assert not is_tree("ops")
    assert is_tree("ops/")
    assert not is_tree("absent/")


def test_only_names_operators_with_or_without_their_namespace(tree):
    folder = f"{tree({'add/op.py': op('add'), 'mul/op.py': op('mul')})}/"
    ops = operators([folder])
    assert len(ops) == 2
    assert operators([folder], ("mul",)) == ops[1:]
    assert operators([folder], ("tree_tests::add",)) == ops[:1]
    with pytest.raises(NotFound, match="did you mean mul") as raised:
        operators([folder], ("add", "mull"))
    assert "found: the operators add, mul" in str(raised.value)


def test_an_operator_that_a_user_names_needs_a_declaration(tree):
    file = tree({"targets_named.py": op("named") + undeclared("plain")}) / "targets_named.py"
    assert len(operators([str(file)])) == 2
    for targets, only in (([f"{file}:named", f"{file}:plain"], ()), ([str(file)], ("plain",))):
        with pytest.raises(NotFound, match="tree_tests::plain has no native"):
            operators(targets, only)


def test_of_a_package_without_op_py_a_build_reads_the_files(tree):
    folder = tree({"__init__.py": "", "nested/flat.py": op("flat"), "helpers.py": ""})
    assert [opforge.info(op).name for op in operators([f"{folder}/"])] == ["tree_tests::flat"]


def test_any_tree_of_files_loads_where_no_declaration_is_needed(tree):
    texts = {
        "add/op.py": op("add"),
        "nested/op.py": undeclared("plain"),
        "nested/again.py": "from .op import plain\n",
        "helpers.py": "x = 1\n",
        "broken.py": "1 / 0\n",
    }
    loaded = load(f"{tree(texts)}/")
    assert names(loaded) == ["tree_tests::add", "tree_tests::plain"]
    (problem,) = loaded.problems
    assert problem.path.name == "broken.py"
    assert "ZeroDivisionError" in problem.message


def test_a_folder_whose_files_have_no_operators_is_refused(tree):
    with pytest.raises(BadOption, match="has no operators"):
        load(f"{tree({'helpers.py': ''})}/")


def test_a_file_of_a_tree_imports_the_files_beside_it_as_if_it_were_alone(tree):
    """As `opforge check tree/add/uses.py` does; each folder has a `beside` of its own."""
    uses = "import beside\nfrom beside import own\nimport below.deep\nfrom below import deep\n"
    texts = {}
    for name in ("add", "mul"):
        texts |= {
            f"{name}/uses.py": f"{uses}assert own is beside.own and deep is below.deep\n{op(name)}",
            f"{name}/beside.py": f"own = object()\nname = {name!r}\n{op(name + '_too')}",
            f"{name}/below/deep.py": "",
        }
    folder = tree(texts)
    loaded = load(f"{folder}/")
    assert loaded.problems == []
    each = ["add_too", "add", "mul_too", "mul"]
    assert names(loaded) == [f"tree_tests::{name}" for name in each]
    # Nothing is executed twice, and no name is left behind.
    for name in ("add", "mul"):
        module = sys.modules[f"{folder.name}.{name}.uses"]
        assert module.beside is sys.modules[f"{folder.name}.{name}.beside"]
        assert module.beside.name == name
    assert not {"beside", "below", "below.deep"} & sys.modules.keys()


def test_what_fails_in_a_file_beside_shows_the_users_lines_alone(tree):
    texts = {"add/uses.py": "import failing_beside\n", "add/failing_beside.py": "1 / 0\n"}
    uses = next(p for p in load(f"{tree(texts)}/").problems if p.path.stem == "uses")
    lines = [line for line in uses.message.splitlines() if line.lstrip().startswith("File ")]
    assert [Path(line.split('"')[1]).stem for line in lines] == ["uses", "failing_beside"]


def test_every_command_reads_the_same_files_of_a_folder(tree):
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
    folder = tree(texts)
    (folder / "loop").symlink_to(folder)
    expected = ["tree_tests::flat", "tree_tests::under", "tree_tests::packaged"]
    assert names(load(f"{folder}/")) == expected
    listed = list_command.collect([f"{folder}/"])
    assert listed.problems == []
    assert [operator["name"] for operator in listed.operators] == expected
    folders = [Path(operator["folder"]).name for operator in listed.operators]
    assert folders == [folder.name, "deep", "package"]


def test_list_also_tells_what_keeps_a_tree_of_operators_from_being_built(tree):
    texts = {"add/op.py": op("add"), "nested/file.py": op("nested"), "broken.py": "1 / 0\n"}
    folder = tree(texts)
    listed = list_command.collect([f"{folder}/"])
    assert [o["name"] for o in listed.operators] == ["tree_tests::add", "tree_tests::nested"]
    layout, broken = listed.problems
    assert layout.startswith(f"{folder / 'nested'}: it has no op.py")
    assert broken.startswith(f"{folder / 'broken.py'}: ")
