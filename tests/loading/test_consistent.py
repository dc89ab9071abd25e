"""Manifests whose fields are fine one by one, and contradict each other."""

import json

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import opforge
from opforge.errors import FakeUnknown, NotALibrary
from opforge.native.library.shared_library import SharedLibrary
from opforge.registry import registry

ADD, EVERYTHING, MATMUL = "add", "everything", "matmul"


def at(name, *way):
    """`at("add", "params", 0)`, in a manifest."""
    return name, way


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (at(ADD, "torch_name"), "aten::add", r"\.torch_name cannot be used: 'aten::add' is not"),
        (at(ADD, "torch_name"), "demo add", r"\.torch_name cannot be used"),
        (at(ADD, "schema"), "demo::add", r"\.schema is 'demo::add', expected that of demo::add"),
        (at(ADD, "schema"), "demo::add(", r"\.schema cannot be parsed"),
        (at(ADD, "schema"), "demo::add(Tensor \ud800)", r"\.schema cannot be parsed"),
        (at(ADD, "arguments"), [], r"\.arguments are '', and the schema has x, y"),
        (at(ADD, "arguments", 0, "name"), "x=print(1)", r"\.arguments are 'x=print\(1\), y'"),
        (at(ADD, "arguments", 1, "keyword_only"), True, r"\.arguments\[1\]\.keyword_only is True"),
        (at(ADD, "arguments", 1, "default"), [None], r"\.arguments\[1\]\.default has 1 values"),
        (at(ADD, "arguments", 1, "fixed"), True, r"\.params\[1\]\.name is 'y', which no argument"),
        (at(ADD, "params", 1, "name"), "x", r"\.params\[1\]\.name is 'x', which no argument"),
        (at(ADD, "params", 1, "name"), "z", r"\.params\[1\]\.name is 'z', which no argument"),
        (at(ADD, "params"), [], r"\.arguments\[0\]\.fixed is False, and no parameter is called x"),
        (at(ADD, "returns"), [], r"\.returns has 0 types, and the schema 1"),
        (
            at(ADD, "params", 1),
            {"name": "y", "kind": "scalar", "dtype": "i64"},
            r"\.params\[1\]\.name is 'y', of which the schema says Tensor",
        ),
        (
            at(EVERYTHING, "arguments", -2, "values"),
            ["relu"],
            r"\.arguments\[16\]\.values are 1, expected 2",
        ),
        (
            at(EVERYTHING, "arguments", -1, "values", 0),
            ["dtype", "nope"],
            r"\.arguments\[17\]\.values\[0\] is \['dtype', 'nope'\], which is not a value of torch",
        ),
        (at(EVERYTHING, "arguments", -1, "values", 0), ["dtype"], ".*is not a value of torch"),
        (
            at(EVERYTHING, "arguments", -1, "values", 0),
            ["device", "x"],
            ".*is not a value of torch",
        ),
        (at(MATMUL, "formula"), [["grad", 0]], r"\.formula has 1 terms for 2 arguments"),
        (at(MATMUL, "formula", 0), ["grad", 1], r"\.formula\[0\] is \['grad', 1\], expected a"),
        (at(MATMUL, "formula", 0), ["value", 1], r"\.formula\[0\] is \['value', 1\], expected a"),
        (at(MATMUL, "formula", 0), ["call", "exit"], r"\.formula\[0\] is \['call', 'exit'\]"),
        (at(MATMUL, "formula", 0, 3), ["item"], r"\.formula\[0\]\[3\] is \['item'\], expected"),
    ],
)
def test_a_contradiction_is_told_with_its_field(dist, monkeypatch, place, value, said):
    forge(dist, monkeypatch, place, value)
    with pytest.raises(NotALibrary, match=r"found: ops\[\d\]" + said):
        opforge.load(dist, host_memory=True, adapter=False)
    assert registry.find("demo::add") is None


def forge(dist, monkeypatch, place, value):
    """Let the library say something else of an operator."""
    name, way = place
    manifest = json.loads(SharedLibrary(dist / "lib" / "libloaded.so").contents.text)
    (content,) = (op for op in manifest["ops"] if op["name"] == name)
    for key in way[:-1]:
        content = content[key]
    content[way[-1]] = value
    forged = json.dumps(manifest).encode()
    monkeypatch.setattr(SharedLibrary, "_manifest", lambda self: forged)


OUTPUT = ("cases", 2, "paths", 1, "outputs", 0)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("cases", 0, "tensors", 0, "param"), "z", r"\.tensors\[0\]\.param is 'z', which is no"),
        (
            ("cases", 0, "tensors", 0, "strides"),
            [1, 1],
            r"\.tensors\[0\]\.strides are 2, expected 1",
        ),
        (("cases", 0, "paths", 0, "outputs"), [], r"\.paths\[0\]\.outputs are 0, expected 1"),
        ((*OUTPUT, "strides"), [1, 2], r"\.outputs\[0\]\.strides are 2, expected 1"),
        ((*OUTPUT, "shape"), [0.5], r"\.outputs\[0\]\.shape\[0\] is '0\.5', expected an integer"),
        (
            (*OUTPUT, "shape"),
            [2**63],
            r"\.shape\[0\] is '9223372036854775808', expected an integer",
        ),
        ((*OUTPUT, "shape"), [2**64], r"\.shape\[0\] is a number of more than 64 bits"),
        ((*OUTPUT, "shape"), [["//", "m"]], r"\.shape\[0\] has 1 operands of //, expected 2"),
        (
            ("cases", 0, "paths", 0, "guards", 0, "condition"),
            ["where", "m", 1],
            r"\.guards\[0\]\.condition has 2 operands of where, expected 3",
        ),
    ],
)
@pytest.mark.usefixtures("standin")
def test_a_contradiction_in_a_case_is_told_by_the_first_trace(
    dist, monkeypatch, place, value, said
):
    forge(dist, monkeypatch, (ADD, place), value)
    ops = opforge.load(dist, host_memory=True, adapter=False)
    try:
        with (
            pytest.raises(NotALibrary, match=r"found: ops\[0\]\.cases\[\d\].*" + said),
            FakeTensorMode(),
        ):
            torch.ops.demo.add(torch.ones(3), torch.ones(3))
    finally:
        ops.close()


@pytest.mark.usefixtures("standin")
def test_an_output_of_an_unknown_size_is_told_by_the_first_trace(dist, monkeypatch):
    forge(dist, monkeypatch, (ADD, (*OUTPUT, "shape")), ["other"])
    ops = opforge.load(dist, host_memory=True, adapter=False)
    try:
        with pytest.raises(FakeUnknown, match="depends on other"), FakeTensorMode():
            torch.ops.demo.add(torch.ones(3), torch.ones(3))
    finally:
        ops.close()
