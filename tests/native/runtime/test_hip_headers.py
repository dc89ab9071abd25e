"""What driver.h and driver_hip.c declare of HIP, compared with the headers that Triton ships."""

import subprocess
from pathlib import Path

import pytest
import triton

from opforge.native.codegen.text import runtime
from opforge.native.ir.abi import ATTRIBUTES, HIP_ATTRIBUTES
from support.native import hand_made
from support.standin.library import write

HEADERS = Path(triton.__file__).parent / "backends" / "amd" / "include"
pytestmark = pytest.mark.skipif(
    not (HEADERS / "hip" / "hip_runtime_api.h").is_file(), reason="this Triton has no HIP headers"
)
# By torch's name; HIP has no shared memory to opt into.
NAMES = {
    "multi_processor_count": "MultiprocessorCount",
    "max_threads_per_multi_processor": "MaxThreadsPerMultiProcessor",
    "max_threads_per_block": "MaxThreadsPerBlock",
    "shared_memory_per_block": "MaxSharedMemoryPerBlock",
    "shared_memory_per_block_optin": "MaxSharedMemoryPerBlock",
    "shared_memory_per_multiprocessor": "MaxSharedMemoryPerMultiprocessor",
    "regs_per_multiprocessor": "MaxRegistersPerMultiprocessor",
    "l2_cache_size": "L2CacheSize",
    "warp_size": "WarpSize",
    "clock_rate": "ClockRate",
    "memory_clock_rate": "MemoryClockRate",
    "memory_bus_width": "MemoryBusWidth",
    "major": "ComputeCapabilityMajor",
    "minor": "ComputeCapabilityMinor",
}
PROGRAM = r"""
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <stddef.h>
#include "driver_hip.c"
#define HOLDS(condition) _Static_assert(condition, #condition)
HOLDS(offsetof(Properties, arch) == offsetof(hipDeviceProp_t, gcnArchName));
HOLDS(sizeof(Properties) >= sizeof(hipDeviceProp_t));
HOLDS(sizeof(LaunchAttribute) == sizeof(hipLaunchAttribute));
HOLDS(offsetof(LaunchAttribute, value) == offsetof(hipLaunchAttribute, val));
HOLDS(sizeof(LaunchConfig) == sizeof(HIP_LAUNCH_CONFIG));
HOLDS(offsetof(LaunchConfig, block) == offsetof(HIP_LAUNCH_CONFIG, blockDimX));
HOLDS(offsetof(LaunchConfig, shared) == offsetof(HIP_LAUNCH_CONFIG, sharedMemBytes));
HOLDS(offsetof(LaunchConfig, stream) == offsetof(HIP_LAUNCH_CONFIG, hStream));
HOLDS(offsetof(LaunchConfig, attributes) == offsetof(HIP_LAUNCH_CONFIG, attrs));
HOLDS(offsetof(LaunchConfig, attribute_count) == offsetof(HIP_LAUNCH_CONFIG, numAttrs));
HOLDS(OF_LAUNCH_COOPERATIVE == (int)hipLaunchAttributeCooperative);
HOLDS(OF_DRIVER_INVALID_VALUE == (int)hipErrorInvalidValue);
HOLDS(OF_DRIVER_OUT_OF_MEMORY == (int)hipErrorOutOfMemory);
HOLDS(OF_DRIVER_NO_DEVICE == (int)hipErrorNoDevice);
HOLDS(OF_POINTER_DEVICE_POINTER == (int)HIP_POINTER_ATTRIBUTE_DEVICE_POINTER);
HOLDS(OF_LAST_SPECIAL_STREAM == (uintptr_t)hipStreamPerThread);
"""
# Each by the arguments that the table passes; a compiler refuses another number or kind of them.
CALLS = """
    hipInit(0); hipGetDeviceCount(i); hipDeviceGet(i, 0);
    hipDeviceGetAttribute(i, (hipDeviceAttribute_t)1, 0); hipGetDeviceProperties(properties, 0);
    hipGetDevice(i); hipSetDevice(0); hipStreamGetDevice(stream, i);
    hipModuleLoadData(&module, p); hipModuleUnload(module);
    hipModuleGetFunction(&function, module, "");
    hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0u, stream, pp, pp);
    hipModuleLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0u, stream, pp);
    hipDrvLaunchKernelEx(config, function, pp, pp);
    hipMallocAsync(pp, n, stream); hipFreeAsync(p, stream);
    hipMemsetD8Async(p, 0, n, stream); hipMemsetD16Async(p, 0, n, stream);
    hipMemsetD32Async(p, 0, n, stream); hipMemset2DAsync(p, n, 0, n, n, stream);
    hipPointerGetAttribute(p, HIP_POINTER_ATTRIBUTE_DEVICE_POINTER, p);
    hipDrvGetErrorName(hipSuccess, text); hipDrvGetErrorString(hipSuccess, text);
    hipGetLastError();
"""


def test_layouts_numbers_and_signatures_are_hips(tmp_path):
    assert HIP_ATTRIBUTES.keys() == ATTRIBUTES.keys() == NAMES.keys()
    write(hand_made.library(), tmp_path)
    numbers = "".join(
        f"HOLDS({HIP_ATTRIBUTES[name]} == (int)hipDeviceAttribute{named});\n"
        for name, named in NAMES.items()
    )
    arguments = (
        "int *i, void *p, void **pp, size_t n, const char **text, hipStream_t stream, "
        "hipModule_t module, hipFunction_t function, hipDeviceProp_t *properties, "
        "const HIP_LAUNCH_CONFIG *config"
    )
    calls = f"void calls({arguments});\nvoid calls({arguments})\n{{{CALLS}}}\n"
    source = tmp_path / "same.c"
    source.write_text(PROGRAM + numbers + calls)
    flags = ["-std=c11", "-Werror", "-Wall", "-Wno-unused", "-Wno-unused-result"]
    include = [f"-I{HEADERS}", f"-I{tmp_path / 'src' / 'demo'}", f"-I{tmp_path / 'include'}"]
    command = ["cc", *flags, *include, "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_function_that_is_opened_was_compared():
    opened = set(_symbols(runtime()["driver_hip.c"]))
    compared = {call.partition("(")[0].strip() for call in CALLS.split(";")} - {""}
    assert {name.removesuffix("R0600") for name in opened} == compared


def _symbols(text: str) -> list[str]:
    return [part.partition('"')[0] for part in text.split('NEEDED("')[1:]] + [
        part.partition('"')[0] for part in text.split('OPTIONAL("')[1:]
    ]
