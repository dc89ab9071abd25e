"""Paths of several launches: from the 17th call on a stream on, one launch of a CUDA graph."""

import ctypes

import pytest

from support.native.hand_made_calls import everything
from support.standin.driver import NVIDIA
from support.standin.library import Refused

BEFORE = 16
# The functions of the driver that make, change and launch a graph.
MAKING = (
    "cuStreamIsCapturing", "cuGraphCreate", "cuGraphAddKernelNode",
    "cuThreadExchangeStreamCaptureMode", "cuGraphInstantiate", "cuGraphLaunch",
)  # fmt: skip
CHANGING = ("cuStreamIsCapturing", "cuGraphExecKernelNodeSetParams", "cuGraphLaunch")
KERNELS = ["first_kernel", "second_kernel"]


@pytest.fixture
def vendor():
    """With HIP, kernels are launched one by one."""
    return NVIDIA


@pytest.fixture
def call(library, standin):
    """Calls, and tells what each launch got: function, grid, an argument, whether in a graph."""
    seen = []

    def execute(launched):
        of_first = launched.function == "first_kernel"
        argument = launched.read(4 + 6, ctypes.c_int32) if of_first else None
        seen.append((launched.function, launched.grid, argument, launched.in_graph))

    standin.execute = execute

    def call(*, stream=None, **given):
        seen.clear()
        library.run("everything", *everything(**given), stream=stream)
        return list(seen)

    yield call
    library.unload()
    assert standin.graphs == 0


def warm(call, **given):
    for _ in range(BEFORE):
        assert [launch[3] for launch in call(**given)] == [False, False]


def names(launches):
    return [launch[0] for launch in launches]


def in_graph(launches):
    return [launch[3] for launch in launches]


def test_a_graph_is_made_once_and_gets_what_each_call_launches(call, standin):
    warm(call)
    made = call(s_i32=3)
    assert in_graph(made) == [True, True]
    assert names(made) == KERNELS
    assert made[0][2] == 3
    standin.forget_calls()
    for rows, number in ((3, -5), (40, 5), (3, 0)):
        found = call(rows=rows, s_i32=number)
        assert names(found) == KERNELS
        assert in_graph(found) == [True, True]
        assert found[0][1:3] == ((rows, 1, 1), number)
        assert found[1][1] == (1, rows, 2)
    assert standin.calls.count("cuGraphExecKernelNodeSetParams") == 6
    assert standin.calls.count("cuGraphLaunch") == 3
    assert not {"cuGraphInstantiate", "cuLaunchKernel"} & set(standin.calls)


def test_a_path_of_one_launch_needs_none(call, standin):
    for _ in range(2 * BEFORE):
        assert in_graph(call(mode=1)) == [False]
    assert "cuStreamIsCapturing" not in standin.calls


def test_each_stream_has_its_own(call, standin):
    standin.set_current(0)
    one, other = standin.stream(), standin.stream()
    warm(call, stream=one)
    assert in_graph(call(stream=one)) == [True, True]
    warm(call, stream=other)
    assert in_graph(call(stream=other)) == [True, True]
    assert in_graph(call(stream=one)) == [True, True]
    assert standin.graphs == 4


def test_only_so_many_streams_have_one(call, standin):
    standin.set_current(0)
    for _ in range(10):
        stream = standin.stream()
        for _ in range(BEFORE + 1):
            call(stream=stream)
    assert standin.graphs == 2 * 8


def test_a_captured_stream_gets_kernels(call, standin):
    standin.set_current(0)
    stream = standin.stream()
    warm(call, stream=stream)
    standin.capture(stream)
    assert in_graph(call(stream=stream)) == [False, False]
    standin.capture(0)
    assert in_graph(call(stream=stream)) == [True, True]
    standin.capture(stream)
    assert in_graph(call(stream=stream)) == [False, False]


def test_a_graph_is_made_while_another_stream_is_captured(call, standin):
    standin.set_current(0)
    stream = standin.stream()
    warm(call, stream=stream)
    standin.capture(standin.stream())
    assert in_graph(call(stream=stream)) == [True, True]


@pytest.mark.parametrize("name", MAKING)
def test_what_the_driver_does_not_make_is_launched_one_by_one(call, standin, name):
    warm(call)
    standin.fail(1, 801, name)
    assert names(call(s_i32=1)) == KERNELS
    assert {launch[2] for launch in call(s_i32=2)} == {2, None}


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("nth", [1, 2])
def test_what_the_driver_does_not_change_is_launched_one_by_one(call, standin, name, nth):
    warm(call)
    call()
    standin.fail(nth, 801, name)
    for number in (1, 2, 3):
        found = call(s_i32=number)
        assert names(found) == KERNELS
        assert found[0][2] == number


def test_a_call_that_fails_before_it_launches_leaves_the_graph(call, standin):
    warm(call)
    for _ in range(2):
        standin.fail(1, 2, "cuMemAllocAsync")
        with pytest.raises(Refused):
            call()
        assert in_graph(call()) == [True, True]


def test_a_failed_launch_is_told_as_without_a_graph(call, standin, library):
    warm(call)
    call()
    standin.fail_from(1 + standin_calls_before_launch(call, standin), 719)
    with pytest.raises(Refused, match=r"cuLaunchKernel.*\(first_kernel, kernels.py:50\)"):
        call()
    standin.fail(0)


def standin_calls_before_launch(call, standin):
    standin.forget_calls()
    call()
    return standin.calls.index("cuGraphLaunch")


def test_a_graph_that_is_not_destroyed_is_destroyed_by_the_next_unload(call, standin, library):
    warm(call)
    call()
    for name in ("cuGraphExecDestroy", "cuGraphDestroy"):
        standin.fail(1, 1, name)
        with pytest.raises(Refused, match="cuGraphDestroy"):
            library.unload()
    library.unload()
    assert standin.graphs == 0
