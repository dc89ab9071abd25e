"""Records as pytree nodes: registered once, and never over a user's own registration."""

import dataclasses
import warnings
from typing import NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

import opforge

Tensor = torch.Tensor


def test_a_record_is_a_pytree_node(op_name):
    cls = fresh_record()
    use_in_op(op_name, cls)
    value = cls(torch.ones(2), 3.0)
    leaves, spec = pytree.tree_flatten(value)
    assert len(leaves) == 2
    assert leaves[1] == 3.0
    again = pytree.tree_unflatten(leaves, spec)
    assert type(again) is cls
    assert again.scale == 3.0
    doubled = pytree.tree_map(lambda leaf: leaf * 2, value)
    assert doubled.scale == 6.0
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(value)[0]]
    assert paths == [".tensor", ".scale"]


def test_a_users_own_pytree_registration_stays(op_name):
    cls = fresh_record()
    pytree.register_pytree_node(
        cls,
        lambda value: ([value.tensor], value.scale),
        lambda leaves, scale: cls(next(iter(leaves)), scale),
    )
    mine = pytree.SUPPORTED_NODES[cls]
    op = use_in_op(op_name, cls)
    assert pytree.SUPPORTED_NODES[cls] is mine
    assert op(torch.ones(2), cls(torch.ones(2), 3.0)).tolist() == [3.0, 3.0]


def test_a_user_may_register_a_record_after_the_op_was_made(op_name):
    cls = fresh_record()
    use_in_op(op_name, cls)
    ours = pytree.SUPPORTED_NODES[cls]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*already registered as pytree node")
        torch.export.register_dataclass(cls)
    assert pytree.SUPPORTED_NODES[cls] is not ours


def test_a_refused_decoration_registers_no_pytree_node(op_name):
    cls = fresh_record()
    with pytest.raises(opforge.errors.OpforgeError):

        @opforge.op(op_name(), fake=lambda wrong: None)
        def op(x: Tensor, cfg: cls) -> Tensor:
            return x + 1

    assert cls not in pytree.SUPPORTED_NODES


def fresh_record():
    @dataclasses.dataclass(frozen=True)
    class Fresh:
        tensor: Tensor
        scale: float

    return Fresh


def use_in_op(op_name, cls):
    @opforge.op(op_name())
    def op(x: Tensor, cfg: cls) -> Tensor:
        return x * cfg.tensor * cfg.scale

    return op


@dataclasses.dataclass(frozen=True)
class Stats:
    total: Tensor
    top: Tensor


def test_a_returned_dataclass_leaves_a_module_through_export(op_name):
    @opforge.op(op_name())
    def stats(x: Tensor) -> Stats:
        return Stats(x.sum(), x.amax())

    class Model(torch.nn.Module):
        def forward(self, x):
            return stats(x)

    x = torch.randn(3)
    got = torch.export.export(Model(), (x,), strict=False).module()(x)
    assert type(got) is Stats
    torch.testing.assert_close((got.total, got.top), (x.sum(), x.amax()))


class Range(NamedTuple):
    low: Tensor
    high: Tensor


def test_a_named_tuple_has_a_name_in_saved_programs(op_name):
    @opforge.op(op_name())
    def spread(x: Tensor, around: Range) -> Range:
        return Range(x - around.low, x + around.high)

    _, spec = pytree.tree_flatten(Range(torch.ones(2), torch.ones(2)))
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec


def test_a_users_own_registration_of_a_named_tuple_stays(op_name):
    class Own(NamedTuple):
        value: Tensor

    pytree._register_namedtuple(Own, serialized_type_name="test_pytree.Own")
    mine = pytree.SUPPORTED_NODES[Own]

    @opforge.op(op_name())
    def op(x: Tensor, own: Own) -> Tensor:
        return x + own.value

    assert pytree.SUPPORTED_NODES[Own] is mine
