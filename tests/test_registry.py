"""What opforge knows about its ops: info, explain, threads, copies and pickles."""

# The old spellings are tested, too.
# ruff: noqa: UP045

import copy
from dataclasses import dataclass
from typing import Literal, Optional

import pytest
import torch
import triton
from torch import Tensor

import opforge
from opforge.errors import BadSignature, WrongArgument
from opforge.registry import registry

X = torch.arange(3.0)


@dataclass(frozen=True)
class Config:
    scale: float
    weight: Optional[Tensor] = None


@opforge.op("opforge_registry::scaled")
def scaled(x: Tensor, config: Config, mode: Literal["a", "b"] = "a") -> Tensor:
    """Scale x."""
    return x * config.scale


@opforge.op("opforge_registry::doubled")
def doubled(x: Tensor) -> Tensor:
    return x * 2


def undecorated(x: Tensor, config: Config, n: int = 3) -> Tensor:
    return x * config.scale * n


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.direct = doubled
        self.flattened = scaled
        self.kept = {"ops": [doubled, scaled]}

    def forward(self, x):
        return self.direct(self.flattened(x, Config(3.0)) * self.weight)


def place_of(fn):
    return f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}"


@triton.jit
def kernel():
    pass


def test_info_of_an_op_with_flags_and_kernels_has_them(op_name):
    @opforge.op(op_name(), compute_sensitive=True, subgraph_boundary=True, kernels=[kernel])
    def f(x: Tensor) -> Tensor:
        return x.clone()

    info = opforge.info(f)
    assert (info.compute_sensitive, info.subgraph_boundary) == (True, True)
    (found,) = info.kernels
    assert (found.name, found.kernel, found.found_via) == ("kernel", kernel, "kernels=")
    assert found.location == f"{__file__}:{kernel.fn.__code__.co_firstlineno}"


@pytest.mark.parametrize("thing", [undecorated, torch.add, torch.ops.aten.add.Tensor, "no::op", 3])
def test_info_of_something_that_is_not_an_op_is_refused(thing):
    with pytest.raises(WrongArgument) as caught:
        opforge.info(thing)
    assert f"{thing!r} is not an opforge op" in str(caught.value)
    assert "decorate it with @opforge.op" in str(caught.value)
    assert isinstance(caught.value, TypeError)


class Eager:
    def __getattr__(self, name):
        raise RuntimeError(name)


def test_is_op_knows_ops_from_other_things(op_name):
    assert opforge.is_op(doubled)
    assert opforge.is_op(scaled)
    assert opforge.is_op(torch.ops.opforge_registry.doubled)
    assert opforge.is_op(torch.ops.opforge_registry.scaled.default)
    for thing in (
        undecorated,
        torch.add,
        torch.ops.aten.add,
        "opforge_registry::doubled",
        None,
        3,
        Config,
        torch.ops,
        torch,
        Eager,
        Eager(),
    ):
        assert not opforge.is_op(thing)
    gone = opforge.op(op_name())(undecorated)
    opforge.unregister(gone)
    assert not opforge.is_op(gone)


def test_explain_says_the_same_for_a_person():
    text = opforge.explain(scaled)
    info = opforge.info(scaled)
    assert text.startswith(f"opforge_registry::scaled  ({info.location})\n")
    for part in (
        info.schema,
        "flattened: a generated callable takes arguments apart",
        "custom_op",
        "config: Config, taken apart",
        "config.scale -> float config__scale",
        "config.weight -> Tensor? config__weight",
        "mode -> str mode, one of 'a', 'b' = 'a'",
    ):
        assert part in text


def test_explain_says_what_is_supplied_mutated_and_flagged(op_name):
    @opforge.op(op_name(), mutates_args=["config"], compute_sensitive=True)
    def f(x: Tensor, config: Config, s: float = float("inf"), *, n: int) -> None:
        if config.weight is not None:
            config.weight.add_(x)

    text = opforge.explain(f)
    assert "the callable supplies the default of s, which a schema cannot express" in text
    assert "n -> SymInt n (keyword-only)" in text
    assert "mutates   config.weight" in text
    assert "flags     compute_sensitive" in text


def test_explain_of_an_undecorated_function_registers_nothing():
    text = opforge.explain(undecorated)
    assert text.startswith(f"test_registry::undecorated  ({place_of(undecorated)})")
    assert "not registered yet: what @opforge.op would do" in text
    assert "config__scale" in text
    assert not opforge.is_op(undecorated)
    with pytest.raises(WrongArgument):
        opforge.info("test_registry::undecorated")
    assert not hasattr(torch.ops.test_registry, "undecorated")


def test_explain_of_a_function_that_cannot_be_an_op_says_why():
    def f(x, table: dict) -> Tensor:
        return x

    with pytest.raises(BadSignature, match="no type annotation on x") as caught:
        opforge.explain(f)
    assert place_of(f) in str(caught.value)

    def g(x: Tensor, table: dict) -> Tensor:
        return x

    with pytest.raises(BadSignature, match="test_registry::g"):
        opforge.explain(g)


def test_a_module_that_holds_ops_can_be_copied():
    model = Model()
    twin = copy.deepcopy(model)
    assert twin.direct is doubled
    assert twin.flattened is scaled
    assert twin.kept["ops"] == [doubled, scaled]
    assert twin.weight is not model.weight
    assert torch.equal(twin(X), model(X))
    assert torch.equal(twin(X), X * 6)


def test_an_op_that_is_freed_late_leaves_its_successor_alone(op_name, collect):
    name = op_name()
    op = opforge.op(plus_one, name=name, mode="custom_op")
    kept = [registry.get(op).registration]
    opforge.unregister(op)
    again = opforge.op(plus_one, name=name, mode="custom_op")
    kept.clear()
    collect()
    space, _, short = name.partition("::")
    assert getattr(getattr(torch.ops, space), short).default is again
    assert f"{space}/{short}/Meta" in torch.library._impls


def plus_one(x: Tensor) -> Tensor:
    return x + 1
