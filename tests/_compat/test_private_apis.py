"""Private torch and Triton APIs are used in `_compat` and nowhere else, and doctor knows them."""

import ast
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch

import opforge
from opforge import _compat, doctor, versions
from opforge._compat import private_apis as asked
from opforge.errors import BuildFailed

SOURCE = Path(opforge.__file__).parent
ROOT = Path(__file__).parents[2]
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
    for folder in (SOURCE, ROOT / "examples", ROOT / "ops"):
        for path in sorted(folder.rglob("*.py")):
            if path.parent != SOURCE / "_compat":
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


USES = sorted({(module, use.name) for module in asked.modules() for use in asked.uses(module)})


def taken_away(monkeypatch, name):
    """The use of a name that torch or Triton no longer has."""
    resolve = asked._resolve

    def without(asked_for):
        if asked_for == name:
            raise AttributeError(f"no attribute {name.rpartition('.')[2]!r}")
        return resolve(asked_for)

    monkeypatch.setattr(asked, "_resolve", without)


def test_all_that_is_used_is_there():
    assert asked.gaps() == []
    assert len(USES) > 200


def test_every_module_belongs_to_a_feature():
    listed = [name for names in asked.FEATURES.values() for name in names]
    assert sorted(listed) == asked.modules()


@pytest.mark.parametrize(("module", "name"), USES)
def test_each_api_that_is_taken_away_is_named_with_its_feature(monkeypatch, module, name):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    taken_away(monkeypatch, name)
    gaps = [gap for gap in asked._gaps_of(module) if gap.api == name]
    assert gaps
    assert {gap.feature for gap in gaps} == {asked.feature_of(module)}


def test_doctor_and_whoever_uses_it_say_the_same_of_an_api_that_is_gone(monkeypatch):
    name = "torch._library.triton.triton_ops_to_kernels"
    taken_away(monkeypatch, name)
    monkeypatch.setattr(doctor, "_gpu", lambda: doctor.Tool(present=False, detail="none"))
    found = {finding.name: finding for finding in doctor.examine(thorough=True)}["torch.compile"]
    assert found.status == "missing"
    assert found.detail.startswith(name)
    monkeypatch.setattr(versions, "TESTED", {})
    monkeypatch.delitem(vars(_compat), "launches", raising=False)
    with pytest.raises(BuildFailed) as error:
        _compat.__getattr__("launches")
    assert error.value.found == found.detail
    assert error.value.fix.startswith(found.fix)


def test_a_method_that_is_called_with_more_is_a_gap(monkeypatch):
    from torch._higher_order_ops.triton_kernel_wrap import TracingTritonHOPifier  # noqa: PLC0415

    def raise_unsupported(self, msg, kernel):
        del self, msg, kernel

    monkeypatch.setattr(TracingTritonHOPifier, "raise_unsupported", raise_unsupported)
    [gap] = asked._gaps_of("launches")
    assert gap.api.endswith("TracingTritonHOPifier.raise_unsupported")
    assert "kernel" in gap.why


@pytest.mark.parametrize(
    ("torch_is", "triton_is", "tested"),
    [
        ("2.15.0+cu132", "3.9.0", True),
        ("2.11.0", "", True),
        ("", "3.7.1", True),
        ("2.16.0", "3.9.0", False),
        ("2.15.0", "3.10.0", False),
    ],
)
def test_versions_that_were_not_tested_are_told(monkeypatch, torch_is, triton_is, tested):
    monkeypatch.setattr(versions, "_version", {"torch": torch_is, "triton": triton_is}.get)
    assert versions.is_tested() is tested
