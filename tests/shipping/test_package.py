"""The package in a wheel: functions, types and docstrings from the operators."""

import ast
import inspect
import subprocess
import sys
import types

import pytest

from opforge.native.ir.interface import Op, SchemaArgument
from opforge.shipping.built import BuiltLibrary
from opforge.shipping.package import callable_ops, package_files
from opforge.shipping.platform_tag import Platform

Argument = SchemaArgument


def op(*arguments, name="f", returns=("Tensor",), doc="", schema="ns::f() -> ()", result=()):
    return Op(
        name=name, torch_name=f"ns::{name}", location="ops.py:1", params=(), outputs=(),
        doc=doc, schema=schema, arguments=arguments, returns=returns, result=result,
    )  # fmt: skip


def files_of(*ops):
    library = BuiltLibrary(
        "mylib", ("sm_90",), ops, Platform("manylinux_2_34_x86_64", "x86_64"), {}, ()
    )
    return {name: text.decode() for name, text in package_files(library, "1.0").items()}


def signatures(text):
    """By function, as it is written: `(x: Tensor) -> Tensor`."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {f.name: f"({ast.unparse(f.args)}) -> {ast.unparse(f.returns)}" for f in functions}


SIGNATURES = [
    ([Argument("x", "Tensor")], ("Tensor",), "(x: Tensor) -> Tensor"),
    ([Argument("x", "Tensor?", default=(None,))], (), "(x: Tensor | None=None) -> None"),
    ([], ("Tensor", "Tensor?"), "() -> tuple[Tensor, Tensor | None]"),
    ([Argument("n", "SymInt", default=(3,))], (), "(n: int=3) -> None"),
    ([Argument("n", "int?")], (), "(n: int | None) -> None"),
    ([Argument("eps", "float", default=(1,))], (), "(eps: float=1.0) -> None"),
    ([Argument("eps", "float", default=(float("inf"),))], (), "(eps: float=float('inf')) -> None"),
    ([Argument("on", "bool", default=(1,))], (), "(on: bool=True) -> None"),
    ([Argument("d", "ScalarType")], (), "(d: dtype) -> None"),
    (
        [Argument("x", "Tensor"), Argument("on", "bool", keyword_only=True, default=(False,))],
        (),
        "(x: Tensor, *, on: bool=False) -> None",
    ),
    (
        [Argument("mode", "str?", ("relu", None), default=("relu",))],
        (),
        "(mode: Literal['relu', None]='relu') -> None",
    ),
    ([Argument("n", "SymInt", (1, 2))], (), "(n: Literal[1, 2]) -> None"),
    ([Argument("on", "bool", (0,), fixed=True)], (), "(on: Literal[False]) -> None"),
    ([Argument("eps", "float", (0.5,), fixed=True)], (), "(eps: float) -> None"),
]


@pytest.mark.parametrize(("arguments", "returns", "expected"), SIGNATURES)
def test_a_signature_is_the_schemas(arguments, returns, expected):
    files = files_of(op(*arguments, returns=returns))
    assert signatures(files["__init__.py"])["f"] == expected
    assert signatures(files["__init__.pyi"])["f"] == expected


RESULT = ("Both", "value", "slope")
TWO = ("Tensor", "Tensor?")


def test_a_named_tuple_is_a_class_of_the_package():
    one, other = (op(name=name, returns=TWO, result=RESULT) for name in "fg")
    for text in (files := files_of(one, other))["__init__.py"], files["__init__.pyi"]:
        assert (
            text.count("class Both(NamedTuple):\n    value: Tensor\n    slope: Tensor | None\n")
            == 1
        )
        assert signatures(text)["g"] == "() -> Both"
    assert "return Both(*_op_f())" in files["__init__.py"]
    assert "'Both', " in files["__init__.py"]


@pytest.mark.parametrize(
    "result",
    [("Tensor", "value", "slope"), ("f", "value", "slope"), ("Both", "a", "lambda"),
     ("Both", "_a", "b"), ("Both", "value", "other")],
)  # fmt: skip
def test_a_class_that_the_package_cannot_have_is_a_plain_tuple(result):
    first = op(name="a", returns=TWO, result=RESULT)
    text = files_of(first, op(returns=TWO, result=result))["__init__.py"]
    assert signatures(text)["f"] == "() -> tuple[Tensor, Tensor | None]"
    assert "return _op_f()" in text


def test_a_function_gives_way_to_a_module_of_the_package():
    library = BuiltLibrary(
        "mylib", ("sm_90",), (op(name="jax"), op(name="f")),
        Platform("manylinux_2_34_x86_64", "x86_64"), {"jax.py": b""}, (),
    )  # fmt: skip
    assert [one.name for one in callable_ops(library)] == ["f"]


def test_a_dtype_that_is_a_default_is_looked_up_in_torch():
    files = files_of(op(Argument("d", "ScalarType", default=(("dtype", "float16"),))))
    assert signatures(files["__init__.py"])["f"].startswith("(d: dtype=_library.dtype('float16'))")
    assert signatures(files["__init__.pyi"])["f"].startswith("(d: dtype=...)")


@pytest.mark.parametrize(
    "doc",
    ["One line.", "Two\n\n    lines, indented.", 'Quotes """ and \\n and "', "", "ünïcode \\"],
)
def test_a_docstring_is_the_ops_own(doc):
    files = files_of(op(doc=doc))
    for name in ("__init__.py", "__init__.pyi"):
        (found,) = (n for n in ast.parse(files[name]).body if getattr(n, "name", "") == "f")
        said = inspect.cleandoc(doc)
        schema = "As a torch operator: ns::f() -> ()"
        assert ast.get_docstring(found) == (f"{said}\n\n{schema}" if said else schema)


