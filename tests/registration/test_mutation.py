"""Ops that change their inputs: how to say so, versions, functionalization, aliases."""

import dataclasses
import pathlib
import warnings
from typing import NamedTuple

import pytest
import torch
from functorch.compile import aot_function, nop

import opforge
from opforge.errors import (
    BadOption,
    MissingBackward,
    OpforgeWarning,
    UnsupportedBody,
    WrongReturn,
)
from support.processes import run_python

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Inner:
    cache: Tensor
    length: int = 0


@dataclasses.dataclass(frozen=True)
class State:
    keys: Tensor
    inner: Inner
    spare: Tensor | None = None


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def mutated_by(op):
    """The schema arguments that an op says it changes."""
    schema = opforge.info(op).overload._schema
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def state():
    return State(torch.zeros(2), Inner(torch.zeros(3)), torch.zeros(1))


def versions(cfg):
    return cfg.keys._version, cfg.inner.cache._version, cfg.spare._version


def refusal(function):
    """The error of going backward, or the warnings where torch only warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function()
        except RuntimeError as error:
            return str(error)
    return "\n".join(str(w.message) for w in caught)


def test_a_parameter_is_named(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def add_one(x: Tensor, y: Tensor) -> None:
        x.add_(1)

    x, y = torch.zeros(2), torch.zeros(2)
    assert add_one(x, y) is None
    assert x.tolist() == [1.0, 1.0]
    assert x._version > y._version == 0
    assert mutated_by(add_one) == ["x"]


@pytest.mark.parametrize(
    ("spelling", "names"),
    [
        (["cfg"], ["cfg__keys", "cfg__inner__cache", "cfg__spare"]),
        (["cfg__keys"], ["cfg__keys"]),
        (["cfg.keys"], ["cfg__keys"]),
        (["cfg.inner"], ["cfg__inner__cache"]),
        (["cfg__inner"], ["cfg__inner__cache"]),
        (["cfg.inner.cache"], ["cfg__inner__cache"]),
        (["cfg__inner__cache"], ["cfg__inner__cache"]),
        (["cfg.spare", "cfg__keys"], ["cfg__keys", "cfg__spare"]),
        (("cfg.keys", "cfg"), ["cfg__keys", "cfg__inner__cache", "cfg__spare"]),
        ({"cfg.inner.cache"}, ["cfg__inner__cache"]),
        ("unknown", ["x", "cfg__keys", "cfg__inner__cache", "cfg__spare"]),
    ],
    ids=str,
)
def test_a_record_or_a_leaf_in_it_is_named_as(op_name, spelling, names):
    @opforge.op(op_name(), mutates_args=spelling)
    def op(x: Tensor, cfg: State) -> None:
        cfg.keys.add_(1)

    assert mutated_by(op) == names


def test_the_version_rises_once_for_each_mutated_input_and_for_no_other(op_name):
    @opforge.op(op_name(), mutates_args=["cfg.inner", "cfg.spare"])
    def op(cfg: State) -> None:
        cfg.inner.cache.data.add_(1)  # .data keeps the body's own arithmetic from counting

    cfg = state()
    op(cfg)
    assert versions(cfg) == (0, 1, 1)
    assert cfg.inner.cache.tolist() == [1.0] * 3


def test_the_version_rises_for_a_kernel_that_torch_cannot_see(op_name):
    """A plain define and impl misses this one: NumPy writes to memory behind torch's back."""

    @opforge.op(op_name(), mutates_args=["x"])
    def op(x: Tensor) -> None:
        x.numpy()[:] = 7

    x = torch.zeros(2)
    for version in (1, 2, 3):
        op(x)
        assert x._version == version
    assert x.tolist() == [7.0, 7.0]


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


