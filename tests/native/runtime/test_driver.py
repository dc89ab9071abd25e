"""Contexts, streams, images and threads, and a driver that fails at any call."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from opforge.native.ir.abi import ATTRIBUTES
from support.archs import SM_80, gfx, sm
from support.native import hand_made
from support.native.hand_made_calls import SPECIAL, everything
from support.standin.driver import (
    AMD,
    MAJOR,
    MINOR,
    MULTIPROCESSORS,
    NVIDIA,
    SHARED_OPTIN,
    load_standin,
)
from support.standin.library import OpforgeTensor, Refused

ZEROS = torch.zeros(4)
on_nvidia = pytest.mark.parametrize("vendor", [NVIDIA], indirect=True, ids=["nvidia"])
on_amd = pytest.mark.parametrize("vendor", [AMD], indirect=True, ids=["amd"])


def refusal(call, *arguments, **options):
    with pytest.raises(Refused) as refused:
        call(*arguments, **options)
    return refused.value


def add(library, **options):
    library.call("add", ZEROS, ZEROS, torch.zeros(4), **options)


def test_a_kernel_is_loaded_once_when_it_is_first_called(library, standin):
    add(library)
    assert standin.calls.count(standin.vendor.call("cuModuleLoadData")) == 1
    standin.forget_calls()
    add(library)
    if standin.vendor is NVIDIA:
        assert standin.calls == [
            "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuLaunchKernel", "cuCtxPopCurrent_v2",
        ]  # fmt: skip
    else:
        assert standin.calls == ["hipGetDevice", "hipModuleLaunchKernel"]


def test_a_current_context_is_used_as_it_is(library, standin):
    standin.set_current(0)
    add(library)
    standin.forget_calls()
    add(library, stream=standin.stream())
    current = "cuCtxGetCurrent" if standin.vendor is NVIDIA else "hipGetDevice"
    expected = map(standin.vendor.call, ("cuStreamGetCtx", "cuLaunchKernel"))
    assert standin.calls[::2] == list(expected)
    assert standin.calls[1] == current
    standin.set_current(-1)


@on_amd
def test_another_current_device_is_set_aside_and_restored(library, standin):
    standin.reset(devices=2)
    standin.set_current(1)
    add(library)
    standin.forget_calls()
    add(library)
    assert standin.calls == [
        "hipGetDevice", "hipSetDevice", "hipModuleLaunchKernel", "hipSetDevice",
    ]  # fmt: skip
    assert standin.depth == 1
    standin.set_current(-1)


def test_another_current_context_is_pushed_aside_and_restored(library, standin):
    standin.reset(devices=2)
    standin.set_current(1)
    add(library)
    assert standin.launches[0].device == 0
    assert standin.depth == 1
    standin.set_current(-1)


@pytest.mark.parametrize("special", [1, 2])
def test_the_special_streams_need_no_current_context(library, standin, special):
    add(library, stream=special)
    assert standin.launches[0].stream == special


def test_a_stream_of_another_device_is_refused(library, standin):
    standin.reset(devices=2)
    found = refusal(add, library, stream=standin.stream(1))
    assert found.status == "INVALID_ARGUMENT"
    assert found.text == "demo_add: stream: belongs to device 1, but the tensors are on device 0"
    assert standin.launches == []


@on_nvidia
def test_a_stream_of_another_context_is_refused(library, standin):
    found = refusal(add, library, stream=standin.stream(0, primary=False))
    expected = "demo_add: stream: belongs to a context of device 0 that is not its primary one"
    assert found.text == expected


def test_load_loads_everything_so_that_calls_only_launch(library, standin):
    standin.reset(capability=(9, 0))
    standin.set(0, SHARED_OPTIN, 232448)
    library.load()
    count = len(library.manifest["kernels"])
    load = standin.vendor.call("cuModuleLoadData")
    # "late" was built for sm_90 only.
    assert standin.calls.count(load) == count - (standin.vendor is AMD)
    standin.forget_calls()
    add(library)
    library.run("everything", *everything())
    assert load not in standin.calls


def test_load_leaves_out_what_other_architectures_need(library, standin):
    # "late" was built for sm_90 only, and "huge" needs more shared memory than there is.
    library.load()
    assert standin.alive["modules"] == len(library.manifest["kernels"]) - 2


@on_nvidia
@pytest.mark.parametrize(
    ("capability", "image"),
    [((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 7), "sm_86"), ((8, 9), "sm_86"), ((9, 0), "sm_90")],
)
def test_the_closest_image_is_taken(make, standin, capability, image):
    library = make(of_archs(sm(80, 86, 90)), for_both=False)
    standin.reset(capability=capability)
    library.call("touch", torch.zeros(1))
    assert standin.launches[0].image.endswith(image.encode())


@on_nvidia
@pytest.mark.parametrize("capability", [(7, 5), (10, 0), (9, 1)])
def test_a_device_without_an_image_is_refused_with_the_images_there_are(make, standin, capability):
    library = make(of_archs(sm(80, 86, 90)), for_both=False)
    standin.reset(capability=capability)
    found = refusal(library.call, "touch", torch.zeros(1))
    assert found.status == "NO_IMAGE"
    arch = capability[0] * 10 + capability[1]
    assert f"touch has no image for sm_{arch} (device 0); it has sm_80, sm_86, sm_90a" in found.text
    assert found.text.endswith(f"rebuild it with opforge build ... --arch sm_{arch}")
    assert refusal(library.load).status == "NO_IMAGE"


@on_nvidia
def test_ptx_is_the_floor_where_it_was_built(make, standin):
    library = make(of_archs(sm(80, 86, 90), ptx=True), for_both=False)
    standin.reset(capability=(10, 0))
    library.call("touch", torch.zeros(1))
    # For sm_90 it would be arch-specific, too.
    assert standin.launches[0].image == b"// PTX of sm_86\n"
    standin.launches.clear()
    library.unload()
    standin.reset(capability=(8, 9))
    library.call("touch", torch.zeros(1))
    assert standin.launches[0].image.endswith(b"sm_86")


@on_amd
@pytest.mark.parametrize(
    ("arch", "image"), [("gfx942:sramecc+:xnack-", "gfx942"), ("gfx90a", "gfx90a")]
)
def test_an_amd_device_takes_the_image_of_its_own_architecture(make, standin, arch, image):
    library = make(of_archs((SM_80, *gfx("90a", "942"))), for_both=False)
    standin.reset(arch=arch)
    library.call("touch", torch.zeros(1))
    assert standin.launches[0].image.endswith(image.encode())
    assert standin.launches[0].block == (256, 1, 1)


@on_amd
@pytest.mark.parametrize("arch", ["gfx950", "gfx1100", "gfx90c"])
def test_an_amd_device_takes_no_other_image(make, standin, arch):
    library = make(of_archs((SM_80, *gfx("90a", "942"))), for_both=False)
    standin.reset(arch=arch)
    found = refusal(library.call, "touch", torch.zeros(1))
    assert found.status == "NO_IMAGE"
    assert f"no image for {arch} (device 0); it has sm_80, gfx90a, gfx942" in found.text
    assert found.text.endswith(f"--arch {arch}")


@pytest.mark.parametrize(
    ("archs", "device", "said"),
    [
        ((SM_80,), AMD, "is an AMD GPU, and the library was built for sm_80: "),
        (gfx("942"), NVIDIA, "is an NVIDIA GPU, and the library was built for gfx942: "),
    ],
    ids=["NVIDIA's", "AMD's"],
)
def test_a_library_of_the_other_vendor_says_so_without_asking_for_a_driver(
    make, standin, archs, device, said
):
    library = make(of_archs(archs), for_both=False)
    tensor = OpforgeTensor.of(torch.zeros(1))
    tensor.device_type = device.device_type
    standin.calls.clear()
    found = refusal(library.call, "touch", tensor)
    assert found.status == "NO_IMAGE"
    assert f"device 0 {said}" in found.text
    assert standin.calls == []


@on_amd
def test_wavefronts_of_32_are_launched_as_such(make, standin):
    library = make(of_archs(gfx("1100")), for_both=False)
    standin.reset(arch="gfx1100")
    library.call("touch", torch.zeros(1))
    assert standin.launches[0].block == (128, 1, 1)


@on_amd
@pytest.mark.parametrize("arch", ["", "vega20", "gfx", "gfx94z", "gfx942-x"])
def test_the_name_of_an_amd_architecture_must_be_one(library, standin, arch):
    standin.name_arch(0, arch)
    found = refusal(add, library)
    assert found.status == "CUDA_ERROR"
    said = f"the driver reports architecture '{arch}' for device 0, expected gfx..."
    assert found.text == f"demo_add: {said}"


@on_amd
def test_a_code_object_that_hip_refuses_is_told_in_hips_words(make, standin):
    program = of_archs(gfx("942"))
    (kernel,) = program.kernels
    (image,) = kernel.images
    wrong = replace(kernel, images=(image.holding(hand_made.cubin("touch", *gfx("90a"))),))
    library = make(replace(program, kernels=(wrong,)), for_both=False)
    found = refusal(library.call, "touch", torch.zeros(1))
    assert found.status == "CUDA_ERROR"
    assert "hipModuleLoadData: hipErrorNoBinaryForGpu (209)" in found.text


@on_amd
@pytest.mark.parametrize(("shared", "offered", "fits"), [
    (65536, 65536, True), (65536, 0, True), (65537, 65536, False), (163840, 163840, True),
])  # fmt: skip
def test_shared_memory_of_amd_devices(make, standin, shared, offered, fits):
    """64 KiB without asking; gfx950 has 160."""
    program = of_archs(gfx("942"))
    (kernel,) = program.kernels
    (image,) = kernel.images
    larger = replace(kernel, images=(image._replace(shared=shared),))
    library = make(replace(program, kernels=(larger,)), for_both=False)
    standin.set(0, SHARED_OPTIN, offered or 163840)
    if fits:
        library.call("touch", torch.zeros(1))
        return
    found = refusal(library.call, "touch", torch.zeros(1))
    assert f"needs {shared} bytes of shared memory" in found.text
    assert found.text.endswith(f"has {offered}")


@on_amd
def test_several_kernels_are_launched_one_by_one(library, standin):
    for _ in range(20):
        library.run("everything", *everything())
    assert {launched.in_graph for launched in standin.launches} == {False}
    assert len(standin.launches) == 40


@on_amd
def test_errors_are_not_left_for_others_to_find(library, standin):
    """torch looks for the last error after its own launches."""
    standin.fail(1, 1, "hipDeviceGetAttribute")
    add(library)
    assert standin.last_error == 0
    standin.fail(1, 719, "hipModuleLaunchKernel")
    refusal(add, library)
    assert standin.last_error == 0


def test_one_process_calls_both_vendors(make):
    """Each by its own driver, as its tensors say."""
    library, drivers = make(hand_made.for_both(hand_made.library()), for_both=False), []
    for vendor in (NVIDIA, AMD, NVIDIA, AMD):
        driver = load_standin(vendor)
        drivers.append(driver)
        if len(drivers) <= 2:
            driver.reset()
        tensors = [OpforgeTensor.of(torch.zeros(4)) for _ in range(3)]
        for tensor in tensors:
            tensor.device_type = vendor.device_type
        library.call("add", *tensors)
        assert driver.launches[-1].image.endswith(b"sm_80" if vendor is NVIDIA else b"gfx942")
    library.load()
    assert [driver.alive["modules"] for driver in drivers[:2]] == [6, 6]
    library.unload()
    assert [driver.alive["modules"] for driver in drivers[:2]] == [0, 0]
    for driver in drivers[:2]:
        driver.reset()


def of_archs(archs, *, ptx=False):
    images = tuple(
        hand_made.Image(arch, "touch", 4).holding(
            hand_made.cubin("touch", arch), f"// PTX of {arch}\n" if ptx else ""
        )
        for arch in archs
    )  # fmt: skip
    kernel = hand_made.Kernel("touch", "touch", "kernels.py:1", ("*fp32",), (), images)
    variants = (hand_made.Variant("touch", ("*fp32",)),)
    x = hand_made.pointers("fp32", "x")
    launch = hand_made.Launch("touch", "kernels.py:1", (1, 1, 1), x, variants)
    path = hand_made.Path((), steps=(launch,))
    case = hand_made.Case(hand_made.tensors("fp32", (hand_made.Var("n"),), "x"), paths=(path,))
    op = hand_made.Op("touch", "", "", (hand_made.TensorParam("x", True),), (), (case,))
    return hand_made.library((op, [kernel]), archs=archs)


def test_a_kernel_for_other_architectures_does_not_count_as_an_image(library, standin):
    found = refusal(library.call, "special", torch.zeros(4), SPECIAL["late"])
    assert found.status == "NO_IMAGE"
    arch = "sm_80" if standin.vendor is NVIDIA else "gfx942"
    assert f"late has no image for {arch} (device 0); it has sm_90a" in found.text


def test_a_kernel_that_needs_more_shared_memory_than_there_is(library, standin):
    found = refusal(library.call, "special", torch.zeros(4), SPECIAL["huge"])
    assert found.status == "NO_IMAGE"
    assert "special_huge needs 200000 bytes of shared memory" in found.text
    assert found.text.endswith("has 166912")


@on_nvidia
def test_host_code_that_asks_for_the_capability_sees_the_one_that_was_built(make, standin):
    major, minor = hand_made.Var("device.major"), hand_made.Var("device.minor")
    n = hand_made.Var("n")
    path = hand_made.Path((), (hand_made.Output("fp32", (major, minor), (minor, 1)),))
    case = hand_made.Case(hand_made.tensors("fp32", (n,), "x"), paths=(path,))
    op = hand_made.Op("asks", "", "", (hand_made.TensorParam("x"),), ("out",), (case,))
    library = make(hand_made.library((op, []), archs=sm(80, 90)))
    seen_by = {(8, 0): (8, 0), (8, 9): (8, 0), (9, 0): (9, 0), (7, 5): (7, 5)}
    for capability, seen in seen_by.items():
        standin.reset(capability=capability)
        assert library.outputs("asks", torch.zeros(1))[0].sizes == seen
        library.unload()


def test_no_gpu_is_a_status(library, standin):
    # The driver stays initialized in a process; its first call answers so.
    count = standin.vendor.call("cuDeviceGetCount")
    standin.fail(1, 100, count)
    found = refusal(add, library)
    assert (found.status, found.text) == (
        "NO_DRIVER",
        f"demo_add: {count}: {standin.vendor.errors[100]} (100): an error of the stand-in",
    )
    add(library)


@on_nvidia
def test_no_driver_is_a_status(make):
    said = loaded_without_a_driver(make(hand_made.library(), for_both=False))
    assert said.startswith("3 demo_load: no CUDA driver: libcuda.so.1: cannot open")
    assert "HIP" not in said


@on_nvidia
def test_no_driver_of_either_vendor_is_told_of_both(library):
    said = loaded_without_a_driver(library)
    assert said.startswith("3 demo_load: no CUDA driver: libcuda.so.1: cannot open")
    assert "; no HIP driver: libamdhip64.so: cannot open" in said


def loaded_without_a_driver(library):
    code = (
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "library.demo_last_error.restype = ctypes.c_char_p\n"
        "print(library.demo_load(0), library.demo_last_error().decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, library.c._name], capture_output=True, text=True, check=True
    )
    if "no CUDA driver" not in done.stdout:
        pytest.skip("this machine has a driver")
    return done.stdout


def test_a_device_attribute_that_cannot_be_read_is_not_a_failure(library, standin):
    standin.fail(1, 1, standin.vendor.call("cuDeviceGetAttribute"))
    add(library)


MULTIPROCESSOR_COUNT = hand_made.Var("device.multi_processor_count")


def persistent(steps=(), programs=MULTIPROCESSOR_COUNT):
    """out = x, by as many programs as the device has multiprocessors."""
    n = hand_made.Var("n")
    types = ("*fp32", "*fp32")
    arguments = hand_made.pointers("fp32", "x", "out")
    launch = hand_made.launch("copy", arguments, types, (programs, 1, 1), location="ops.py:3")
    path = hand_made.Path((), (hand_made.out_like("fp32", (n,)),), (*steps, launch))
    case = hand_made.Case(hand_made.tensors("fp32", (n,), "x"), paths=(path,))
    params = (hand_made.TensorParam("x"),)
    op = hand_made.Op("copy", "demo::copy", "ops.py:1", params, ("out",), (case,))
    return hand_made.library((op, [hand_made.kernel("copy", "copy_kernel", types)]))


def test_an_attribute_that_was_not_answered_is_asked_again(make, standin):
    ops, attribute = make(persistent()), standin.vendor.call("cuDeviceGetAttribute")
    standin.fail(1, 1, attribute)
    ops.load()
    standin.fail(1, 1, attribute)
    found = refusal(ops.run, "copy", ZEROS)
    assert (found.status, standin.launches) == ("CUDA_ERROR", [])
    assert found.text.startswith(f"demo_copy: {attribute}: {standin.vendor.errors[1]} (1): ")
    assert found.text.endswith(" (attribute 16)" if standin.vendor is NVIDIA else " (attribute 63)")
    for _ in range(2):
        ops.run("copy", ZEROS)
    assert [launched.grid for launched in standin.launches] == [(108, 1, 1)] * 2
    asked = standin.calls.count(attribute)
    ops.run("copy", ZEROS)
    assert standin.calls.count(attribute) == asked


def test_the_architecture_must_be_known(make, standin):
    ops = make(persistent())
    at = list(ATTRIBUTES.values()).index(MAJOR) + 1
    standin.fail(at, 1, standin.vendor.call("cuDeviceGetAttribute"))
    assert refusal(ops.load).status == "CUDA_ERROR"
    ops.load()


def test_a_device_without_multiprocessors_is_asked_again(make, standin):
    """Other launches of the call may write something, so that an empty one is not noticed."""
    standin.set(0, MULTIPROCESSORS, 0)
    before = hand_made.Fill("out", 0, hand_made.Var("n"), 4, 0)
    ops = make(persistent([before]))
    found = refusal(ops.run, "copy", ZEROS)
    assert (found.status, standin.launches) == ("CUDA_ERROR", [])
    assert found.text == "demo_copy: the driver reports 0 multiprocessors for device 0"
    standin.set(0, MULTIPROCESSORS, 3)
    ops.run("copy", ZEROS)
    assert [launched.grid for launched in standin.launches] == [(3, 1, 1)]


def test_a_call_that_would_write_nothing_is_refused(make, standin):
    programs = hand_made.make("//", hand_made.Var("n"), 1000)
    workspace = hand_made.Allocate("workspace0", 64)
    for program in (persistent(programs=programs), persistent([workspace], programs)):
        ops = make(program)
        found = refusal(ops.run, "copy", ZEROS)
        assert found.status == "UNCOVERED"
        said = "copy_kernel (ops.py:3): its grid is empty, so nothing would write to out"
        assert found.text == f"demo_copy: {said}"
        assert refusal(ops.workspace, "copy", ZEROS, None).text == found.text
        ops.run("copy", torch.empty(0))
        ops.unload()
    assert (standin.launches, standin.alive["allocations"]) == ([], 0)
    filled = make(persistent([hand_made.Fill("out", 0, hand_made.Var("n"), 4, 0)], programs))
    filled.run("copy", ZEROS)
    filled.unload()


def test_a_driver_out_of_memory_has_its_own_status(library, standin):
    allocate = standin.vendor.call("cuMemAllocAsync")
    standin.fail(1, 2, allocate)
    found = refusal(library.run, "everything", *everything())
    assert found.status == "OUT_OF_MEMORY"
    assert f"{allocate}: {standin.vendor.errors[2]} (2): " in found.text
    assert "(40 bytes of workspace)" in found.text
    assert standin.launches == []


def test_a_failed_launch_names_the_kernel(library, standin):
    launch = standin.vendor.call("cuLaunchKernel")
    standin.fail(1, 1, launch)
    found = refusal(add, library)
    assert found.text.startswith(f"demo_add: {launch}: {standin.vendor.errors[1]} (1): ")
    assert found.text.endswith(" (add_kernel, ops.py:13)")


@on_nvidia
def test_devices_of_two_architectures_take_their_own_images(library, standin):
    standin.reset(devices=2)
    standin.set(1, MAJOR, 9)
    standin.set(1, MINOR, 0)
    for device in (0, 1):
        tensors = [OpforgeTensor.of(torch.zeros(4), device) for _ in range(3)]
        library.call("add", *tensors)
    assert [launched.image[-5:] for launched in standin.launches] == [b"sm_80", b"sm_90"]
