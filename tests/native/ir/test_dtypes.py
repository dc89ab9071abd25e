"""Element types against torch, DLPack as torch speaks it, and Triton."""

import ctypes

import pytest
import torch
from triton._utils import canonicalize_dtype

from opforge.native.ir.dtypes import ALIASES, DTYPES, named

every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda d: d.name)


class DLTensor(ctypes.Structure):
    """The beginning of DLPack's, as far as the type."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


def torch_of(dtype):
    return getattr(torch, dtype.torch)


def dlpack_type(tensor):
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = tensor.__dlpack__()
    head = DLTensor.from_address(pointer(capsule, b"dltensor"))
    return head.code, head.bits, head.lanes


@every_dtype
def test_a_type_is_as_wide_as_in_torch(dtype):
    assert torch_of(dtype).itemsize == dtype.bytes == dtype.bits // 8


@every_dtype
def test_a_type_has_the_code_that_torch_gives_to_dlpack(dtype):
    assert dlpack_type(torch.empty(2, dtype=torch_of(dtype))) == (dtype.code, dtype.bits, 1)


@every_dtype
def test_triton_has_the_type_under_its_name(dtype):
    tritons = canonicalize_dtype(torch_of(dtype))
    assert named(tritons) is dtype
    assert tritons == canonicalize_dtype(dtype.name)


@every_dtype
def test_a_type_is_found_by_each_of_its_names(dtype):
    aliases = [alias for alias, name in ALIASES.items() if name == dtype.name]
    assert dtype.torch in aliases
    assert all(named(name) is dtype for name in [dtype.name, *aliases])


C_TYPES = {
    "float": ctypes.c_float, "double": ctypes.c_double,
    "int8_t": ctypes.c_int8, "int16_t": ctypes.c_int16,
    "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8, "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.c], ids=lambda d: d.name)
def test_c_passes_a_scalar_without_losing_any_of_it(dtype):
    """The same width and kind; half precision is passed as float and rounded once."""
    passed = C_TYPES[dtype.c]
    halves = dtype.name in {"fp16", "bf16"}
    assert ctypes.sizeof(passed) == (4 if halves else dtype.bytes)
    assert torch_of(dtype).is_floating_point is (passed in {ctypes.c_float, ctypes.c_double})
    if not torch_of(dtype).is_floating_point and dtype.name != "i1":
        limits = torch.iinfo(torch_of(dtype))
        assert (passed(limits.min).value, passed(limits.max).value) == (limits.min, limits.max)


def test_no_two_types_share_a_dlpack_type_or_a_torch_type():
    assert len({(d.code, d.bits) for d in DTYPES.values()}) == len(DTYPES)
    assert len({d.torch for d in DTYPES.values()}) == len(DTYPES)
