"""Images: which architecture is taken, and what goes wrong when one is loaded."""

import os
import re
import threading
import warnings
from pathlib import Path

import pytest
import torch

from opforge import serving as package
from opforge.arch import FIRST_ARCH_SPECIFIC
from opforge.native.ir.abi import ATTRIBUTES, HIP_ATTRIBUTES
from support.archs import SM_80, gfx
from support.native.hand_made import cubin, elf
from support.serving import Tensor
from support.standin.driver import AMD, SHARED_OPTIN

F32 = torch.float32
X = Tensor(F32)
SOURCES = Path(package.__path__[0]) / "extension"


@pytest.mark.parametrize("preloads", [False, True])
def test_an_image_is_loaded_once(serving, standin, preloads):
    image = serving.image()
    assert standin.calls == []
    if preloads:
        image.load()
        assert standin.calls.count("cuModuleLoadData") == 1
    launch = serving.simple(F32, image=image).bind((1,))
    launch(X, 1)
    launch(X, 2)
    assert standin.calls.count("cuModuleLoadData") == 1


def test_each_device_has_its_own(serving, standin):
    standin.reset(devices=2)
    launch = serving.simple(F32).bind((1,))
    for serving.device in (0, 1, 0, 1):
        launch(X, 1)
    assert [one.device for one in standin.launches] == [0, 1, 0, 1]
    assert standin.calls.count("cuModuleLoadData") == 2


@pytest.mark.parametrize(
    ("content", "symbol", "said"),
    [
        (b"nonsense", "add", "cuModuleLoadData: CUDA_ERROR_200 (200)"),
        (cubin("no_such_function", SM_80), "no_such_function", "cuModuleGetFunction: CUDA_ERROR_5"),
    ],
    ids=["no image", "no function"],
)
def test_what_is_no_image(serving, standin, content, symbol, said):
    image = serving.module.Image([(80, content, symbol, 128, 0, 1, False, 0, 1)])
    with pytest.raises(RuntimeError, match=f"^{symbol}: {re.escape(said)}"):
        image.load()
    assert standin.alive["modules"] == 0


def test_more_shared_memory_than_the_device_has(serving, standin):
    standin.set(0, SHARED_OPTIN, 99_328)
    kernel = serving.simple(F32, image=serving.image(shared=100_000))
    with pytest.raises(RuntimeError) as refused:
        kernel.bind((1,))(X, 1)
    expected = "add: it needs 100000 bytes of shared memory, but device 0 (sm_80) has 99328"
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    "call",
    [
        "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute",
    ],
)  # fmt: skip
def test_a_driver_that_fails_while_loading_may_succeed_later(serving, standin, call):
    launch = serving.simple(F32, image=serving.image(shared=100_000)).bind((1,))
    standin.fail(1, 2, name=call)
    name = call.removesuffix("_v2")
    with pytest.raises(RuntimeError, match=rf"^add: {name}: CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        launch(X, 1)
    assert standin.depth == 0
    assert standin.alive["modules"] == 0
    assert launch(X, 1) is None


def test_a_device_that_does_not_exist(serving):
    launch = serving.simple(F32).bind((1,))
    for serving.device in (1, 64, -1):
        with pytest.raises(ValueError, match="exist") as refused:
            launch(X, 1)
        expected = f"add: device {serving.device} does not exist; the driver has 1"
        assert str(refused.value) == expected


def test_threads_load_an_image_once(serving, standin):
    image = serving.image()
    ready = threading.Barrier(8)

    def load():
        ready.wait()
        image.load()

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert standin.calls.count("cuModuleLoadData") == 1


def test_a_forked_process_loads_its_own(serving, standin):
    launch = serving.simple(F32).bind((1,))
    launch(X, 1)
    with warnings.catch_warnings():
        # Later versions of Python warn of threads, which this child does not need.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        serving.module.forget()
        standin.forget_calls()
        launch(X, 2)
        os._exit(standin.calls.count("cuModuleLoadData"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_what_is_unloaded_is_loaded_again(serving, standin):
    launch = serving.simple(F32).bind((1,))
    launch(X, 1)
    standin.fail(1, name="cuModuleUnload")
    with pytest.raises(RuntimeError, match=r"^unload: cuModuleUnload: CUDA_ERROR_INVALID_VALUE"):
        serving.module.unload()
    assert standin.alive["modules"] == 1
    serving.module.unload()
    assert standin.alive == {"modules": 0, "allocations": 0, "contexts": 0}
    launch(X, 1)
    assert len(standin.launches) == 2


def test_its_headers_agree_with_those_of_native_libraries():
    text = (SOURCES / "library.h").read_text()
    assert f"#define OF_FIRST_ARCH_SPECIFIC {FIRST_ARCH_SPECIFIC}\n" in text
    asked = re.findall(
        r"OF_ATTRIBUTE\((\w+), (\d+), (\d+)\)", (SOURCES / "device_attributes.inc").read_text()
    )
    assert asked
    for name, cuda, hip in asked:
        assert (ATTRIBUTES[name.lower()], HIP_ATTRIBUTES[name.lower()]) == (int(cuda), int(hip))


on_amd = pytest.mark.parametrize("vendor", [AMD], indirect=True, ids=["amd"])


def hsaco(serving, built_for="942", flags=b""):
    """An image for an AMD GPU, with 256 threads; `flags` are of its metadata."""
    (arch,) = gfx(built_for)
    content = elf(b"add" + flags + bytes(8), arch)
    function = (arch.number, content, "add", 256, 70_000, 1, False, 0, 1, False, (), 2, 1)
    serving.images.append(serving.module.Image([function]))
    return serving.images[-1]


@on_amd
def test_an_amd_gpu_is_served_by_its_own_driver(serving, standin):
    launch = serving.simple(F32, image=hsaco(serving)).bind((1,))
    launch(X, 1)
    standin.forget_calls()
    launch(X, 1)
    assert standin.calls == ["hipGetDevice", "hipModuleLaunchKernel"]
    assert [launched.block for launched in standin.launches] == [(256, 1, 1)] * 2
    assert standin.last_error == 0


@on_amd
def test_what_an_amd_gpu_lacks_is_named(serving, standin):
    standin.reset(arch="gfx90a")
    standin.set(0, SHARED_OPTIN, 65536)
    with pytest.raises(LookupError) as refused:
        hsaco(serving).load()
    assert str(refused.value) == "nothing was built for gfx90a (device 0), only for gfx942"
    with pytest.raises(LookupError) as refused:
        serving.image().load()
    assert str(refused.value) == "nothing was built for gfx90a (device 0), only for sm_80"
    with pytest.raises(RuntimeError) as refused:
        hsaco(serving, "90a").load()
    expected = "add: it needs 70000 bytes of shared memory, but device 0 (gfx90a) has 65536"
    assert str(refused.value) == expected
