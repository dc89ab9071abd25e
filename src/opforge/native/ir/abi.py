"""The numbers that a library, its callers and this opforge must agree on, each of them once.

The first call of a loaded library imports this module, so it imports nothing.
"""

from __future__ import annotations

# Of the C header's types and functions. A program links only with libraries of its own ABI.
ABI = 1
# Of the functions that a torch adapter exports to `opforge.load`.
ADAPTER_ABI = 3
# Of the manifest: 2 added the schema's arguments, 3 has other hashes of the source.
MANIFEST_FORMAT = 3

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