def test_the_version_rises_for_each_tensor_of_a_list(op_name):
    @opforge.op(op_name(), mutates_args=["items"])
    def op(items: list[Tensor]) -> None:
        for item in items:
            item.numpy()[:] += 1

    items = [torch.zeros(1), torch.zeros(2)]
    op(items)
    assert [t._version for t in items] == [1, 1]
    assert [t.tolist() for t in items] == [[1.0], [1.0, 1.0]]
    op([])


def test_the_version_rises_for_each_tensor_of_a_list_with_holes(op_name):
    @opforge.op(op_name(), mutates_args=["items"])
    def op(items: list[Tensor | None]) -> None:
        for item in items:
            if item is not None:
                item.numpy()[:] += 1

    x = torch.zeros(1)
    op([None, x])
    assert x._version == 1


def test_an_optional_tensor_may_be_mutated_or_absent(op_name):
    @opforge.op(op_name(), mutates_args=["out"])
    def op(x: Tensor, out: Tensor | None = None) -> None:
        if out is not None:
            out.copy_(x)

    x, out = torch.ones(2), torch.zeros(2)
    op(x)
    before = out._version
    op(x, out)
    assert out.tolist() == [1.0, 1.0]
    assert out._version > before


def test_an_optional_list_may_be_mutated_or_absent(op_name):
    @opforge.op(op_name(), mutates_args=["outs"])
    def op(x: Tensor, outs: list[Tensor] | None = None) -> None:
        for out in outs or ():
            out.numpy()[:] = x.numpy()

    op(torch.ones(2))
    out = torch.zeros(2)
    op(torch.ones(2), [out])
    assert out._version == 1
    assert out.tolist() == [1.0, 1.0]


def test_an_optional_record_may_be_mutated_or_absent(op_name):
    @opforge.op(op_name(), mutates_args=["cfg"])
    def op(x: Tensor, cfg: Inner | None = None) -> None:
        if cfg is not None:
            cfg.cache.numpy()[:] = x.numpy()

    op(torch.ones(2))
    cache = torch.zeros(2)
    op(torch.ones(2), Inner(cache))
    assert cache._version == 1
    assert cache.tolist() == [1.0, 1.0]


def test_a_tuple_of_tensors_is_mutated(op_name):
    @opforge.op(op_name(), mutates_args=["pair.right"])
    def op(pair: Pair) -> None:
        pair.right.numpy()[:] = pair.left.numpy()

    pair = Pair(torch.ones(2), torch.zeros(2))
    op(pair)
    assert pair.right.tolist() == [1.0, 1.0]
    assert (pair.left._version, pair.right._version) == (0, 1)


def test_an_element_of_a_fixed_tuple_is_named_by_its_place(op_name):
    @opforge.op(op_name(), mutates_args=["pair.1"])
    def op(pair: tuple[Tensor, Tensor]) -> None:
        pair[1].numpy()[:] = 3

    left, right = torch.zeros(2), torch.zeros(2)
    op((left, right))
    assert (left._version, right._version) == (0, 1)


def test_a_keyword_only_parameter_is_mutated(op_name):
    @opforge.op(op_name(), mutates_args=["out"])
    def op(x: Tensor, scale: float = 2.0, *, out: Tensor) -> None:
        torch.mul(x, scale, out=out)

    out = torch.zeros(2)
    op(torch.ones(2), out=out)
    assert out.tolist() == [2.0, 2.0]
    assert out._version >= 1


