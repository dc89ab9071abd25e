"""The C and C++ that are the same in every library: they agree with Python's tables."""

import re

import pytest

from opforge.native.codegen.text import identifier, runtime
from opforge.native.ir import abi
from opforge.native.ir.dtypes import DTYPES
from opforge.native.library import ctypes_ops

C_HEADER = runtime("include/opforge")["abi.h"]
CPP_HEADER = runtime("include/opforge")["tensor.hpp"]
ADAPTER = runtime("torch")


def test_the_headers_have_the_numbers_of_the_abi():
    assert f"#define OPFORGE_ABI_VERSION {abi.ABI}\n" in C_HEADER
    assert f"#define OPFORGE_MAX_RANK {abi.MAX_RANK}\n" in C_HEADER
    assert f"inline namespace abi_{abi.ABI} {{" in CPP_HEADER
    assert f"#ifndef OPFORGE_TENSOR_ABI_{abi.ABI}\n" in CPP_HEADER
    assert f"const int OF_FUNCTION(abi_{abi.ABI}) =" in runtime()["library.c"]
    assert f"constexpr int kAdapterAbi = {abi.ADAPTER_ABI};" in ADAPTER["adapter.hpp"]


def test_the_statuses_of_the_header_are_pythons():
    enum = C_HEADER.partition("typedef enum {")[2].partition("} OpforgeStatus;")[0]
    found = re.findall(r"(?:/\* (.*?) \*/\s+)?OPFORGE_(\w+) = (\d)", enum)
    expected = [(text, name, str(i)) for i, (name, text) in enumerate(abi.STATUSES.items())]
    assert found == expected


@pytest.mark.parametrize(
    ("text", "row"),
    [
        (CPP_HEADER, lambda d: f"DType {identifier(d.torch)}{{{d.code}, {d.bits}, 1}};"),
        (
            ADAPTER["torch_api.hpp"],
            lambda d: f"{{aoti_torch_dtype_{d.torch}(), {d.code}, {d.bits}}}",
        ),
        (
            runtime()["tensor.c"],
            lambda d: f'TYPE({d.code}, {d.bits}, "{"bool" if d.name == "i1" else d.name}")',
        ),
    ],
    ids=["tensor.hpp", "torch_api.hpp", "tensor.c"],
)
def test_every_element_type_is_in_the_tables(text, row):
    assert [d.name for d in DTYPES.values() if row(d) not in text] == []


def test_the_drivers_are_opened_by_the_same_names_everywhere():
    def names(source, array):
        listed = re.search(rf"{array}\[\] = {{(.*?)}};", source, re.DOTALL)[1]
        return re.findall(r'"(.*?)"', listed)

    found = names(runtime()["driver_cuda.c"], "cuda_libraries")
    found += names(runtime()["driver_hip.c"], "hip_libraries")
    assert names(ADAPTER["torch_api.hpp"], "drivers") == found
    assert [name for _, name in ctypes_ops.DRIVERS] == found
