"""The example library on a GPU: built for it, and called with torch's tensors."""

import importlib
import itertools
import subprocess
import sys
import threading

import pytest
import torch

import opforge
from opforge import native
from support.gpu.arch import arch_name, current_arch
from support.processes import ROOT, environment

CALLS = ROOT / "tests" / "native" / "end_to_end"
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
HALVES = FLOATS[:2]
TOLERANCES = {
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
}


@pytest.fixture(scope="module")
def harness():
    return importlib.import_module("support.standin.library")


@pytest.fixture(scope="module")
def ops():
    sys.path.insert(0, str(ROOT / "examples" / "native"))
    yield importlib.import_module("ops")
    sys.path.remove(str(ROOT / "examples" / "native"))


@pytest.fixture(scope="module")
def kinds():
    return importlib.import_module("support.native.kinds")


def build(module, folder):
    """What a module declares, built for this machine's GPU."""
    every = [op for op in vars(module).values() if opforge.is_op(op)]
    native.build(every, folder, archs=[arch_name()], torch=True)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("native")


@pytest.fixture(scope="module")
def dist(ops, folder):
    return build(ops, folder / "ops")


@pytest.fixture(scope="module")
def kinds_dist(kinds, folder):
    return build(kinds, folder / "kinds")


@pytest.fixture(scope="module")
def large_dist(folder):
    """Of a kernel that needs more shared memory than AMD's GPUs have."""
    if not current_arch().is_amd:
        build(importlib.import_module("support.native.large"), folder / "large")


@pytest.fixture(scope="module")
def library(dist, harness):
    return harness.NativeLibrary(dist, "ops")


def random(*shape, dtype=torch.float32, seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.to("cuda", dtype)


def check(library, ops, name, *inputs):
    """A call on torch's current stream gives what the reference gives."""
    stream = torch.cuda.current_stream().cuda_stream
    (found,) = library.run(name, *inputs, stream=stream)
    expected = getattr(ops, f"{name}_reference")(*inputs)
    torch.testing.assert_close(found, expected, **TOLERANCES[found.dtype])


SHAPES = [(1,), (1023,), (1 << 20,), (33, 1024), (3, 5, 7), (2, 3, 4, 513), (0,), (4, 0)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_silu(library, ops, dtype, shape):
    check(library, ops, "silu", random(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offset", [1, 3, 8])
def test_silu_of_memory_that_is_not_aligned(library, ops, dtype, offset):
    check(library, ops, "silu", random(4096 + offset, dtype=dtype)[offset:])


def test_a_byte_offset_moves_the_data(library, harness, ops):
    x, out = random(2048, dtype=torch.float16), torch.empty(2000, device="cuda").half()
    given = harness.OpforgeTensor.of(x[:2000])
    given.byte_offset = 2 * 48
    stream = torch.cuda.current_stream().cuda_stream
    library.call("silu", given, out, stream=stream)
    torch.testing.assert_close(out, ops.silu_reference(x[48:]), **TOLERANCES[torch.float16])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (64, 1024), (37, 1025), (5000, 3), (0, 8)])
def test_add(library, ops, dtype, rows, cols):
    x, y = random(rows, cols, dtype=dtype), random(rows, cols, dtype=dtype, seed=1)
    check(library, ops, "add", x, y)
    check(library, ops, "add", x, random(cols, rows, dtype=dtype).t())
    check(
        library,
        ops,
        "add",
        random(cols, rows, dtype=dtype).t(),
        random(cols, rows, dtype=dtype).t(),
    )
    check(library, ops, "add", x, random(cols, dtype=dtype).expand(rows, cols))
    check(library, ops, "add", random(rows, 2 * cols, dtype=dtype)[:, ::2], y)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("hidden", [1, 1000, 1024, 1025, 2048, 4096, 8191, 8192])
def test_rms_norm(library, ops, dtype, hidden):
    x = random(19, hidden, dtype=dtype)
    check(library, ops, "rms_norm", x, random(hidden, dtype=dtype, seed=1), 1e-6)
    check(library, ops, "rms_norm", x, random(hidden, dtype=dtype, seed=1), 0.5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1,), (1024,), (7, 1025), (3, 5, 3000), (2, 100_000), (0, 3)])
def test_softmax(library, ops, dtype, shape):
    check(library, ops, "softmax", 3 * random(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (64, 32, 64), (65, 33, 63), (256, 512, 384), (5, 0, 7), (0, 4, 4)]
)
def test_gemm(library, ops, dtype, sizes):
    m, k, n = sizes
    layouts = (False, True)
    for a_columns, b_columns in itertools.product(layouts, layouts):
        a = random(k, m, dtype=dtype).t() if a_columns else random(m, k, dtype=dtype)
        b = random(n, k, dtype=dtype).t() if b_columns else random(k, n, dtype=dtype)
        check(library, ops, "gemm", a / 8, b, 0.5)
    wide = random(m, 2 * k, dtype=dtype) / 8
    check(library, ops, "gemm", wide[:, ::2], random(k, n, dtype=dtype), -2.0)


