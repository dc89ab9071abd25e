"""What several rows of a check share."""

import torch
from torch import Tensor

import opforge
from opforge.check.subject import Subject
from opforge.check.values import OpCall
from opforge.registry import registry


def test_what_eager_gives_is_kept_for_each_call_by_itself(op_name):
    ran = []

    @opforge.op(op_name(), fake=torch.empty_like)
    def counted(x: Tensor) -> Tensor:
        ran.append(len(x))
        return x + 1

    def call(size):
        return OpCall((torch.zeros(size),), {}, ("x",))

    subject = Subject(registry.get(counted), call(3))
    # A call that nobody else holds may lie where an earlier one lay.
    assert [len(subject.expected(call(size)).value) for size in range(50)] == [*range(50)]
    ran.clear()
    kept = call(7)
    assert subject.expected(kept) is subject.expected(kept)
    assert subject.expected(subject.call) is subject.eager
    assert ran == [7, 3]
