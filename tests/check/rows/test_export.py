"""export, export strict, save and load, package: each passing, failing and skipped."""

import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import opforge
from opforge.check.rows import export
from opforge.doctor import Finding
from support.checking import row
from support.launching import blocks, double


@dataclasses.dataclass(frozen=True)
class Config:
    weight: Tensor
    scale: float = 2.0


@dataclasses.dataclass(frozen=True)
class Unregistered:
    weight: Tensor


def scaled(x: Tensor, cfg: Config, *, bias: Tensor | None = None) -> Tensor:
    out = x * cfg.weight * cfg.scale
    return out if bias is None else out + bias


each_export = pytest.mark.parametrize("name", ["export", "export strict"])


@each_export
def test_export_passes_with_a_dynamic_batch_records_and_keywords(op_name, name):
    op = opforge.op(op_name())(scaled)
    found = row(name, op, torch.ones(4, 3), Config(torch.ones(3)), bias=torch.ones(4, 3))
    assert (found.status, found.reason) == ("pass", "dynamic batch, 4 and 9")


@each_export
def test_export_fails_where_the_fake_fixes_the_batch(op_name, name):
    def add_one(x: Tensor) -> Tensor:
        return x + 1

    op = opforge.op(op_name(), fake=lambda x: x.new_empty(int(x.shape[0]), 3))(add_one)
    found = row(name, op, torch.ones(4, 3))
    assert found.status == "fail"
    assert "x.shape[0]" in found.fix
    assert len(found.reason) < 320


@each_export
def test_export_fails_where_the_program_computes_something_else(op_name, name):
    calls = []

    @opforge.op(op_name(), fake=torch.empty_like)
    def alternates(x: Tensor) -> Tensor:
        calls.append(1)
        return x + len(calls)

    found = row(name, alternates, torch.zeros(4, 3))
    assert found.status == "fail"
    assert found.reason.startswith("output: ")


def test_export_without_a_batch_has_fixed_sizes_and_says_so(op_name):
    @opforge.op(op_name())
    def allocate(n: int) -> Tensor:
        return torch.zeros(n)

    found = row("export", allocate, 3)
    assert (found.status, found.reason) == ("pass", "with fixed sizes")
    assert found.notes == ("no dynamic batch: no tensor input has a batch dimension",)


def test_a_class_that_export_does_not_know_fails_with_the_way_to_register_it(op_name):
    @opforge.op(op_name())
    def inner(x: Tensor) -> Tensor:
        if x.device.type == "cpu":
            return x * 2
        out = torch.empty_like(x)
        double[blocks(x.numel())](x, out, x.numel(), BLOCK=64)
        return out

    @opforge.op
    def plain(x: Tensor, cfg: Unregistered) -> Tensor:
        return inner(x) * cfg.weight

    try:
        assert opforge.info(plain).mode == "none"
        found = row("export", plain, torch.ones(4, 3), Unregistered(torch.ones(3)))
        assert found.status == "fail"
        assert found.reason.startswith("ValueError: Unsupported input type")
        assert "torch.export.register_dataclass" in found.fix
        later = row("save and load", plain, torch.ones(4, 3), Unregistered(torch.ones(3)))
        assert later.status == "skipped"
        assert later.reason == "there is no exported program (row export)"
    finally:
        opforge.unregister(plain)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_named_tuples_survive_save_and_load(op_name):
    @opforge.op(op_name())
    def swapped(x: Tensor, pair: Pair) -> Pair:
        return Pair(x * pair.second, x * pair.first)

    found = row("save and load", swapped, torch.ones(4, 3), Pair(torch.ones(3), torch.zeros(3)))
    assert found.status == "pass", found


def test_package_is_skipped_without_a_compiler(op_name, monkeypatch):
    lacking = [Finding("torch.compile", "limited", "Inductor lacks a C++ compiler", "apt-get g++")]
    monkeypatch.setattr(export, "examine", lambda: lacking)
    found = row("package", opforge.op(op_name())(scaled), torch.ones(4), Config(torch.ones(4)))
    expected = ("skipped", "Inductor lacks a C++ compiler", "apt-get g++")
    assert (found.status, found.reason, found.fix) == expected
