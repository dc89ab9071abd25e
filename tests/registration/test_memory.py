"""Of a call no tensor stays; of an op that was unregistered, nothing of opforge's does."""

import json
import weakref

import pytest
import torch

import opforge
from support.gradients import Pair
from support.processes import run_python

Tensor = torch.Tensor


MEASURE = """
import dataclasses, gc, json, os, tracemalloc
import opforge, torch
from opforge.registration.register import Registration

@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 2.0

def direct(number):
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * 2
    return opforge.op(f"memory::direct_{number}", mode="custom_op")(scale), ()

def flattened(number):
    def scale(x: torch.Tensor, cfg: Config) -> torch.Tensor:
        return x * cfg.scale
    def backward(ctx, grad):
        return grad, None
    op = opforge.op(f"memory::flat_{number}", mode="custom_op", backward=backward)(scale)
    return op, (Config(),)

def transparent(number):
    def scale(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x) * 2
    return opforge.op(f"memory::transparent_{number}")(scale), ()

def register(numbers):
    for number in numbers:
        for kind in (direct, flattened, transparent):
            op, others = kind(number)
            op(torch.ones(2), *others)
            opforge.unregister(op)

def measured():
    gc.collect()
    own = os.path.dirname(opforge.__file__)
    filters = [tracemalloc.Filter(True, f"{own}/*"), tracemalloc.Filter(True, "<opforge*")]
    found = tracemalloc.take_snapshot().filter_traces(filters).statistics("filename")
    return sum(each.size for each in found)

register(range(10))
tracemalloc.start()
register(range(10, 15))
before = measured()
register(range(15, 40))
per_name = (measured() - before) / 75
print(json.dumps([per_name, sum(type(each) is Registration for each in gc.get_objects())]))
"""


def test_registering_and_unregistering_new_names_keeps_nothing_of_opforges():
    per_name, registrations = json.loads(run_python(MEASURE))
    assert registrations == 0
    # It was 17 kB. What is left are the names themselves, of which torch keeps some.
    assert per_name < 1000


def plain(name):
    @opforge.op(name, mode="custom_op")
    def op(x: Tensor) -> Tensor:
        return x * 2

    return op


def differentiable(name):
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @opforge.op(name, backward=lambda ctx, g: g * 2, setup_context=setup_context)
    def op(x: Tensor) -> Tensor:
        return x * 2

    return op


def of_several(name):
    @opforge.op(name, fake=["pair.left", "pair.right"])
    def double(pair: Pair) -> Pair:
        return Pair(pair.left * 2, pair.right * 2)

    return lambda x: double(Pair(x, x + 1)).left


def of_lists(name):
    @opforge.op(name, backward=lambda ctx, grads: [g * 2 for g in grads])
    def double(xs: list[Tensor]) -> list[Tensor]:
        return [x * 2 for x in xs]

    return lambda x: double([x, x + 1])[0]


def with_a_fake_that_is_assumed(name):
    @opforge.op(name)
    def op(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() * 2)

    return op


def in_place(name):
    @opforge.op(name, mutates_args=["out"], mode="custom_op")
    def double(x: Tensor, out: Tensor) -> None:
        torch.mul(x, 2, out=out)

    def written(x):
        out = torch.empty_like(x)
        double(x, out)
        return out

    return written


@pytest.mark.filterwarnings("ignore::opforge.OpforgeWarning")
@pytest.mark.parametrize(
    "make", [plain, differentiable, of_several, of_lists, with_a_fake_that_is_assumed, in_place]
)
def test_no_tensor_of_a_call_stays(make, op_name, collect):
    op = make(op_name())
    made = []

    def called(call):
        weight = torch.nn.Parameter(torch.ones(4))
        x = weight * 3
        out = call(x)
        if make in (differentiable, of_lists):
            out.sum().backward()
        made.extend(map(weakref.ref, (weight, x, out)))

    called(op)
    called(torch.compile(lambda x: op(x) * 1, backend="aot_eager", fullgraph=True))
    called(op)
    torch._dynamo.reset()
    collect()
    assert [each() for each in made] == [None] * 9


@pytest.mark.parametrize("recording", [True, False])
def test_a_buffer_in_its_own_history_is_kept_as_with_torchs_calls(recording, op_name, collect):
    """torch cannot free the circle from the buffer to its grad_fn to what that saved: the buffer.

    `custom_op` drops the history instead: a gradient would be lost without an error.
    """
    op = in_place(op_name())

    def kept(double):
        weight, hidden = torch.nn.Parameter(torch.ones(4, 4)), torch.ones(4, 4)
        with torch.set_grad_enabled(recording):
            hidden.copy_(double(hidden @ weight))
        return weakref.ref(weight)

    found = [kept(op), kept(lambda x: torch.empty_like(x).copy_(x * 2))]
    collect()
    assert [each() is not None for each in found] == [recording] * 2
