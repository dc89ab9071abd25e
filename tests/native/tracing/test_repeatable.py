"""What differs from call to call does not become a constant of a library."""

import cProfile
import inspect
import itertools
import math
import os
import random
import time

import numpy as np
import pytest
import torch
from torch import Tensor

from opforge import native
from opforge.errors import UnsupportedBody
from opforge.native.ir.cases import Launch
from support.native.traced_kernels import take
from support.native.traced_oracle import Body

X = {"x": native.tensor("n", dtype="fp32")}
calls = itertools.count()


def built(fn, **specs):
    (found,) = Body(fn, specs or X).built
    return found


def refusal(fn):
    with pytest.raises(UnsupportedBody) as caught:
        built(fn)
    return caught.value


def with_argument(ask):
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        seed = ask()
        take[(1,)](x, out, seed)
        return out

    return body


@pytest.mark.parametrize(
    "ask",
    [
        lambda: random.randrange(2**20),
        lambda: random.randrange(2),
        lambda: int(np.random.randint(2)),  # noqa: NPY002  # what people write
        lambda: int(time.time()),
        lambda: int.from_bytes(os.urandom(4), "little"),
        lambda: id(torch.empty(1, device="cuda")),
        lambda: next(calls),
    ],
)
def test_an_argument_that_differs_from_call_to_call_is_an_error(ask):
    error = refusal(with_argument(ask))
    assert error.what == "it does something different in each call, even with the same arguments"
    line = inspect.getsourcelines(with_argument)[1] + 4
    assert error.found.startswith(f"'a' of kernel take (launched at {__file__}:{line}) is ")
    assert "native.scalar" in error.fix


def test_the_error_says_where_a_random_number_is_drawn():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        seed = random.randrange(2**20)
        take[(1,)](x, out, seed)
        return out

    line = inspect.getsourcelines(body)[1] + 2
    _, asked = refusal(body).found.split("\n    ")
    assert f"the body asks for a random number at {__file__}:{line}" == asked


def test_a_profiler_is_still_there_after_the_error():
    with cProfile.Profile() as profiler:
        refusal(with_argument(lambda: random.randrange(2**20)))
        math.gcd(2, 3)
    profiler.create_stats()
    assert any("math.gcd" in function for _, _, function in profiler.stats)


def test_a_branch_on_a_random_number_is_an_error():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if random.random() < 0.5:
            take[(1,)](x, out, 1)
        take[(1,)](x, out, 2)
        return out

    error = refusal(body)
    assert "does something different in each call" in error.what
    assert " in one call, " in error.found or "only in some calls" in error.found


def test_a_size_or_fill_that_differs_is_an_error():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        take[(1,)](torch.full_like(x, next(calls)), out)
        return out

    assert "the value in w1 is " in refusal(body).found

    def sized(x: Tensor) -> Tensor:
        out = torch.empty(x.shape[0] + next(calls), device=x.device)
        take[(1,)](x, out)
        return out

    assert "the shape of an output is " in refusal(sized).found


def test_a_time_that_does_not_reach_the_result_is_no_error():
    said = []

    def body(x: Tensor) -> Tensor:
        started = time.perf_counter()
        out = torch.empty_like(x)
        take[(1,)](x, out)
        said.append((id(out), time.perf_counter() - started, random.random()))
        return out

    assert len(built(body).case.paths) == 1
    assert 0 < said[-1][1] < 100


once = []


def test_what_a_body_does_only_once_is_not_in_the_library():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if x.shape[0] > 9 and not once:
            once.append(1)
            take[(1,)](x, out, 1)
        take[(1,)](x, out, 2)
        return out

    once.clear()
    (path,) = built(body).case.paths
    assert sum(isinstance(s, Launch) for s in path.steps) == 1
