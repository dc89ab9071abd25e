"""The package in a wheel: functions, types and docstrings, and what it has of opforge."""

import ast
import dataclasses
import inspect
import types
from pathlib import PurePosixPath

import pytest

from opforge.native.ir.interface import Op, SchemaArgument
from opforge.shipping.package import (
    BuiltLibrary,
    Platform,
    callable_ops,
    copied_files,
    no_gradient,
    package_files,
)
from support.shipped_library import library

Argument = SchemaArgument


def op(*arguments, name="f", returns=("Tensor",), doc="", schema="ns::f() -> ()", result=()):
    return Op(
        name=name, torch_name=f"ns::{name}", location="ops.py:1", params=(), outputs=(),
        doc=doc, schema=schema, arguments=arguments, returns=returns, result=result,
    )  # fmt: skip


def library_of(*ops, files=()):
    return BuiltLibrary("mylib", ("sm_90",), ops, Platform("", "x86_64"), dict(files), ())


def files_of(*ops):
    return {name: text.decode() for name, text in package_files(library_of(*ops), "1.0").items()}


def module_of(*ops):
    return files_of(*ops)["__init__.py"]


def signatures(text):
    """By function, as it is written: `(x: Tensor) -> Tensor`."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {f.name: f"({ast.unparse(f.args)}) -> {ast.unparse(f.returns)}" for f in functions}


SIGNATURES = [
    ([Argument("x", "Tensor")], ("Tensor",), "(x: Tensor) -> Tensor"),
    ([Argument("x", "Tensor?", default=(None,))], (), "(x: Tensor | None=None) -> None"),
    ([], ("Tensor", "Tensor?"), "() -> tuple[Tensor, Tensor | None]"),
    ([Argument("n", "SymInt", default=(3,))], (), "(n: int=3) -> None"),
    ([Argument("eps", "float", default=(float("inf"),))], (), "(eps: float=float('inf')) -> None"),
    ([Argument("on", "bool", default=(1,))], (), "(on: bool=True) -> None"),
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
    (
        [Argument("d", "ScalarType", default=(("dtype", "float16"),))],
        (),
        "(d: dtype=_library.dtype('float16')) -> None",
    ),
]


@pytest.mark.parametrize(("arguments", "returns", "expected"), SIGNATURES)
def test_a_signature_is_the_schemas(arguments, returns, expected):
    assert signatures(module_of(op(*arguments, returns=returns)))["f"] == expected


RESULT = ("Both", "value", "slope")
TWO = ("Tensor", "Tensor?")


def test_a_named_tuple_is_a_class_of_the_package():
    text = module_of(*(op(name=name, returns=TWO, result=RESULT) for name in "fg"))
    declared = "class Both(NamedTuple):\n    value: Tensor\n    slope: Tensor | None\n"
    assert text.count(declared) == 1
    assert signatures(text)["g"] == "() -> Both"
    assert "return Both(*_op_f())" in text
    assert "'Both', " in text


@pytest.mark.parametrize(
    "result",
    [("Tensor", "value", "slope"), ("f", "value", "slope"), ("Both", "_a", "b"),
     ("Both", "value", "other")],
)  # fmt: skip
def test_a_class_that_the_package_cannot_have_is_a_plain_tuple(result):
    first = op(name="a", returns=TWO, result=RESULT)
    text = module_of(first, op(returns=TWO, result=result))
    assert signatures(text)["f"] == "() -> tuple[Tensor, Tensor | None]"
    assert "return _op_f()" in text


@pytest.mark.parametrize(
    "doc",
    ["Two\n\n    lines, indented.", 'Quotes """ and \\n and "', "", "ünïcode \\"],
)
def test_a_docstring_is_the_ops_own(doc):
    body = ast.parse(module_of(op(doc=doc))).body
    (function,) = (node for node in body if getattr(node, "name", "") == "f")
    schema = "As a torch operator: ns::f() -> ()"
    shown = inspect.cleandoc(doc)
    assert ast.get_docstring(function) == (f"{shown}\n\n{schema}" if shown else schema)


def test_arguments_are_handed_on_as_they_were_given():
    arguments = [Argument("x", "Tensor"), Argument("on", "bool", keyword_only=True)]
    text = module_of(op(*arguments)).replace("from . import _library\n", "")
    text = text.replace("from ._library import get_cmake_dir, get_include, get_library\n", "")
    handed = types.SimpleNamespace(operator=lambda name: lambda *a, **k: (name, a, k))
    made = {"_library": handed}
    exec(compile(text, "mylib", "exec"), made)
    assert made["f"](1, on=True) == ("ns::f", (1,), {"on": True})


@pytest.mark.parametrize("name", ["get_include", "lambda", "_hidden", "float", "jax"])
def test_a_name_that_the_package_cannot_have_is_left_to_torch_ops(name):
    made = library_of(op(name=name), op(), files={"jax.py": b""})
    assert [each.name for each in callable_ops(made)] == ["f"]


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
    assert [*signatures(module_of(op(*arguments, name="g"), op()))] == ["f"]


def imported(file, text):
    """The files that a copied one imports, and whether all of them are relative."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = PurePosixPath(file).parents[node.level - 1]
            module = base.joinpath(*(node.module or "").split("."))
            names = [alias.name for alias in node.names] if not node.module else []
            yield from ([f"{module / name}.py" for name in names] or [f"{module}.py"])
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            assert not any(name.partition(".")[0] == "opforge" for name in names)


def test_what_is_copied_imports_nothing_else_of_opforge():
    files = copied_files()
    for file, text in files.items():
        assert {*imported(file, text)} <= files.keys(), file
        for folder in list(PurePosixPath(file).parents)[:-1]:
            assert f"{folder}/__init__.py" in files


def test_a_gradient_needs_the_operators_that_it_calls():
    add, plus = library().ops
    assert no_gradient(plus, (add, plus)) == ""
    assert no_gradient(plus, (plus,)) == "its backward calls demo::add, which is not in the wheel"
    assert no_gradient(add, (add, plus)) == "the library has no backward for it"
    writing = dataclasses.replace(plus, schema="demo::plus(Tensor(a!) x, Tensor y) -> ()")
    assert no_gradient(writing, (add, plus)).startswith("torch takes none of an operator that wri")
    by_keyword = [*plus.arguments[:1], dataclasses.replace(plus.arguments[1], keyword_only=True)]
    keyword_only = dataclasses.replace(plus, arguments=tuple(by_keyword))
    assert no_gradient(keyword_only, (add, plus)).endswith("operator with keyword-only tensors")
    nested = dataclasses.replace(plus, formula=(("item", plus.formula[1], 0), None))
    assert no_gradient(nested, (plus,)) == no_gradient(plus, (plus,))
