"""The handlers for JAX and the module that registers them; where JAX is installed, with JAX."""

import ast
import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opforge.native.artifacts.toolchain import compile_library
from opforge.native.codegen.text import runtime
from opforge.native.ir.abi import MAX_RANK, STATUS_NAMES
from opforge.native.ir.dtypes import DTYPES
from support.native import hand_made, hand_made_frameworks, xla_frames
from support.processes import ROOT, environment
from support.standin.driver import AMD, NVIDIA, load_standin
from support.standin.library import write

CALLS = Path(__file__).parents[1] / "jax_calls"
HAS_JAX = importlib.util.find_spec("jax") is not None
MODULE = runtime("jax")["jax_module.py"]
needs_jax = pytest.mark.skipif(not HAS_JAX, reason="JAX is not installed; make test-jax has it")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(hand_made_frameworks.program(), tmp_path_factory.mktemp("jax"), jax=True)


@needs_jax
@pytest.mark.parametrize("vendor", [NVIDIA, AMD], indirect=True, ids=["nvidia", "amd"])
def test_every_call_with_jax(tmp_path, vendor):
    program = hand_made_frameworks.program()
    program = hand_made.for_amd(program) if vendor is AMD else program
    all_pass("calls_jax.py", write(program, tmp_path, jax=True), vendor.name)


@needs_jax
def test_traces_for_gpus_of_two_vendors_with_jax(tmp_path):
    all_pass(
        "calls_two_vendors.py", write(hand_made_frameworks.for_two_vendors(), tmp_path, jax=True)
    )


def all_pass(calls, folder, vendor=""):
    """Run a file of tests in a process of its own, with a library that was written to a folder."""
    compile_library(folder, "demo", flags=("-O0",))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CALLS / calls)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False,
        env=environment(
            OPFORGE_TEST_BUILT=str(folder), OPFORGE_TEST_VENDOR=vendor, JAX_PLATFORMS="cpu"
        ),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


SAME_ABI = """
#include <xla/ffi/api/c_api.h>
#include "jax_ffi.h"
#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #ours)
#define FIELD(ours, field, theirs, other) SAME(offsetof(ours, field), offsetof(theirs, other))
SAME(XLA_MAJOR, XLA_FFI_API_MAJOR);
_Static_assert(XLA_MINOR <= XLA_FFI_API_MINOR, "minor");
SAME(XLA_METADATA, XLA_FFI_Extension_Metadata);
SAME(XLA_SCALAR, XLA_FFI_AttrType_SCALAR);
SAME(XLA_INVALID_ARGUMENT, XLA_FFI_Error_Code_INVALID_ARGUMENT);
SAME(XLA_RESOURCE_EXHAUSTED, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
SAME(XLA_UNIMPLEMENTED, XLA_FFI_Error_Code_UNIMPLEMENTED);
SAME(XLA_INTERNAL, XLA_FFI_Error_Code_INTERNAL);
SAME(XLA_UNAVAILABLE, XLA_FFI_Error_Code_UNAVAILABLE);
FIELD(XlaExtension, type, XLA_FFI_Extension_Base, type);
FIELD(XlaMetadata, version.minor, XLA_FFI_Metadata, api_version.minor_version);
FIELD(XlaMetadata, traits, XLA_FFI_Metadata, traits);
FIELD(XlaMetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
FIELD(XlaErrorCreate, message, XLA_FFI_Error_Create_Args, message);
FIELD(XlaErrorCreate, code, XLA_FFI_Error_Create_Args, errc);
FIELD(XlaErrorDestroy, error, XLA_FFI_Error_Destroy_Args, error);
FIELD(XlaStreamGet, context, XLA_FFI_Stream_Get_Args, ctx);
FIELD(XlaStreamGet, stream, XLA_FFI_Stream_Get_Args, stream);
FIELD(XlaApi, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
FIELD(XlaApi, error_destroy, XLA_FFI_Api, XLA_FFI_Error_Destroy);
FIELD(XlaApi, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
FIELD(XlaBuffer, dtype, XLA_FFI_Buffer, dtype);
FIELD(XlaBuffer, data, XLA_FFI_Buffer, data);
FIELD(XlaBuffer, rank, XLA_FFI_Buffer, rank);
FIELD(XlaBuffer, dims, XLA_FFI_Buffer, dims);
FIELD(XlaBuffers, count, XLA_FFI_Args, size);
FIELD(XlaBuffers, buffers, XLA_FFI_Args, args);
FIELD(XlaBuffers, count, XLA_FFI_Rets, size);
FIELD(XlaBuffers, buffers, XLA_FFI_Rets, rets);
FIELD(XlaText, length, XLA_FFI_ByteSpan, len);
FIELD(XlaScalar, value, XLA_FFI_Scalar, value);
FIELD(XlaAttributes, count, XLA_FFI_Attrs, size);
FIELD(XlaAttributes, types, XLA_FFI_Attrs, types);
FIELD(XlaAttributes, names, XLA_FFI_Attrs, names);
FIELD(XlaAttributes, values, XLA_FFI_Attrs, attrs);
FIELD(XlaFrame, api, XLA_FFI_CallFrame, api);
FIELD(XlaFrame, context, XLA_FFI_CallFrame, ctx);
FIELD(XlaFrame, inputs, XLA_FFI_CallFrame, args);
FIELD(XlaFrame, results, XLA_FFI_CallFrame, rets);
FIELD(XlaFrame, attributes, XLA_FFI_CallFrame, attrs);
"""
# XLA's names of the element types.
XLA_TYPES = {
    "fp16": "F16", "bf16": "BF16", "fp32": "F32", "fp64": "F64", "fp8e4nv": "F8E4M3FN",
    "fp8e4b8": "F8E4M3FNUZ", "fp8e5": "F8E5M2", "fp8e5b16": "F8E5M2FNUZ", "i8": "S8", "i16": "S16",
    "i32": "S32", "i64": "S64", "u8": "U8", "u16": "U16", "u32": "U32", "u64": "U64", "i1": "PRED",
}  # fmt: skip


