"""Importing opforge is lazy, which only the clock shows."""

import ast
import importlib
import itertools
import json
import pathlib
import subprocess
import sys
import types

import pytest

import opforge
from opforge import _compat, _lazy
from support.processes import environment, python

# Names that are a function of the package and a module in it.
NAMESAKES = {
    "check": "opforge.check.run",
    "explain": "opforge.op",
    "op": "opforge.op",
}


def fresh(code: str, program: str = sys.executable) -> object:
    """The JSON that a new process prints at the end."""
    result = subprocess.run(
        [program, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


LOADED = "import json, sys; print(json.dumps([m for m in ('torch', 'triton') if m in sys.modules]))"


@pytest.mark.parametrize(
    "imported",
    [
        "opforge",
        "opforge.errors",
        "opforge.model",
        "opforge.cli",
        "opforge.native",
        "opforge.native.ir.program",
        "opforge.native.artifacts.publish",
        "opforge.native.artifacts.build_record",
    ],
)
def test_modules_that_need_neither_torch_nor_triton_load_neither(imported):
    assert fresh(f"import {imported}\n{LOADED}") == []


@pytest.mark.parametrize(
    "imported", ["opforge._compat.compiling", "opforge.native.kernels.compile"]
)
def test_what_compiles_kernels_loads_only_triton(imported):
    assert fresh(f"import {imported}\n{LOADED}") == ["triton"]


# Each order in which a namesake's module, another module below it, and the name can come.
WAYS = {
    "attribute": "import opforge; opforge.{name}",
    "from": "from opforge import {name}",
    "module": "import opforge.{name}",
    "below": "import {below}",
}
ORDERS = list(itertools.permutations(WAYS, 2))


@pytest.mark.parametrize("name", NAMESAKES)
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_function_wins_over_its_namesake_module_in_every_order(name, order, in_one_process):
    assert in_one_process[name, order] == "function"


@pytest.fixture(scope="module")
def in_one_process():
    """All orders, each in a fork of a process that has torch loaded but not opforge."""
    below = {"check": "opforge.check.report", "explain": "opforge.explain"}
    cases = {
        (name, order): "; ".join(
            WAYS[way].format(name=name, below=below.get(name, f"opforge.{name}")) for way in order
        )
        for name in NAMESAKES
        for order in ORDERS
    }
    code = f"""
import json, os, sys, torch
answers = []
for code, name in {[(code, name) for (name, _), code in cases.items()]!r}:
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            exec(code, {{}})
            import opforge
            found = getattr(opforge, name)
            assert type(sys.modules["opforge." + name]).__name__ == "module"
            assert getattr(__import__("opforge", fromlist=[name]), name) is found
            answer = type(found).__name__
        except BaseException as error:
            answer = repr(error)
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    answers.append(os.read(read, 10000).decode())
    os.close(read)
    os.wait()
print(json.dumps(answers))
"""
    return dict(zip(cases, fresh(code, python()), strict=True))


every_package = pytest.mark.parametrize(
    "package", [opforge, opforge.native], ids=lambda p: p.__name__
)


@every_package
def test_every_namesake_is_known_and_stays_what_it_is(package):
    folder = pathlib.Path(package.__file__).parent
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    others = {
        name for name in package.__all__ if not isinstance(getattr(package, name), types.ModuleType)
    }
    assert modules & others == package.__dict__.get("_namesakes", frozenset())
    for name in modules & others:
        module = importlib.import_module(f"{package.__name__}.{name}")
        assert isinstance(module, types.ModuleType)
        assert not isinstance(getattr(package, name), types.ModuleType)


def test_the_namesakes_above_are_all_of_the_packages():
    assert opforge.__dict__["_namesakes"] == set(NAMESAKES)


@every_package
def test_a_package_exports_what_it_shows_to_type_checkers(package):
    tree = ast.parse(pathlib.Path(package.__file__).read_text())
    (shown,) = (node for node in tree.body if isinstance(node, ast.If))
    names = {
        alias.asname or alias.name: node.module
        for node in shown.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(names) == set(package.__all__) - {"__version__"}
    for name, home in names.items():
        value = getattr(package, name)
        module = sys.modules[f"{package.__name__}.{home or name}"]
        assert value is (module if home is None else getattr(module, name)), name


def test_no_name_of_the_dispatcher_is_also_a_module_of_compat():
    folder = pathlib.Path(_compat.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert not modules & set(vars(_compat.dispatcher))
    for name in modules:
        assert getattr(_compat, name) is sys.modules[f"opforge._compat.{name}"]
    assert _compat.has_kernel is _compat.dispatcher.has_kernel
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = _compat.nothing


@pytest.mark.parametrize("used", ["", "opforge.op;"])
def test_dir_lists_the_public_names_alone(used):
    names = fresh(f"import json, opforge; {used} print(json.dumps(dir(opforge)))")
    assert names == sorted(opforge.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'opforge' has no attribute 'ops'"):
        _ = opforge.ops
    with pytest.raises(ImportError, match="cannot import name 'ops'"):
        exec("from opforge import ops")


def test_a_name_can_be_replaced_before_and_after_its_first_use(monkeypatch):
    code = """
import json, opforge
opforge.is_op = "mine"
opforge.op
import opforge.check
opforge.check = "mine"
print(json.dumps([opforge.is_op, opforge.check]))
"""
    assert fresh(code, python()) == ["mine", "mine"]
    monkeypatch.setattr(opforge, "info", "mine")
    assert opforge.info == "mine"
    monkeypatch.undo()
    assert opforge.info is sys.modules["opforge.op"].info


def test_a_failing_module_fails_at_every_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "lazy_sample", types.ModuleType("lazy_sample"))
    get, names = _lazy.hand_on("lazy_sample", {"missing": ("a", "b")})
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            get("a")
    assert {"a", "b"} <= set(names())
