"""What a device can be asked for at run time: torch's names of it, and Triton's."""

from __future__ import annotations

# In the order of the enum in runtime/runtime.h.
ANSWERS = (
    "multi_processor_count",
    "max_threads_per_multi_processor",
    "max_threads_per_block",
    "shared_memory_per_block",
    "shared_memory_per_block_optin",
    "shared_memory_per_multiprocessor",
    "regs_per_block",
    "regs_per_multiprocessor",
    "l2_cache_size",
    "warp_size",
    "clock_rate",
    "memory_clock_rate",
    "memory_bus_width",
    "major",
    "minor",
    "total_memory",
)
# `triton.runtime.driver.active.utils.get_device_properties` has other names for some.
ALIASES = {
    "max_shared_memory": "shared_memory_per_block_optin",
    "max_shared_mem": "shared_memory_per_block_optin",
    "max_num_regs": "regs_per_block",
    "multiprocessor_count": "multi_processor_count",
    "warpSize": "warp_size",
    "sm_clock_rate": "clock_rate",
    "mem_clock_rate": "memory_clock_rate",
    "mem_bus_width": "memory_bus_width",
    "L2_cache_size": "l2_cache_size",
}
PREFIX = "device."


def answer(variable: str) -> str | None:
    """`"device.warpSize"` -> `"warp_size"`; None for a name that no device has an answer to."""
    name = variable.removeprefix(PREFIX)
    name = ALIASES.get(name, name)
    return name if variable.startswith(PREFIX) and name in ANSWERS else None