def test_tensors_of_more_than_2_to_the_31_elements(library):
    n = 2**31 + 1000
    if torch.cuda.mem_get_info()[0] < 5 * n:
        pytest.skip("not enough free memory on the GPU")
    x = torch.zeros(n, device="cuda", dtype=torch.float16)
    x[-3:] = 2
    (out,) = library.run("silu", x, stream=torch.cuda.current_stream().cuda_stream)
    assert out[-4:].tolist() == pytest.approx([0, 1.7616, 1.7616, 1.7616], abs=2e-3)
    assert not out[:-3].any()


def test_calls_go_to_the_stream_that_is_passed(library, ops):
    """Each stream's work waits only for its own producer."""
    streams = [torch.cuda.Stream() for _ in range(4)]
    inputs = [torch.empty(1 << 20, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    outputs = []
    for number, (stream, x) in enumerate(zip(streams, inputs, strict=True)):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            x.fill_(number)
            outputs.append(library.run("silu", x, stream=stream.cuda_stream)[0])
    torch.cuda.synchronize()
    for x, out in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(out, ops.silu_reference(x))


def test_threads_with_streams_of_their_own(library, ops):
    failures = []

    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x = random(64, 300 + number, seed=number)
                weight = random(300 + number, seed=number + 1)
                for _ in range(50):
                    check(library, ops, "rms_norm", x, weight, 1e-6)
        except BaseException as error:  # noqa: BLE001 - a thread's error is the test's
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_a_cuda_graph_of_calls_is_captured_and_replayed(library, ops):
    library.load(0)
    x, weight = random(128, 1024), random(1024, seed=1)
    normed, out = torch.empty_like(x), torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        library.call("rms_norm", x, weight, 1e-6, normed, stream=stream)
        library.call("silu", normed, out, stream=stream)
    for seed in (2, 3):
        x.copy_(random(128, 1024, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        expected = ops.silu_reference(ops.rms_norm_reference(x, weight))
        torch.testing.assert_close(out, expected, **TOLERANCES[torch.float32])


def test_the_first_call_may_be_one_that_is_captured(dist, harness, ops):
    """After a load and nothing else: no call in a capture may load a module."""
    library = harness.NativeLibrary(dist, "ops")
    library.unload(0)
    library.load(0)
    x, out = random(4, 512), torch.empty(4, 512, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.call("softmax", x, out, stream=torch.cuda.current_stream().cuda_stream)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, ops.softmax_reference(x))


def test_workspace_of_a_captured_call_is_the_graphs(kinds_dist, harness):
    library = harness.NativeLibrary(kinds_dist, "kinds")
    library.load(0)
    x = torch.zeros(1000, dtype=torch.int32, device="cuda")
    out = torch.empty(16, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.call("running", x, out, stream=torch.cuda.current_stream().cuda_stream)
    for value in (0, 5, 15):
        x.fill_(value)
        graph.replay()
        counts = torch.bincount(x.cpu(), minlength=16) + 100
        assert torch.equal(out.cpu().long(), counts.cumsum(0))


def test_everything_true_on_the_stand_in_is_true_on_the_gpu(dist, kinds_dist, large_dist, folder):
    """Every kind of host function, random shapes and strides, and the C program."""
    not_for_amd = {"calls_large", "calls_program"} if current_arch().is_amd else set()
    calls = [file for file in sorted(CALLS.glob("calls_*.py")) if file.stem not in not_for_amd]
    more = {"OPFORGE_TEST_BUILT": str(folder), "OPFORGE_TEST_DEVICE": "cuda"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", *calls],
        env=environment(ROOT / "examples" / "native", **more), cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def hopper(folder, harness):
    if not current_arch().is_hopper_or_later:
        pytest.skip("needs a GPU of sm_90 or later")
    build(importlib.import_module("support.gpu.hopper_ops"), folder / "hopper")
    return harness.NativeLibrary(folder / "hopper", "hopper")


def run(library, name, x):
    return library.run(name, x, stream=torch.cuda.current_stream().cuda_stream)[0]


@pytest.mark.parametrize("shape", [(32, 64), (100, 64), (7, 4096)])
def test_descriptors_lie_in_scratch_memory_of_the_launch(hopper, shape):
    x = random(*shape, dtype=torch.float16)
    torch.testing.assert_close(run(hopper, "described", x), 2 * x)


@pytest.mark.parametrize("name", ["clustered", "cooperative"])
@pytest.mark.parametrize("n", [0, 1, 512, 3000, 65536])
def test_clusters_and_cooperative_grids(hopper, name, n):
    x = random(n)
    torch.testing.assert_close(run(hopper, name, x), x * x)


def test_host_tensors_are_refused_and_the_next_call_works(library, harness, ops):
    x = torch.ones(4)
    wrong = harness.OpforgeTensor.of(x)
    wrong.device_type = 1
    with pytest.raises(harness.Refused) as refused:
        library.call("silu", wrong, random(4))
    assert refused.value.status == "INVALID_ARGUMENT"
    assert "x" in refused.value.text
    check(library, ops, "silu", random(4))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU only")
def test_the_device_is_that_of_the_tensors(library, ops):
    x = random(1000).to("cuda:1")
    with torch.cuda.device(1):
        (out,) = library.run("silu", x, stream=torch.cuda.current_stream().cuda_stream)
    torch.testing.assert_close(out, ops.silu_reference(x))
