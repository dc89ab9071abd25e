"""Parts of opforge that a wheel has, and which of its operators have a gradient."""

import ast
import dataclasses
from pathlib import PurePosixPath

from opforge.shipping.rules import copied_files, no_gradient
from support.shipped_library import library


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