@needs_jax
def test_the_abi_is_that_of_xlas_header(folder, tmp_path):
    include = Path(importlib.util.find_spec("jaxlib").origin).parent / "include"
    checks = [
        f"if (jax_dtype(XLA_FFI_DataType_{name}).code != {DTYPES[key].code} ||"
        f" jax_dtype(XLA_FFI_DataType_{name}).bits != {DTYPES[key].bits}) return {i + 1};"
        for i, (key, name) in enumerate(XLA_TYPES.items())
    ]
    assert XLA_TYPES.keys() == DTYPES.keys()
    source = SAME_ABI + "int main(void)\n{\n" + "\n".join(checks) + "\nreturn 0;\n}\n"
    compiler = ["cc", "-std=c11", f"-I{include}", "-Isrc/demo", "-xc", "-", "-o", tmp_path / "same"]
    subprocess.run(compiler, cwd=folder, input=source, text=True, check=True)
    assert subprocess.run([tmp_path / "same"], check=False).returncode == 0


def test_the_handlers_compile_without_a_warning(folder):
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = ["cc", "-std=c99", *warnings, "-fsyntax-only", "src/demo/jax_ffi.c"]
    subprocess.run(command, cwd=folder, check=True)


@pytest.fixture
def handlers(tmp_path):
    """Those of `add`, of a library for both vendors in a process with both drivers."""
    library = hand_made.for_both(hand_made.library(hand_made.add()))
    write(library, tmp_path, jax=True)
    compile_library(tmp_path, "demo", flags=("-O0",))
    c = ctypes.CDLL(str(tmp_path / "lib/libdemo.so"))
    yield xla_frames.Handlers.in_dll(c, "demo_jax_handlers")
    for device in (0, 1):
        c.demo_unload(device)


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_a_handler_calls_the_driver_of_its_platform(handlers, platform):
    drivers = {"cuda": load_standin(NVIDIA), "rocm": load_standin(AMD)}
    for driver in drivers.values():
        driver.reset(devices=2)
    mine = drivers.pop(platform)
    (other,) = drivers.values()
    x, out = torch.ones(2, 3), torch.empty(2, 3)
    stream = mine.stream(1)
    assert xla_frames.call(getattr(handlers, platform), [x, x], [out], stream) is None
    assert [(launched.device, launched.stream) for launched in mine.launches] == [(1, stream)]
    assert other.calls == []


def test_a_handler_of_a_platform_that_the_library_is_not_for_says_so(tmp_path):
    write(hand_made.library(hand_made.add()), tmp_path, jax=True)
    compile_library(tmp_path, "demo", flags=("-O0",))
    c = ctypes.CDLL(str(tmp_path / "lib/libdemo.so"))
    driver = load_standin(AMD)
    driver.reset()
    x, out = torch.ones(2, 3), torch.empty(2, 3)
    rocm = xla_frames.Handlers.in_dll(c, "demo_jax_handlers").rocm
    said = xla_frames.call(rocm, [x, x], [out], driver.stream())
    assert "gfx942" in said
    assert "sm_80" in said
    assert driver.launches == []


def test_the_module_has_the_numbers_of_the_library():
    """It is copied, and so cannot import them."""
    assigned = {}
    for node in ast.parse(MODULE).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            assigned[ast.unparse(target)] = ast.unparse(node.value)
    assert assigned["_MAX_RANK"] == str(MAX_RANK)
    statuses = [STATUS_NAMES.index(name) for name in ("INVALID_ARGUMENT", "OUT_OF_MEMORY")]
    assert ast.literal_eval(assigned["(_INVALID_ARGUMENT, _OUT_OF_MEMORY)"]) == tuple(statuses)
    rows = [
        f"'{d.name}': ('{d.torch}', {d.code}, {d.bits}, "
        + (f"ctypes.c_{d.c.removesuffix('_t')})" if d.c else "None)")
        for d in DTYPES.values()
    ]
    assert assigned["_DTYPES"] == f"{{{', '.join(rows)}}}"
