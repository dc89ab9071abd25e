"""What host code caches about a GPU is neither built in nor left behind."""
# ruff: noqa: PLW0108  # a lambda finds the cache by its name, as a body does

import functools
import threading
import types

import pytest
import torch
import triton
from torch import Tensor

import opforge
from opforge import native
from opforge.errors import UnsupportedBody
from opforge.native.ir.case_text import conditions
from opforge.native.ir.cases import Launch
from support.archs import SM_80, SM_90, sm
from support.native.traced_kernels import take
from support.native.traced_oracle import Body

X = {"x": native.tensor("n", dtype="fp32")}


def built(fn, archs=(SM_80, SM_90)):
    (found,) = Body(fn, X, archs=archs).built
    return found


def grids(found):
    launches = [s for p in found.case.paths for s in p.steps if isinstance(s, Launch)]
    return [str(launch.grid[0]) for launch in launches]


def launching(ask):
    """A body with a grid that it asks a function for."""

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        take[(ask(),)](x, out)
        return out

    return body


def multiprocessors():
    return torch.cuda.get_device_properties(0).multi_processor_count


@functools.cache
def sm_count():
    return multiprocessors()


@functools.lru_cache(maxsize=4)
def sm_count_of(device, times=1):
    return torch.cuda.get_device_properties(device).multi_processor_count * times


@functools.cache
def is_hopper():
    return torch.cuda.get_device_capability() >= (9, 0)


class Board:
    @functools.cached_property
    def count(self):
        return multiprocessors()

    @functools.lru_cache  # noqa: B019  # that it keeps the board is the point
    def method(self):
        return multiprocessors()

    @staticmethod
    @functools.cache
    def static():
        return multiprocessors()

    @classmethod
    @functools.cache
    def of_class(cls):
        return multiprocessors()

    @property
    @functools.cache  # noqa: B019
    def stored(self):
        return multiprocessors()


board = Board()
listed = types.ModuleType("listed")
listed.count = functools.cache(multiprocessors)
table = {"count": functools.cache(multiprocessors)}
bound = functools.partial(sm_count_of, 0)
COUNT = "device.multi_processor_count"


@pytest.fixture(autouse=True)
def caches():
    yield
    for cached in (sm_count, sm_count_of, is_hopper, Board.method, Board.static, listed.count):
        cached.cache_clear()
    vars(board).clear()


guided = triton.heuristics({"A": lambda _: 2 if is_hopper() else 1})(take)