def test_arguments_are_handed_on_as_they_were_given():
    arguments = [Argument("x", "Tensor"), Argument("on", "bool", keyword_only=True)]
    text = files_of(op(*arguments))["__init__.py"].replace("from . import _library\n", "")
    text = text.replace("from ._library import get_cmake_dir, get_include, get_library\n", "")
    handed = types.SimpleNamespace(operator=lambda name: lambda *a, **k: (name, a, k))
    made = {"_library": handed}
    exec(compile(text, "mylib", "exec"), made)
    assert made["f"](1, on=True) == ("ns::f", (1,), {"on": True})


@pytest.mark.parametrize("name", ["get_include", "lambda", "_hidden", "annotations", "float"])
def test_a_name_that_the_package_cannot_have_is_left_to_torch_ops(name):
    made = BuiltLibrary("mylib", (), (op(name=name), op()), Platform("", ""), {}, ())
    assert [found.name for found in callable_ops(made)] == ["f"]


@pytest.mark.parametrize(
    "arguments",
    [
        [Argument("lambda", "Tensor")],
        [Argument("x): pass  #", "Tensor")],
        [Argument("_op_g", "Tensor")],
        [Argument("x", "Tensor?", default=(None,)), Argument("y", "Tensor")],
    ],
)
def test_arguments_that_python_cannot_have_are_left_to_torch_ops(arguments):
    made = BuiltLibrary(
        "mylib", (), (op(*arguments, name="g"), op()), Platform("", "x86_64"), {}, ()
    )
    assert [found.name for found in callable_ops(made)] == ["f"]
    assert "def g" not in package_files(made, "1")["__init__.py"].decode()


def test_a_type_checker_takes_right_calls_and_refuses_wrong_ones(tmp_path):
    mode = Argument("mode", "str?", ("relu", None), default=("relu",))
    package = tmp_path / "mylib"
    package.mkdir()
    for name, text in files_of(op(Argument("x", "Tensor"), mode, doc="Doc.")).items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    # Torch's own types take mypy ten seconds.
    (tmp_path / "torch.pyi").write_text("class Tensor: ...\nclass dtype: ...\n")
    (tmp_path / "use.py").write_text(
        "import mylib\nfrom torch import Tensor\n\n"
        "def use(x: Tensor) -> Tensor:\n"
        "    folder: str = mylib.get_include()\n"
        "    print(folder, mylib.f(x, None))\n"
        "    mylib.f(3)\n"
        "    mylib.f(x, 'gelu')\n"
        "    mylib.g(x)\n"
        "    return mylib.f(x, mode='relu')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", "use.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [line.split(": ", 1)[0] for line in done.stdout.splitlines() if ": error: " in line]
    assert found == ["use.py:7", "use.py:8", "use.py:9"], done.stdout


def test_the_file_that_is_copied_names_this_library():
    text = files_of(op())["_library.py"]
    assert 'LIBRARY = "mylib"\nMACHINE = "x86_64"\n' in text
    other = BuiltLibrary("other", (), (op(),), Platform("", "aarch64"), {}, ())
    assert b'LIBRARY = "other"\nMACHINE = "aarch64"\n' in package_files(other, "1")["_library.py"]
    assert "opforge" not in {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)
        for alias in node.names
    }  # fmt: skip
