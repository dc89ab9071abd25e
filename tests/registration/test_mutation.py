"""Ops that change their inputs: how to say so, versions, functionalization, aliases."""

import dataclasses

import pytest
import torch
from functorch.compile import aot_function, nop

import opforge
from opforge.errors import (
    MissingBackward,
    OpforgeWarning,
    UnsupportedBody,
)
from support.gradients import Pair, refusal
from support.processes import run_python

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Inner:
    cache: Tensor
    length: int = 0


def test_the_version_rises_once_where_autograd_follows_the_input(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def op(x: Tensor) -> None:
        x.data.add_(1)

    x = torch.zeros(2, requires_grad=True) * 1
    for version in (1, 2):
        op(x)
        assert x._version == version
    with pytest.raises(opforge.OpforgeError, match="has no backward"):
        x.sum().backward()


A, B = torch.zeros(2), torch.zeros(2)


@pytest.mark.parametrize(
    ("annotation", "mutates", "value", "written"),
    [
        (list[Tensor], ["value"], [A, B], [A, B]),
        (list[Tensor], ["value"], [], []),
        (list[Tensor | None], ["value"], [None, A], [A]),
        (Tensor | None, ["value"], None, []),
        (Tensor | None, ["value"], A, [A]),
        (list[Tensor] | None, ["value"], None, []),
        (list[Tensor] | None, ["value"], [A], [A]),
        (Inner | None, ["value"], None, []),
        (Inner | None, ["value"], Inner(A), [A]),
        (Pair, ["value.right"], Pair(A, B), [B]),
        (tuple[Tensor, Tensor], ["value.1"], (A, B), [B]),
    ],
)
def test_the_version_rises_of_what_is_written_wherever_it_is(
    op_name, annotation, mutates, value, written
):
    def body(x, *, value):
        for tensor in written:
            # Behind torch's back.
            tensor.numpy()[:] += x.numpy()

    body.__annotations__ = {"x": Tensor, "value": annotation, "return": None}
    op = opforge.op(body, name=op_name(), mutates_args=mutates)
    before = [t._version for t in (A, B)], [t.tolist() for t in written]
    op(torch.ones(2), value=value)
    rises = [any(t is w for w in written) for t in (A, B)]
    assert [t._version for t in (A, B)] == [v + r for v, r in zip(before[0], rises, strict=True)]
    assert [t.tolist() for t in written] == [[n + 1 for n in was] for was in before[1]]


def test_a_tensor_saved_for_backward_and_then_mutated_is_noticed(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def clear(x: Tensor) -> None:
        x.numpy()[:] = 0

    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    product = (x * y).sum()
    clear(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_mutation_between_reads_keeps_its_order_when_compiled(op_name, backend):
    @opforge.op(op_name(), mutates_args=["x"])
    def add_one(x: Tensor) -> None:
        x.add_(1)

    def function(x):
        before = x * 10
        add_one(x)
        middle = x * 10
        add_one(x)
        return before + middle + x

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    eager, traced = torch.arange(3.0), torch.arange(3.0)
    torch.testing.assert_close(compiled(traced), function(eager))
    torch.testing.assert_close(traced, eager)


def test_a_mutating_op_is_not_dropped_as_dead_code(op_name):
    calls = []

    @opforge.op(op_name(), mutates_args=["x"], fake=lambda x: None)
    def note(x: Tensor) -> None:
        calls.append(x.sum().item())

    def function(x):
        note(x)
        return x + 1

    torch.compile(function, backend="inductor", fullgraph=True)(torch.ones(2))
    assert calls == [2.0]


def test_a_buffer_is_mutated_through_an_exported_module(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def add_one(x: Tensor) -> None:
        x.add_(1)

    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            add_one(self.count)
            return x + self.count

    exported = torch.export.export(Counter(), (torch.ones(2),))
    module = exported.module()
    assert module(torch.ones(2)).tolist() == [2.0, 2.0]
    assert module(torch.ones(2)).tolist() == [3.0, 3.0]


def test_a_leaf_that_requires_grad_is_mutated_under_no_grad_alone(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def add_one(x: Tensor) -> None:
        x.add_(1)

    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(UnsupportedBody, match="parameter 'x'"):
        add_one(x)
    assert x.tolist() == [0.0, 0.0]
    with torch.no_grad():
        add_one(x)
    assert x.tolist() == [1.0, 1.0]
    assert x.is_leaf


@pytest.mark.parametrize(
    "mutated",
    [lambda x: [x], lambda x: [torch.ones(2), x], lambda x: [x[0]]],
    ids=["itself", "in a list", "a view"],
)
def test_a_mutated_intermediate_has_no_stale_gradient(op_name, mutated):
    """Its value now comes from the op; the gradient from before the mutation would be wrong."""

    @opforge.op(op_name(), mutates_args=["items"])
    def triple(items: list[Tensor]) -> None:
        for item in items:
            item.mul_(3)

    leaf = torch.ones(2, 2, requires_grad=True)
    x = leaf * 2
    triple(mutated(x))
    assert x[0].tolist() == [6.0, 6.0]
    with pytest.raises(MissingBackward):
        x.sum().backward()
    assert leaf.grad is None


@pytest.mark.parametrize("how", ["compiled", "torch.func.grad"])
def test_a_mutated_intermediate_has_no_stale_gradient_in_a_transform(op_name, how):
    name = op_name()

    @opforge.op(name, mutates_args=["x"])
    def triple(x: Tensor) -> None:
        x.mul_(3)

    def function(leaf):
        x = leaf * 2
        triple(x)
        return x.sum()

    def go_back():
        if how == "compiled":
            compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
            compiled(torch.ones(2, requires_grad=True)).backward()
        else:
            torch.func.grad(function)(torch.ones(2))

    assert name in refusal(go_back)


def test_an_out_buffer_filled_from_an_input_that_requires_grad_gets_its_history(op_name):
    @opforge.op(op_name(), mutates_args=["out"])
    def double_into(x: Tensor, out: Tensor) -> None:
        torch.mul(x, 2, out=out)

    leaf, out = torch.ones(2, requires_grad=True), torch.zeros(2)
    double_into(leaf, out)
    assert out.tolist() == [2.0, 2.0]
    assert out.requires_grad
    with pytest.raises(MissingBackward):
        out.sum().backward()


def filled_then_written(op, *, own_use):
    """What torch.compile traces backward at once, and eager never goes back through."""

    def function(weight, scale, buffer):
        saved = buffer.clone()
        y = saved @ weight
        out = torch.empty_like(y)
        op(y, out)
        saved.add_(1)
        return out * scale, (y * 2 if own_use else None)

    return function


def fill(name):
    @opforge.op(name, mutates_args=["out"])
    def op(x: Tensor, out: Tensor) -> None:
        out.copy_(x * 2)

    return op


def leaves():
    return torch.ones(2, 2, requires_grad=True), torch.ones(2, requires_grad=True), torch.ones(2, 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_was_saved_before_a_mutating_op_may_be_written_after_it(op_name, backend):
    function = filled_then_written(fill(op_name()), own_use=False)
    run = function if backend == "eager" else torch.compile(function, backend=backend)
    weight, scale, buffer = leaves()
    out, _ = run(weight, scale, buffer)
    assert out.tolist() == [[4.0, 4.0], [4.0, 4.0]]
    with pytest.raises(MissingBackward):
        out.sum().backward()
    assert weight.grad is None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_gradient_that_needs_what_was_written_raises(op_name, backend):
    function = filled_then_written(fill(op_name()), own_use=True)
    run = function if backend == "eager" else torch.compile(function, backend=backend)
    weight, scale, buffer = leaves()
    _, own = run(weight, scale, buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        own.sum().backward()
    assert weight.grad is None


def test_versions_rise_in_a_trace_as_those_of_custom_op(op_name):
    def body(x: Tensor, out: Tensor) -> None:
        out.copy_(x * 2)

    theirs = torch.library.custom_op(op_name(), body, mutates_args=["out"])
    theirs.register_fake(lambda x, out: None)
    seen = {}

    def traced(op, kind):
        def function(x):
            y = x * 1
            out = torch.empty_like(y)
            before = out._version
            op(y, out)
            seen[kind] = out._version - before
            return out

        return function

    for op in (fill(op_name()), theirs):
        aot_function(traced(op, op), fw_compiler=nop)(torch.ones(2, requires_grad=True))
    ours, torchs = seen.values()
    assert ours == torchs == 1


def test_code_that_another_process_compiled_finds_what_raises():
    """It is cached with calls of these, and this process never traces."""
    text = """
import opforge, torch

@opforge.op("mylib::f")
def f(x: torch.Tensor) -> torch.Tensor:
    return x + 1

for packet in (torch.ops.opforge.missing_backward, torch.ops.opforge.overwritten):
    print(packet.default.name())
"""
    assert run_python(text).split() == ["opforge::missing_backward", "opforge::overwritten"]


def test_an_op_without_outputs_and_mutations_runs(op_name):
    seen = []

    def note(x: Tensor, cfg: Inner | None = None) -> None:
        seen.append(x.shape)

    name = op_name()
    with pytest.warns(OpforgeWarning) as caught:
        note = opforge.op(note, name=name)
    text = str(caught[0].message)
    assert text.startswith(f"{name} ({__file__}:")
    assert "returns nothing and declares no writes, so torch.compile and torch.export drop" in text
    assert 'fix: name what the body changes, mutates_args=["x"], or return a tensor' in text
    assert note(torch.zeros(2)) is None
    assert note(torch.zeros(2, requires_grad=True)) is None
    assert len(seen) == 2
