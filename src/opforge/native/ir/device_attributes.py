"""What a library can ask a device at run time: one list, for tracing and for the C runtime."""

from __future__ import annotations

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
# In front of the name, where a term has it as a variable.
PREFIX = "device."
MAJOR, MINOR = f"{PREFIX}major", f"{PREFIX}minor"


def is_attribute(variable: str) -> bool:
    """Whether a variable is one that the device brings: `"device.warp_size"`."""
    return variable.startswith(PREFIX) and variable.removeprefix(PREFIX) in ATTRIBUTES
