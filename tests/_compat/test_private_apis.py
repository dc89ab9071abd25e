"""Private torch and Triton APIs are used in `_compat` and nowhere else."""

import ast
from pathlib import Path

import pytest

import opforge

SOURCE = Path(opforge.__file__).parent
# Of torch's objects: their owner does not tell that they are torch's.
ATTRIBUTES = {"_is_view", "_overloadname", "_schema"}


def is_private(dotted):
    """`triton.runtime`, and all of torch that begins with an underscore."""
    top, *rest = dotted.split(".")
    if top == "triton":
        return rest[:1] == ["runtime"]
    hidden = [part for part in rest if part.startswith("_") and not part.endswith("__")]
    return top == "torch" and bool(hidden)


def private_apis(tree):
    for node in ast.walk(tree):
        dotted = []
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            dotted = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            dotted = [ast.unparse(node)]
            if node.attr in ATTRIBUTES:
                yield f"line {node.lineno}: {dotted[0]}"
        yield from (f"line {node.lineno}: {name}" for name in dotted if is_private(name))


def test_private_apis_are_used_only_in_compat():
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] != "_compat":
            assert (path, list(private_apis(ast.parse(path.read_text())))) == (path, [])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch._dynamo", True),
        ("from torch.library import _scoped_library", True),
        ("def f():\n    from triton.runtime.jit import JITFunction", True),
        ("torch._C._dispatch_keys()", True),
        ("overload._schema.returns", True),
        ("import torch.library, triton.language", False),
        ("torch.__version__, triton.cdiv, self._torch", False),
    ],
)
def test_private_names_are_told_from_public_ones(source, found):
    assert bool(list(private_apis(ast.parse(source)))) is found
