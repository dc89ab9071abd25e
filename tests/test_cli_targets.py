"""From `module:op` and `file.py:op` to operators, and the errors of unknown targets."""

import itertools
import sys

import pytest

import opforge
from opforge.cli_targets import arguments_from_function, resolve
from opforge.errors import BadOption, TargetFailed, WrongArgument

numbers = itertools.count()

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
    (op,) = resolve(f"{stem}:double")
    assert op is sys.modules[stem].double
    assert resolve(f"{tmp_path / stem}.py:double") == [op]


@pytest.mark.parametrize("ending", ["", ".py"])
def test_a_bare_module_or_file_gives_all_its_operators_once(stem, ending):
    module_ops = resolve(stem + ending)
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
    assert [opforge.info(op).name for op in resolve(stem)] == [f"{stem}::double", f"{stem}::triple"]
    (op,) = resolve(f"{stem}:triple")
    assert opforge.info(op).name == f"{stem}::triple"


def test_a_file_can_import_its_neighbours(stem, tmp_path):
    path = tmp_path / "neighbourly.py"
    path.write_text(f"from {stem} import double\n")
    try:
        assert resolve(f"{path}:double") == resolve(f"{stem}:double")
    finally:
        sys.modules.pop("neighbourly", None)


def test_a_file_in_a_package_is_refused_with_its_module_name(tmp_path):
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "relative.py").write_text("from . import other\n")
    with pytest.raises(TargetFailed, match="attempted relative import") as caught:
        resolve(f"{package}/relative.py")
    assert f"run from {tmp_path}, and name it outer.inner.relative" in str(caught.value)


def test_the_import_path_is_as_it_was_afterwards(stem):
    before = list(sys.path)
    resolve(f"{stem}.py")
    assert sys.path == before


def test_a_misspelt_operator_is_refused_with_a_close_name(stem):
    with pytest.raises(BadOption, match=r"did you mean double\?") as caught:
        resolve(f"{stem}:duble")
    assert caught.value.found == "the operators double, triple, twice"


def test_a_function_that_is_not_an_operator_is_reported_as_such(stem):
    with pytest.raises(BadOption, match=r"'helper' in .* is not an operator") as caught:
        resolve(f"{stem}:helper")
    assert caught.value.found == "a function"
    assert "@opforge.op" in caught.value.fix


def test_a_misspelt_file_is_refused_with_a_close_name(stem):
    with pytest.raises(BadOption, match=rf"did you mean {stem}\.py"):
        resolve(f"{stem}x.py")


@pytest.mark.parametrize(
    ("path", "why"),
    [("", "is a folder"), ("nope", "no file or folder"), ("README.md", "is not a Python file")],
)
def test_a_path_that_is_no_python_file_is_refused(tmp_path, path, why):
    (tmp_path / "README.md").write_text("# readme")
    with pytest.raises(BadOption) as caught:
        resolve(f"{tmp_path}/{path}")
    assert why in str(caught.value)


def test_a_target_without_operators_is_refused():
    with pytest.raises(BadOption, match="json has no operators"):
        resolve("json")
    with pytest.raises(BadOption, match="'decoder' in json is not an operator") as caught:
        resolve("json:decoder")
    assert caught.value.fix == "decorate it with @opforge.op"


def test_names_that_are_not_alike_are_not_suggested(stem, tmp_path):
    (tmp_path / "dec.py").write_text("")
    for target in ("nope", str(tmp_path / "nope.py"), f"{stem}:nope"):
        with pytest.raises(BadOption) as caught:
            resolve(target)
        assert "did you mean" not in caught.value.fix


@pytest.mark.parametrize("call", ["sys.exit(3)", "sys.exit()"])
def test_a_file_that_exits_when_it_is_loaded_is_an_error(tmp_path, call):
    file = tmp_path / "exits_on_load.py"
    file.write_text(f"import sys\n\n{call}\n")
    with pytest.raises(TargetFailed) as caught:
        resolve(str(file))
    assert caught.value.what == f"{file} called {call} while it was loaded"
    assert caught.value.found == f"at {file}:3"
    assert "exits_on_load" not in sys.modules


@pytest.mark.parametrize("kind", ["BaseException", "StopIteration"])
def test_a_file_that_raises_any_exception_is_an_error(tmp_path, kind):
    file = tmp_path / "raises_on_load.py"
    file.write_text(f"class Own({kind}):\n    pass\n\nraise Own('no GPU here')\n")
    with pytest.raises(TargetFailed, match="Own: no GPU here") as caught:
        resolve(str(file))
    assert "importlib" not in str(caught.value)
    assert "raises_on_load" not in sys.modules


def test_control_c_while_a_file_is_loaded_is_no_error_of_the_file(tmp_path):
    file = tmp_path / "interrupted_on_load.py"
    file.write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        resolve(str(file))


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
    assert resolve(f"{stem}:triple") == [sys.modules[stem].triple]
    assert len(resolve(stem)) == 2
    for name in ("thing", "answers", "Other"):
        with pytest.raises(BadOption, match=f"'{name}' in {stem} is not an operator"):
            resolve(f"{stem}:{name}")


def test_a_path_may_have_colons(tmp_path):
    folder = tmp_path / "with:colon::s"
    folder.mkdir()
    file = folder / "targets_colon.py"
    file.write_text(SOURCE.format(space="targets_colon"))
    assert len(resolve(str(file))) == 2
    assert resolve(f"{file}:triple") == [sys.modules["targets_colon"].triple]


@pytest.mark.parametrize("target", ["", ":", "json:", ":double"])
def test_an_incomplete_target_is_refused_with_how_to_write_one(target):
    with pytest.raises(BadOption, match="is not a target") as caught:
        resolve(target)
    assert "module:op" in caught.value.fix


def test_a_file_named_like_a_loaded_module_does_not_replace_it(tmp_path):
    path = tmp_path / "json.py"
    path.write_text("")
    with pytest.raises(BadOption, match="another module has the name 'json'") as caught:
        resolve(str(path))
    assert caught.value.found == sys.modules["json"].__file__


def test_an_import_that_fails_inside_the_module_is_not_blamed_on_the_target(tmp_path, monkeypatch):
    (tmp_path / "targets_incomplete.py").write_text("import no_such_dependency\n")
    monkeypatch.chdir(tmp_path)
    for target in ("targets_incomplete", "targets_incomplete.py"):
        with pytest.raises(TargetFailed, match="No module named 'no_such_dependency'") as caught:
            resolve(target)
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_operators_name_is_distinguished_from_a_module():
    with pytest.raises(BadOption, match="does not say where it is defined") as caught:
        resolve("mylib::silu")
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
        arguments_from_function(f"{functions}:{name}")
    assert f"{functions}:{name} must return (args, kwargs)" in str(caught.value)
    assert f"found: {found}\n" in str(caught.value)


def test_an_error_in_the_users_function_keeps_its_own_traceback(functions):
    with pytest.raises(TargetFailed) as caught:
        arguments_from_function(f"{functions}:raises")
    assert str(caught.value).startswith(f"{functions}:raises() raised\n\nTraceback")
    assert "no data here" in str(caught.value)
    assert arguments_from_function(f"{functions}:pair") == ((1, 2), {"y": 3})
    assert "opforge/cli_targets" not in str(caught.value)
