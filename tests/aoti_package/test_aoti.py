"""opforge._compat.aoti: configs that may be missing, and reading a package's contents."""

import json
import zipfile

import pytest
import torch
import torch._inductor

from opforge._compat import aoti


@pytest.fixture
def compiled(monkeypatch):
    """The arguments that the compiler was called with, instead of a compilation."""
    seen = {}

    def compile_and_package(exported, *, package_path, inductor_configs):
        config = torch._inductor.config
        seen.update(inductor_configs, launch=getattr(config, aoti.STATIC_LAUNCH, None))

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_and_package)
    return seen


@pytest.mark.skipif(
    not hasattr(torch._inductor.config, aoti.STATIC_LAUNCH), reason="this torch does not have it"
)
def test_kernels_are_launched_statically_for_this_call_only(compiled, tmp_path):
    before = getattr(torch._inductor.config, aoti.STATIC_LAUNCH)
    assert aoti.compile_package(None, tmp_path, {"max_autotune": True}) == "set"
    assert compiled == {"max_autotune": True, "launch": True}
    assert getattr(torch._inductor.config, aoti.STATIC_LAUNCH) == before


def test_a_torch_without_the_config_is_reported_but_does_not_fail(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(aoti, "STATIC_LAUNCH", "a_config_of_some_later_torch")
    said = aoti.compile_package(None, tmp_path, {})
    assert said == f"not set: torch {torch.__version__} does not have this config"


@pytest.mark.parametrize(
    "target", ["ns::op", "ns::op.default", "ns.op.default", "torch.ops.ns.op.default"]
)
def test_operators_are_read_in_every_spelling(target, tmp_path):
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        nodes = {"nodes": [{"name": "buf0", "node": {"target": target}}]}
        archive.writestr("model/data/aotinductor/model/a.json", json.dumps(nodes))
        archive.writestr("model/data/aotinductor/model/a_metadata.json", '{"AOTI_MACHINE": "x"}')
        archive.writestr("model/other.json", "not json")
    assert aoti.operators_called_by(path) == ("ns::op",)


class Writes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("kept", torch.zeros(4))
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.seen[:2].view(2, 1).add_(1)
        return x * self.weight + self.kept


def test_a_write_through_views_is_traced_to_its_buffer():
    assert aoti.written_state(torch.export.export(Writes(), (torch.ones(4),))) == ["seen"]
