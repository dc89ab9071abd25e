"""The numbers that a library, its callers and this opforge must agree on, each of them once.

The first call of a loaded library imports this module, so it imports nothing.
"""

from __future__ import annotations

# Of the C header's types and functions. A program links only with libraries of its own ABI.
ABI = 1
# Of the functions that a torch adapter exports to `opforge.load`.
ADAPTER_ABI = 3
# Of the extension in a folder that is served: another one wherever it or what it is given changes.
SERVED_ABI = 1
# Of the manifest: 10 is the first that libraries and folders that are served share.
MANIFEST_FORMAT = 10

# Tensors have at most this many dimensions; callers give `_outputs` arrays of this length.
MAX_RANK = 8

# What every C function returns, in the order of OpforgeStatus, with the header's comment on it.
STATUSES = {
    "OK": "",
    "INVALID_ARGUMENT": "An argument is not what the function takes; nothing was launched.",
    "UNCOVERED": "The arguments are valid, but nothing was built for them; the text says what was.",
    "NO_DRIVER": "libcuda or libamdhip64 is missing or too old, or there is no GPU.",
    "NO_IMAGE": "No kernel image fits the GPU; the text lists the images in the library.",
    "CUDA_ERROR": "A call of the CUDA or HIP driver failed; the text names it.",
    "OUT_OF_MEMORY": "An allocator or the driver had no memory left.",
}
STATUS_NAMES = tuple(STATUSES)

# What a library can ask a device at run time, for tracing and for the C runtime.
# By torch's name for it, the number of the CUdevice_attribute.
ATTRIBUTES = {
    "multi_processor_count": 16,
    "max_threads_per_multi_processor": 39,
    "max_threads_per_block": 1,
    "shared_memory_per_block": 8,
    "shared_memory_per_block_optin": 97,
    "shared_memory_per_multiprocessor": 81,
    "regs_per_multiprocessor": 82,
    "l2_cache_size": 38,
    "warp_size": 10,
    "clock_rate": 13,
    "memory_clock_rate": 36,
    "memory_bus_width": 37,
    "major": 75,
    "minor": 76,
}
# The number of the hipDeviceAttribute_t. HIP has no shared memory to opt into, and knows that of a
# multiprocessor by a number of its own.
HIP_ATTRIBUTES = {
    "multi_processor_count": 63,
    "max_threads_per_multi_processor": 57,
    "max_threads_per_block": 56,
    "shared_memory_per_block": 74,
    "shared_memory_per_block_optin": 74,
    "shared_memory_per_multiprocessor": 10002,
    "regs_per_multiprocessor": 72,
    "l2_cache_size": 19,
    "warp_size": 87,
    "clock_rate": 5,
    "memory_clock_rate": 60,
    "memory_bus_width": 59,
    "major": 23,
    "minor": 61,
}
# In front of the name, where a term has it as a variable.
PREFIX = "device."
MAJOR, MINOR = f"{PREFIX}major", f"{PREFIX}minor"
# Whose the device is, 0 for NVIDIA and 1 for AMD, and `Arch.number` of what it was built for, which
# tells AMD's apart that have one capability. No driver has numbers for these.
OWN = ("vendor", "arch")
VENDOR, ARCH = (PREFIX + name for name in OWN)


def is_attribute(variable: str) -> bool:
    """Whether a variable is one that the device brings: `"device.warp_size"`."""
    name = variable.removeprefix(PREFIX)
    return variable.startswith(PREFIX) and (name in ATTRIBUTES or name in OWN)
