"""Habits that no linter holds: modules of up to 900 lines, packages that only hand names on."""

import ast
from collections import Counter
from pathlib import Path

import opforge

ROOT = Path(opforge.__file__).parent
MODULES = {path.relative_to(ROOT): path.read_text() for path in sorted(ROOT.rglob("*.py"))}


def hands_on(node: ast.stmt) -> bool:
    """A docstring, an import, a dunder, a table of names, or imports for type checkers alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return all(isinstance(inner, ast.ImportFrom) for inner in node.body) and not node.orelse
    if isinstance(node, ast.Assign):
        name = ast.unparse(node.targets[0]).strip("()")
        return name.startswith("__") or name == "_MODULES"
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, (ast.Import, ast.ImportFrom))


def test_a_package_only_hands_names_on():
    packages = {path: ast.parse(text) for path, text in MODULES.items() if path.stem == "__init__"}
    more = [(str(path), node) for path, tree in packages.items() for node in tree.body]
    assert [(path, ast.unparse(node)) for path, node in more if not hands_on(node)] == []


def test_no_module_has_more_than_900_lines():
    lines = {str(path): len(text.splitlines()) for path, text in MODULES.items()}
    assert {path: count for path, count in lines.items() if count > 900} == {}


def test_no_folder_has_two_classes_of_one_name():
    classes = Counter(
        (str(path.parent), node.name)
        for path, text in MODULES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    )
    assert [place for place, count in classes.items() if count > 1] == []