def test_the_version_of_an_inference_tensor_is_left_alone(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def op(x: Tensor) -> None:
        x.add_(1)

    with torch.inference_mode():
        x = torch.zeros(2)
        op(x)
    assert x.tolist() == [1.0, 1.0]


def test_a_tensor_saved_for_backward_and_then_mutated_is_noticed(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def clear(x: Tensor) -> None:
        x.numpy()[:] = 0

    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    product = (x * y).sum()
    clear(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_view_shares_its_version_with_its_base(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def fill(x: Tensor) -> None:
        x.numpy()[:] = 5

    base = torch.zeros(2, 2)
    fill(base[0])
    assert base.tolist() == [[5.0, 5.0], [0.0, 0.0]]
    assert base._version == 1


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


def test_a_mutated_record_is_functionalized(op_name):
    @opforge.op(op_name(), mutates_args=["cfg.inner", "cfg.spare"])
    def op(x: Tensor, cfg: State) -> Tensor:
        cfg.inner.cache.add_(x.sum())
        if cfg.spare is not None:
            cfg.spare.sub_(1)
        return x + cfg.keys

    def function(x, keys, cache, spare):
        out = op(x, State(keys, Inner(cache), spare))
        return out + cache.sum()

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    eager = [torch.ones(2), torch.ones(2), torch.zeros(3), torch.zeros(1)]
    traced = [t.clone() for t in eager]
    torch.testing.assert_close(compiled(*traced), function(*eager))
    torch.testing.assert_close(traced, eager)


def test_a_mutated_list_is_functionalized(op_name):
    @opforge.op(op_name(), mutates_args=["items"])
    def op(items: list[Tensor]) -> None:
        for item in items:
            item.add_(1)

    def function(x, y):
        op([x, y])
        return x + y.sum()

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    x, y = torch.zeros(2), torch.zeros(3)
    assert compiled(x, y).tolist() == [4.0, 4.0]
    assert (x.tolist(), y.tolist()) == ([1.0, 1.0], [1.0, 1.0, 1.0])


def test_a_mutated_view_writes_to_its_base_when_compiled(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def fill(x: Tensor) -> None:
        x.fill_(5)

    def function(base):
        fill(base[1])
        return base * 2

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    base = torch.zeros(2, 2)
    assert compiled(base).tolist() == [[0.0, 0.0], [10.0, 10.0]]
    assert base.tolist() == [[0.0, 0.0], [5.0, 5.0]]


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


def test_mutating_a_leaf_that_requires_grad_is_refused_as_torch_does(op_name):
    name = op_name()

    @opforge.op(name, mutates_args=["x"])
    def add_one(x: Tensor) -> None:
        x.add_(1)

    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(UnsupportedBody) as caught:
        add_one(x)
    text = str(caught.value)
    assert name in text
    assert "parameter 'x'" in text
    assert "mutates a leaf tensor that requires grad" in text
    assert "torch.no_grad()" in text
    assert x.tolist() == [0.0, 0.0]


def test_mutating_a_leaf_under_no_grad_works(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def add_one(x: Tensor) -> None:
        x.add_(1)

    x = torch.zeros(2, requires_grad=True)
    with torch.no_grad():
        add_one(x)
    assert x.tolist() == [1.0, 1.0]
    assert x.is_leaf


def test_a_mutated_intermediate_has_no_stale_gradient(op_name):
    """Its value now comes from the op; the gradient from before the mutation would be wrong."""

    @opforge.op(op_name(), mutates_args=["x"])
    def triple(x: Tensor) -> None:
        x.mul_(3)

    leaf = torch.ones(2, requires_grad=True)
    x = leaf * 2
    triple(x)
    assert x.tolist() == [6.0, 6.0]
    with pytest.raises(MissingBackward):
        x.sum().backward()
    assert leaf.grad is None


def test_a_mutated_intermediate_in_a_list_has_no_stale_gradient(op_name):
    @opforge.op(op_name(), mutates_args=["items"])
    def triple(items: list[Tensor]) -> None:
        for item in items:
            item.mul_(3)

    leaf = torch.ones(2, requires_grad=True)
    x, y = leaf * 2, torch.ones(2)
    triple([y, x])
    with pytest.raises(MissingBackward):
        x.sum().backward()
    assert leaf.grad is None


def test_a_mutated_intermediate_has_no_stale_gradient_when_compiled(op_name):
    name = op_name()

    @opforge.op(name, mutates_args=["x"])
    def triple(x: Tensor) -> None:
        x.mul_(3)

    def function(leaf):
        x = leaf * 2
        triple(x)
        return x

    leaf = torch.ones(2, requires_grad=True)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert name in refusal(lambda: compiled(leaf).sum().backward())


def test_a_mutated_intermediate_has_no_stale_gradient_under_torch_func_grad(op_name):
    name = op_name()

    @opforge.op(name, mutates_args=["x"])
    def triple(x: Tensor) -> None:
        x.mul_(3)

    def function(leaf):
        x = leaf * 2
        triple(x)
        return x.sum()

    assert name in refusal(lambda: torch.func.grad(function)(torch.ones(2)))


def test_a_mutated_view_of_an_intermediate_has_no_stale_gradient(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def triple(x: Tensor) -> None:
        x.mul_(3)

    leaf = torch.ones(2, 2, requires_grad=True)
    x = leaf * 2
    triple(x[0])
    assert x.tolist() == [[6.0, 6.0], [2.0, 2.0]]
    with pytest.raises(MissingBackward):
        x.sum().backward()


def test_an_integer_tensor_may_be_mutated_beside_one_that_requires_grad(op_name):
    @opforge.op(op_name(), mutates_args=["count"])
    def op(x: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return x * 2

    count = torch.zeros(1, dtype=torch.int64)
    out = op(torch.ones(2, requires_grad=True), count)
    assert out.requires_grad
    assert count.item() == 1
    assert not count.requires_grad


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


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_gradient_that_needs_nothing_written_is_right_beside_a_mutating_op(op_name, backend):
    op = fill(op_name())

    def function(weight, scale, buffer):
        y = buffer @ weight
        op(y, torch.empty_like(y))
        return y * scale

    run = function if backend == "eager" else torch.compile(function, backend=backend)
    weight, scale, buffer = leaves()
    run(weight, scale, buffer).sum().backward()
    assert weight.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert scale.grad.tolist() == [4.0, 4.0]


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


def test_a_mutating_op_cannot_have_a_backward(op_name):
    with pytest.raises(BadOption) as caught:

        @opforge.op(op_name(), mutates_args=["x"], backward=lambda ctx: None)
        def op(x: Tensor) -> None:
            x.add_(1)

    text = str(caught.value)
    assert "an op that mutates its inputs cannot have a backward" in text
    assert "parameter 'x'" in text


def test_an_unknown_name_is_refused_with_the_valid_ones(op_name):
    name = op_name()
    with pytest.raises(BadOption) as caught:

        @opforge.op(name, mutates_args=["cfg.inner.cash"])
        def op(x: Tensor, cfg: State) -> None:
            pass

    text = str(caught.value)
    assert name in text
    assert pathlib.Path(__file__).name in text
    assert "mutates_args names 'cfg.inner.cash', which does not match any parameter" in text
    assert "did you mean 'cfg.inner.cache'?" in text
    for valid in ("x", "cfg.keys", "cfg.inner.cache", "cfg.spare"):
        assert valid in text.partition("valid names: ")[2].split(", ")
    assert isinstance(caught.value, ValueError)


def test_a_name_without_tensors_is_refused(op_name):
    with pytest.raises(BadOption, match=r"mutates_args names 'count', which holds no tensor"):

        @opforge.op(op_name(), mutates_args=["count"])
        def op(x: Tensor, count: int) -> None:
            pass


def test_a_bare_string_is_refused_with_the_list_to_write(op_name):
    with pytest.raises(BadOption, match=r"mutates_args='x' is a string") as caught:

        @opforge.op(op_name(), mutates_args="x")
        def op(x: Tensor) -> None:
            pass

    assert "mutates_args=['x']" in str(caught.value)


def test_an_op_that_returns_nothing_but_gives_something_is_refused(op_name):
    name = op_name()

    @opforge.op(name, mutates_args=["x"])
    def op(x: Tensor) -> None:
        return x.add_(1)

    with pytest.raises(WrongReturn, match="its annotation says None") as caught:
        op(torch.zeros(2))
    assert name in str(caught.value)


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
