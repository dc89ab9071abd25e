"""The import contract: which room may import which, as the design's table has it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "opforge"
MODULES = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}

# Each room with what it may import besides itself and the standard library. "opforge" stands for
# names of the public API. `cli` may import everything and is left out.
CONTRACT = {
    "errors": set(),
    "model": set(),
    "_lazy": set(),
    "_compat": {"_lazy", "torch", "triton"},
    "analysis": {"model", "errors", "_compat", "torch"},
    "lowering": {"model", "errors"},
    "gpu_target": {"_compat", "errors"},
    "tuning": {"_compat", "errors", "torch"},
    "capture": {"_compat", "errors", "gpu_target", "torch", "tuning"},
    "registration": {"model", "errors", "lowering", "capture", "_compat", "torch", "tuning"},
    "naming": {"errors"},
    "deferred": set(),
    "registry": {"model", "errors", "_compat", "deferred"},
    "explain": {"registry", "model", "errors", "op", "lowering", "analysis", "tuning"},
    "magi": {"op", "model", "errors"},
    "doctor": {"torch"},
    "cli_targets": {"errors", "opforge", "registry"},
    "testing": {"check", "pytest"},
    "aoti_package": {"errors", "_compat", "registry", "cli_targets", "torch"},
}
CONTRACT["compiler"] = {"_compat", "errors", "registry", "torch"}
CONTRACT["native"] = {
    "model",
    "errors",
    "_compat",
    "registry",
    "lowering",
    "gpu_target",
    "cli_targets",
}
CONTRACT["native"] |= {
    "gpu_target",
    "cli_targets",
    "_lazy",
    "opforge",
    "capture",
    "doctor",
    "registration",
    "rich",
    "torch",
    "triton",
    "tuning",
}
CONTRACT["loading"] = {"_lazy", "_compat", "errors", "explain", "lowering", "model", "native"}
CONTRACT["loading"] |= {"deferred", "registration", "registry", "torch"}
CONTRACT["check"] = {
    "model",
    "errors",
    "_compat",
    "analysis",
    "registry",
    "gpu_target",
    "cli_targets",
}
CONTRACT["check"] |= {"gpu_target", "cli_targets", "doctor", "native", "aoti_package", "torch"}
CONTRACT["measuring"] = CONTRACT["tuning"] | {"native", "registry", "rich", "tuning", "cli_targets"}
CONTRACT["reading"] = {"model", "errors", "_compat", "analysis", "registration", "registry"}
CONTRACT["op"] = {"naming", "explain", "reading", "registry", "registration", "analysis"}
CONTRACT["op"] |= CONTRACT["registration"]

every_module = pytest.mark.parametrize("name", MODULES)


def parse(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def room_of(name: str) -> str:
    return Path(name).parts[0].removesuffix(".py")


def imported(name: str) -> Iterator[str]:
    """Dotted names, `from ..errors import BadName` as `opforge.errors.BadName`."""
    package = ["opforge", *Path(name).parts[:-1]]
    for node in ast.walk(parse(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            origin = [*above, *([node.module] if node.module else [])]
            yield from (".".join([*origin, alias.name]) for alias in node.names)


def rooms_imported(name: str) -> set[str]:
    rooms = set()
    for top, *rest in (dotted.split(".") for dotted in imported(name)):
        inside = top == "opforge" and rest and rest[0] in {*CONTRACT, "cli"}
        rooms.add(rest[0] if inside else top)
    return rooms - sys.stdlib_module_names


def attributes(name: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(parse(name)):
        if isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)


def is_private(dotted: str) -> bool:
    top, *rest = dotted.split(".")
    if top == "triton":
        return rest[:1] == ["runtime"]
    hidden = [part for part in rest if part.startswith("_") and not part.endswith("__")]
    return top == "torch" and bool(hidden)


@every_module
def test_a_room_imports_only_what_the_contract_allows(name):
    room = room_of(name)
    if room not in {"__init__", "__main__", "cli"}:
        assert rooms_imported(name) <= CONTRACT[room] | {room}


@every_module
def test_private_torch_and_triton_apis_are_used_only_in_compat(name):
    if room_of(name) != "_compat":
        used = [f"{name}: imports {d}" for d in imported(name) if is_private(d)]
        used += [f"{name}:{line}: {d}" for line, d in attributes(name) if is_private(d)]
        assert used == []


def hands_on(node: ast.stmt) -> bool:
    """An import, a dunder, a table of names, or imports for type checkers alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return all(isinstance(inner, ast.ImportFrom) for inner in node.body) and not node.orelse
    if isinstance(node, ast.Assign):
        name = ast.unparse(node.targets[0]).strip("()")
        return name.startswith("__") or name == "_MODULES"
    return isinstance(node, (ast.Import, ast.ImportFrom))


@every_module
def test_an_init_file_only_hands_names_on(name):
    if Path(name).name != "__init__.py":
        return
    docstring, *rest = parse(name).body
    assert isinstance(docstring, ast.Expr)
    assert [ast.unparse(node) for node in rest if not hands_on(node)] == []


@every_module
def test_a_module_has_at_most_600_lines(name):
    assert len(MODULES[name].read_text().splitlines()) <= 600


def test_the_contract_sees_relative_absolute_and_nested_imports(tmp_path, monkeypatch):
    source = tmp_path / "sample.py"
    source.write_text(
        "from .. import _compat\n"
        "from ..errors import BadName\n"
        "from .plan import lower\n"
        "from opforge import is_op\n"
        "def late():\n    import opforge.model, triton.language, json\n"
    )
    monkeypatch.setitem(MODULES, "lowering/sample.py", source)
    found = rooms_imported("lowering/sample.py")
    assert found == {"_compat", "errors", "lowering", "opforge", "model", "triton"}


@pytest.mark.parametrize(
    ("dotted", "private"),
    [
        ("torch._C._dispatch_keys", True),
        ("torch.library._scoped_library", True),
        ("triton.runtime.jit.JITFunction", True),
        ("torch.__version__", False),
        ("torch.library.Library", False),
        ("triton.cdiv", False),
        ("self._torch", False),
    ],
)
def test_private_names_are_told_from_public_ones(dotted, private):
    assert is_private(dotted) is private
