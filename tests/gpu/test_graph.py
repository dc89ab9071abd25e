"""A body of several launches on a GPU, called often enough that they are one CUDA graph."""

import threading

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native
from support.gpu.arch import arch_name

CALLS = 40


@triton.jit
def twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


def mixed(x: Tensor) -> Tensor:
    y = x - 1
    out = torch.empty_like(y)
    twice_kernel[(triton.cdiv(y.numel(), 256),)](y, out, y.numel(), BLOCK=256)
    return out.amax(-1) * 0.5


def expected(x):
    return ((x - 1) * 2).amax(-1) * 0.5


@pytest.fixture(scope="module")
def op(tmp_path_factory):
    made = opforge.op(mixed, name="graph_tests::mixed")
    native.declare(made, x=native.tensor("m n", dtype="fp32"))
    folder = tmp_path_factory.mktemp("graph")
    native.build([made], folder, archs=[arch_name()], torch=True)
    opforge.load(folder)
    with opforge.backend("native"):
        yield made


def test_each_call_computes_with_its_own_sizes_and_addresses(op):
    for number in range(CALLS):
        x = torch.randn(1 + number % 7, 64 + 33 * number, device="cuda")
        assert torch.equal(op(x), expected(x))


def test_results_of_calls_in_flight_stay_apart(op):
    given = [torch.randn(50, 1000, device="cuda") for _ in range(CALLS)]
    found = [op(x) for x in given]
    for x, one in zip(given, found, strict=True):
        assert torch.equal(one, expected(x))


def test_a_captured_call_is_replayed_with_new_data(op):
    stream = torch.cuda.Stream()
    x = torch.randn(50, 1000, device="cuda")
    with torch.cuda.stream(stream):
        for _ in range(CALLS):
            op(x)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        out = op(x)
    for _ in range(3):
        x.normal_()
        captured.replay()
        assert torch.equal(out, expected(x))


def test_threads_with_streams_of_their_own(op):
    wrong = []

    def work(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), opforge.backend("native"):
            generator = torch.Generator("cuda").manual_seed(seed)
            for _ in range(CALLS):
                x = torch.randn(20 + seed, 500, device="cuda", generator=generator)
                if not torch.equal(op(x), expected(x)):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
