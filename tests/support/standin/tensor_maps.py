"""Tensor maps as the stand-in wrote them, and the descriptors that an interpreted kernel takes."""

import ctypes

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

MAGIC = 0x544D4150


class Map(ctypes.Structure):
    """`extents` and `box` count from the innermost dimension on, as CUDA does."""

    _fields_ = [
        ("magic", ctypes.c_uint32),
        ("element", ctypes.c_uint8),
        ("rank", ctypes.c_uint8),
        ("swizzle", ctypes.c_uint8),
        ("fill", ctypes.c_uint8),
        ("address", ctypes.c_uint64),
        ("extents", ctypes.c_uint64 * 5),
        ("between", ctypes.c_uint64 * 4),
        ("box", ctypes.c_uint32 * 5),
        ("interleave", ctypes.c_uint32),
        ("promotion", ctypes.c_uint32),
        ("rest", ctypes.c_uint32 * 3),
    ]

    def described(self, dtype: torch.dtype, block: list[int]) -> TensorDescriptor:
        assert self.magic == MAGIC, "the kernel was not passed a tensor map"
        rank = self.rank
        shape = [*self.extents[:rank]][::-1]
        strides = [*(b // dtype.itemsize for b in [*self.between[: rank - 1]][::-1]), 1]
        return descriptor(self.address, dtype, shape, strides, block, is_nan=bool(self.fill))


def descriptor(
    address: int, dtype: torch.dtype, shape: list[int], strides: list[int], block: list[int], *,
    is_nan: bool,
) -> TensorDescriptor:  # fmt: skip
    """Over memory at an address; the interpreter goes from there by its strides."""
    element = (ctypes.c_char * 16).from_address(address)
    base = torch.frombuffer(element, dtype=torch.uint8, count=dtype.itemsize).view(dtype)
    return TensorDescriptor(base, shape, strides, block, "nan" if is_nan else "zero")
