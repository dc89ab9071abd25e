"""`opforge.load` on a GPU: with the source, without, without Triton, and in a C++ program."""

import contextlib
import importlib
import shutil
import subprocess
import sys
import threading

import pytest
import torch

import opforge
from opforge import native
from opforge.errors import NotALibrary, OpforgeWarning
from support.gpu.arch import arch_name
from support.gpu.packages import skip_unless_loaded
from support.processes import environment

MAIN = r"""
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <dlfcn.h>

#include <iostream>

int main(int argc, char **argv)
{
    if (argc != 3 || !dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) {
        std::cerr << dlerror() << std::endl;
        return 1;
    }
    c10::InferenceMode mode;
    torch::inductor::AOTIModelPackageLoader loader(argv[2]);
    auto x = torch::arange(100, torch::dtype(torch::kFloat32).device(torch::kCUDA));
    auto out = loader.run({x, torch::ones_like(x)})[0];
    if (!torch::allclose(out, 2 * x + 2))
        return 2;
    std::cout << "fine" << std::endl;
    return 0;
}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(loads LANGUAGES CXX)
find_package(Torch REQUIRED)
add_executable(loads main.cpp)
target_compile_features(loads PRIVATE cxx_std_20)
target_link_libraries(loads PRIVATE "${TORCH_LIBRARIES}" dl)
"""


@pytest.fixture(scope="module")
def source():
    return importlib.import_module("support.gpu.load_ops")


@pytest.fixture(scope="module")
def dist(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("load")
    every = [source.add, source.scale, source.scale_, source.total]
    native.build(every, folder, archs=[arch_name()], torch=True)
    return folder


@pytest.fixture(params=["C++", "ctypes"])
def loaded(request, dist):
    made = opforge.load(dist, adapter=request.param == "C++")
    yield made
    made.close()


@pytest.fixture
def compiled(monkeypatch):
    """The kernels that Triton compiles, or takes from its cache, while the test runs."""
    triton = importlib.import_module("triton")
    found = []

    def hook(*_args, **given):
        found.append(given.get("fn"))

    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", hook)
    return found


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1,), (1025,), (1 << 20,), (33, 1024), (0,)])
def test_calls_are_native_and_nothing_is_compiled(loaded, source, compiled, dtype, shape):
    x, y = random(*shape, dtype=dtype), random(*shape, dtype=dtype)
    torch.testing.assert_close(source.add(x, y), x + y)
    assert compiled == []


def test_memory_that_is_not_aligned_and_other_streams(loaded, source):
    x = random(5000)
    torch.testing.assert_close(source.add(x[1:], x[1:]), 2 * x[1:])
    with torch.cuda.stream(torch.cuda.Stream()):
        made = source.add(x, x)
        torch.cuda.current_stream().synchronize()
    torch.testing.assert_close(made, 2 * x)


def allocations():
    return torch.cuda.memory_stats()["allocation.all.allocated"]


def test_workspace_is_torchs_in_a_call_by_torch(dist, source):
    x = torch.arange(5000.0, device="cuda")
    with contextlib.closing(opforge.load(dist, adapter=True)):
        source.total(x)
        before = allocations()
        result = source.total(x)
        assert allocations() - before == 2  # its result, and the workspace
        assert result.item() == x.sum().item() / 2
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = source.total(x)
        x.fill_(3)
        graph.replay()
        assert out.item() == 7500


def test_a_thousand_shapes_compile_nothing(loaded, source, compiled):
    for n in range(1, 1001):
        x = torch.ones(n, device="cuda")
        assert source.add(x, x).sum().item() == 2 * n
    assert compiled == []


def test_uncovered_calls_are_compiled_with_one_warning(loaded, source):
    x = random(100, 70)
    with pytest.warns(OpforgeWarning, match="does not cover this call"):
        wide = source.add(x.double(), x.double())
    torch.testing.assert_close(wide, (2 * x).double())
    torch.testing.assert_close(source.add(x.t(), x.t()), 2 * x.t())


def test_the_backend_is_chosen(loaded, source, dist):
    x = random(100).double()
    with opforge.backend("native"), pytest.raises(RuntimeError, match="type fp64"):
        source.add(x, x)
    with opforge.backend("jit"):
        torch.testing.assert_close(source.add(x, x), 2 * x)
        torch.testing.assert_close(source.add(x.float(), x.float()), 2 * x.float())
    loaded.strict = True
    with pytest.raises(RuntimeError, match=f"opforge build .*load_ops.py --arch {arch_name()}"):
        source.add(x, x)


def test_the_backward_of_the_source_is_kept(loaded, source):
    x = random(3000).requires_grad_()
    source.scale(x, 3.0).backward(torch.ones(3000, device="cuda"))
    torch.testing.assert_close(x.grad, torch.full_like(x, 3.0))


def test_a_change_in_place_is_seen(loaded, source):
    x = random(3000)
    before = x.clone()
    source.scale_(x, 3.0)
    torch.testing.assert_close(x, 3 * before)
    assert x._version == 1


def test_the_compiler_still_sees_the_kernels(loaded, source):
    x = random(64, 64)
    seen = []

    def backend(graph, _inputs):
        seen.append(graph)
        return graph.forward

    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415 - imports Dynamo

    torch.compile(lambda x: source.add(x, x) + 1, backend=aot_autograd(fw_compiler=backend))(x)
    assert "triton_kernel_wrapper" in str(seen[0].graph)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: source.add(x, x) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(x), 2 * x + 1)


def test_many_threads_call_at_once(loaded, source):
    failed = []

    def call(seed):
        try:
            x = torch.full((4000,), float(seed), device="cuda")
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    made = source.add(x, x)
                torch.cuda.current_stream().synchronize()
            torch.testing.assert_close(made, 2 * x)
        except BaseException as error:  # noqa: BLE001 - the main thread looks
            failed.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_library_for_other_gpus_is_refused(source, tmp_path):
    other = "sm_80" if arch_name() != "sm_80" else "sm_90"
    native.build([source.scale_], tmp_path, archs=[other], name="elsewhere")
    with pytest.raises(NotALibrary, match=f"was built for {other}.*") as failed:
        opforge.load(tmp_path)
    assert f"found: {arch_name()}" in str(failed.value)
    assert f"--arch {arch_name()}" in str(failed.value)


def alone(*arguments):
    command = [sys.executable, "-m", "support.gpu.load_alone", *map(str, arguments)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("fine"), done.stdout + done.stderr


@pytest.mark.parametrize("adapter", ["C++", "ctypes"])
def test_neither_triton_nor_the_source_is_needed(dist, adapter):
    alone(dist, "run", adapter)


@pytest.fixture(scope="module")
def package(dist):
    """An AOTInductor package with the operator, made and run in a process without the source."""
    skip_unless_loaded()
    alone(dist, "package")
    return dist / "model.pt2"


def test_an_aotinductor_package_runs_in_python(package):
    assert package.is_file()


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no CMake")
def test_an_aotinductor_package_runs_in_a_cpp_program(package, dist, tmp_path):
    (tmp_path / "main.cpp").write_text(MAIN)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    for command in (
        ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), prefix],
        ["cmake", "--build", str(tmp_path / "build")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    program = [str(tmp_path / "build" / "loads"), str(dist / "lib" / "libgpu_load_torch.so")]
    done = subprocess.run([*program, str(package)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr
