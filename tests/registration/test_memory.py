"""Of an op that was unregistered, nothing of opforge's stays."""

import json

from support.processes import run_python

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
