"""The habits of the house that no linter holds: small modules, and packages that only hand on."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import opforge

ROOT = Path(opforge.__file__).parent
MODULES = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}
PACKAGES = [name for name in MODULES if name.endswith("__init__.py")]


def hands_on(node: ast.stmt) -> bool:
    """An import, a dunder, a table of names, or imports for type checkers alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return all(isinstance(inner, ast.ImportFrom) for inner in node.body) and not node.orelse
    if isinstance(node, ast.Assign):
        name = ast.unparse(node.targets[0]).strip("()")
        return name.startswith("__") or name == "_MODULES"
    return isinstance(node, (ast.Import, ast.ImportFrom))


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_only_hands_names_on(name):
    docstring, *rest = ast.parse(MODULES[name].read_text()).body
    assert isinstance(docstring, ast.Expr)
    assert [ast.unparse(node) for node in rest if not hands_on(node)] == []


def test_no_module_has_more_than_900_lines():
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > 900} == {}


def test_no_folder_has_two_classes_of_one_name():
    places = defaultdict(list)
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[path.parent, node.name].append(f"{name}:{node.lineno}")
    assert [found for found in places.values() if len(found) > 1] == []