def in_the_body(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    take[(1,)](x, out, A=2 if is_hopper() else 1)
    return out


def in_a_heuristic(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    guided[(1,)](x, out)
    return out


@pytest.mark.parametrize("body", [in_the_body, in_a_heuristic])
def test_a_branch_on_a_cached_capability_is_taken_on_each_gpu(body):
    found = built(body)
    reached = {dict(r.constants)["A"]: archs for r, archs in found.requests.values()}
    assert reached == {1: sm(80), 2: sm(90)}
    assert is_hopper.cache_info().currsize == 0


def in_a_closure():
    cached = functools.cache(multiprocessors)
    return lambda: cached()


def decorated():
    return torch.no_grad()(functools.cache(multiprocessors))


@pytest.mark.parametrize(
    ("ask", "grid"),
    [
        (lambda: sm_count(), COUNT),
        (lambda: sm_count_of(0), COUNT),
        (lambda: sm_count_of("cuda", times=2), f"2 * {COUNT}"),
        (lambda: board.count, COUNT),
        (lambda: board.method(), COUNT),
        (lambda: Board.static(), COUNT),
        (lambda: Board.of_class(), COUNT),
        (lambda: board.stored, COUNT),
        (lambda: listed.count(), COUNT),
        (lambda: table["count"](), COUNT),
        (lambda: bound(), COUNT),
        (in_a_closure(), COUNT),
        (decorated(), COUNT),
        (lambda: getattr(board, "co" + "unt"), COUNT),
        # Reading the code does not show this one.
        (lambda: globals()["sm_" + "count"](), COUNT),
    ],
)
def test_a_property_that_was_cached_before_the_build_is_asked_for_again(ask, grid):
    with opforge.target("sm_80"):
        before = ask()
    assert before in {108, 216}
    assert grids(built(launching(ask))) == [grid]
    # Without a GPU, this answer can come only from the cache.
    assert ask() == before


def test_a_cached_function_of_a_size_does_not_make_it_a_constant():
    @functools.cache
    def blocks(n):
        return 16 if n <= 16 else 64

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        take[(1,)](x, out, A=blocks(x.shape[0]))
        return out

    assert sorted(conditions(p) for p in built(body).case.paths) == ["16 < n", "n <= 16"]


def test_a_cached_function_runs_once_in_a_trace():
    runs = []

    @functools.cache
    def fibonacci(n):
        runs.append(n)
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    assert grids(built(launching(lambda: fibonacci(30)))) == ["832040"]
    assert len(runs) < 31 * 5


def test_a_cache_that_cannot_be_passed_by_is_an_error_with_its_line():
    held = (functools.cache(multiprocessors),)
    with opforge.target("sm_80"):
        assert held[0]() == 108
    line = multiprocessors.__code__.co_firstlineno
    with pytest.raises(UnsupportedBody) as caught:
        built(launching(lambda: held[0]()))
    assert f"multiprocessors ({__file__}:{line}) answers from its functools cache" in (
        caught.value.found
    )


@functools.cache
def workspace():
    return torch.zeros(8, device="cuda")


def test_a_cached_tensor_is_state_that_a_library_cannot_have():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        take[(1,)](workspace(), out)
        return out

    with pytest.raises(UnsupportedBody) as caught:
        built(body)
    assert "a tensor kept from an earlier call is used at" in caught.value.found


def test_while_one_thread_traces_another_is_answered_by_the_cache():
    with opforge.target("sm_80"):
        assert sm_count() == 108
    answers = []

    def ask_elsewhere():
        thread = threading.Thread(target=lambda: answers.append(sm_count()))
        thread.start()
        thread.join()
        return sm_count()

    assert grids(built(launching(ask_elsewhere))) == [COUNT]
    assert set(answers) == {108}


@functools.cache
def of_others():
    return 1


def test_a_cache_that_another_thread_asks_meanwhile_is_not_the_bodys():
    of_others()
    begun, ended = threading.Event(), threading.Event()

    def others():
        begun.wait()
        of_others()
        ended.set()

    def ask():
        begun.set()
        ended.wait()
        return multiprocessors()

    threading.Thread(target=others).start()
    assert grids(built(launching(ask))) == ["device.multi_processor_count"]


kept = {}


def keeping(x: Tensor) -> Tensor:
    if "count" not in kept:
        kept["count"] = multiprocessors()
    out = torch.empty_like(x)
    take[(kept["count"] + 1,)](x, out)
    return out


def test_a_property_that_a_body_keeps_itself_is_an_error_that_says_where_it_is_used():
    kept.clear()
    line = keeping.__code__.co_firstlineno + 4
    with pytest.raises(UnsupportedBody) as caught:
        built(keeping)
    said = f"{COUNT} belongs to a trace that has ended, used at {__file__}:{line}"
    assert said in caught.value.found
    with pytest.raises(UnsupportedBody, match="belongs to a trace that has ended"):
        kept["count"] + 1
    with pytest.raises(UnsupportedBody):
        int(kept["count"])
    assert str(kept["count"]) == COUNT


by_size = {}


def test_a_table_by_size_may_outlive_a_trace():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        n = x.shape[0]
        if n not in by_size:
            by_size[n] = 1 if n <= 4 else 2
        take[(1,)](x, out, A=by_size[n])
        return out

    (found,) = Body(body, {**X, "dims": {"n": [2, 4, 8]}}).built
    assert sorted(conditions(p) for p in found.case.paths) == ["n == 2", "n == 4", "n == 8"]
    assert by_size[8] == 2
