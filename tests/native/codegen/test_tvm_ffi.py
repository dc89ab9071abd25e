"""The functions that tvm-ffi finds in a library, called by tvm-ffi on the stand-in driver."""

import ctypes
import dataclasses
import functools
import subprocess
import sys

import numpy as np
import pytest
import torch

from opforge.native.artifacts.toolchain import compile_library
from opforge.native.codegen import sources
from opforge.native.codegen.bindings import unexported
from opforge.native.ir.interface import ChoiceParam, SchemaArgument, TensorParam
from support.native import hand_made, hand_made_calls, hand_made_frameworks
from support.standin.driver import AMD
from support.standin.library import NativeLibrary, write

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")


@pytest.fixture(scope="module")
def write_once(tmp_path_factory):
    @functools.cache
    def write_for(vendor):
        program = hand_made_frameworks.program()
        program = hand_made.for_amd(program) if vendor is AMD else program
        made = write(program, tmp_path_factory.mktemp("tvm_ffi"), tvm_ffi=True)
        compile_library(made, "demo", flags=("-O0",))
        return made

    return write_for


@pytest.fixture
def folder(write_once, vendor):
    return write_once(vendor)


@pytest.fixture
def module(folder, standin):
    made = tvm_ffi.load_module(folder / "lib" / "libdemo.so")
    made.opforge_host_memory(True)
    yield made
    made.opforge_host_memory(False)
    NativeLibrary(folder, "demo").unload()
    assert not standin.errors


@pytest.mark.parametrize(
    "of", [np.array, torch.from_numpy, tvm_ffi.from_dlpack], ids=["numpy", "torch", "tvm_ffi"]
)
def test_tensors_of_several_libraries_are_taken(module, standin, of):
    standin.execute = hand_made_frameworks.execute
    x, out = np.arange(6, dtype="f").reshape(2, 3), np.zeros((2, 3), dtype="f")
    given = out if of is np.array else of(out)
    assert module.add(of(x), of(x), given) is None
    assert out.tolist() == [[0, 2, 4], [6, 8, 10]]


def test_every_scalar_an_absent_tensor_and_a_choice_arrive(module, standin):
    seen = []
    kinds = ["float", "double", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))]

    def execute(launched):
        if launched.function == "first_kernel":
            types = [getattr(ctypes, f"c_{kind}") for kind in kinds]
            seen.extend(launched.read(6 + i, type_) for i, type_ in enumerate(types))

    standin.execute = execute
    # tvm-ffi's integers have a sign.
    *given, _ = hand_made_calls.everything(bias=False, mode=1, s_u64=2**63 - 1)
    module.everything(*given, None, torch.empty(3, 8), None)
    expected = [hand_made_calls.VALUES[t] for t in hand_made.SCALARS[2:12]]
    assert seen[0] == pytest.approx(expected[0])
    assert seen[1:] == [*expected[1:-1], 2**63 - 1]
    assert [launch.function for launch in standin.launches] == ["first_kernel"]


@pytest.mark.parametrize("dtype", [torch.float16, np.dtype("float16"), None])
@pytest.mark.parametrize("level", hand_made_frameworks.LEVEL_VALUES)
def test_choices_are_passed_by_value(module, standin, dtype, level):
    x, out = torch.zeros(77, dtype=torch.int8), torch.zeros(77, dtype=torch.int8)
    module.choose(x, dtype, level, out)
    assert len(standin.launches) == 1


def test_work_goes_to_the_current_stream_of_tvm_ffi(module, standin, vendor):
    x, stream = torch.zeros(77, dtype=torch.int8), standin.stream()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("rocm" if vendor is AMD else "cuda", 0), stream):
        module.pick(x, torch.empty_like(x))
    module.pick(x, torch.empty_like(x))
    assert [launch.stream for launch in standin.launches] == [stream, 0]


X = torch.zeros(4)
EVERYTHING = hand_made_calls.everything(s_u64=1)[:-1]


def changed(at, value):
    given = [*EVERYTHING, "relu", torch.empty(3, 8), torch.empty(3, dtype=torch.float64)]
    given[at] = value
    return given


NOT_BUILT = "is not a value that the library was built for\n  fix: pass"
REFUSED = [
    ("add", (X, X), "TypeError: demo_add: takes 3 arguments, got 2\n  fix: call add(x, y, out)"),
    ("add", (X, 3, X), "TypeError: demo_add: y: expected a tensor, got int\n  fix: "),
    ("add", (X, None, X), "ValueError: demo_add: y: is NULL"),
    ("add", (X, X.int(), X), "ValueError: demo_add: y: type i32, expected fp16 or fp32"),
    ("everything", changed(5, "a"), "TypeError: demo_everything: s_fp32: expected a number"),
    ("everything", changed(9, 2.0), "TypeError: demo_everything: s_i32: expected an integer"),
    ("everything", changed(9, 2**31), "ValueError: demo_everything: s_i32: is 2147483648, which"),
    ("everything", changed(15, 2), "ValueError: demo_everything: s_i1: is 2, which bool does not"),
    ("everything", changed(16, "gelu"), f"ValueError: demo_everything: mode: {NOT_BUILT} 'relu'"),
    ("choose", (X, torch.float32, 1, X), f"ValueError: demo_choose: dtype: {NOT_BUILT} torch."),
]


@pytest.mark.parametrize(("name", "given", "said"), REFUSED)
def test_bad_input_is_an_exception_with_the_fix(module, standin, name, given, said):
    with pytest.raises((TypeError, ValueError)) as error:
        module[name](*given)
    assert f"{error.typename}: {error.value}".startswith(said)
    assert standin.launches == []


def test_memory_of_the_host_is_refused_unless_it_is_asked_for(module, vendor):
    module.opforge_host_memory(False)
    gpu = "ROCm" if vendor is AMD else "CUDA"
    with pytest.raises(
        ValueError, match=f"^demo_add: x: is on the CPU; the library runs on {gpu}$"
    ):
        module.add(X, X, X)


def test_a_failure_of_the_driver_is_an_exception_with_its_text(module, standin):
    launch = standin.vendor.call("cuLaunchKernel")
    standin.fail(1, 2, launch)
    x = torch.zeros(77, dtype=torch.int8)
    with pytest.raises(MemoryError, match=f"^demo_pick: {launch}"):
        module.pick(x, torch.empty_like(x))
    standin.fail(1, 700, launch)
    with pytest.raises(RuntimeError, match=f"^demo_pick: {launch}"):
        module.pick(x, torch.empty_like(x))


WITHOUT_PYTHON = """
import ctypes, sys
ours = ctypes.CDLL(sys.argv[1])
for path in sys.argv[2:]:
    theirs = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
assert getattr(ours, "__tvm_ffi_add")(None, None, 0, None) == -1
if sys.argv[2:]:
    error = ctypes.c_void_p()
    theirs.TVMFFIErrorMoveFromRaised(ctypes.byref(error))
    assert error.value
"""


def test_a_library_that_was_loaded_first_finds_a_tvm_ffi_that_is_not_offered_to_all(folder):
    ours = folder / "lib" / "libdemo.so"
    command = [sys.executable, "-IS", "-c", WITHOUT_PYTHON, ours, tvm_ffi.libinfo.find_libtvm_ffi()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_library_loads_where_there_is_no_tvm_ffi(folder):
    command = [sys.executable, "-IS", "-c", WITHOUT_PYTHON, folder / "lib" / "libdemo.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("TypeError: demo_add: takes 3 arguments, got 0")
    assert done.stderr.endswith("(there is no tvm-ffi to raise it)\n")


SAME_ABI = """
#include <tvm/ffi/c_api.h>
#include "tvm_ffi.h"
#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #ours)
SAME(TVM_NONE, kTVMFFINone);
SAME(TVM_INT, kTVMFFIInt);
SAME(TVM_BOOL, kTVMFFIBool);
SAME(TVM_FLOAT, kTVMFFIFloat);
SAME(TVM_DTYPE, kTVMFFIDataType);
SAME(TVM_DLTENSOR, kTVMFFIDLTensorPtr);
SAME(TVM_RAW_TEXT, kTVMFFIRawStr);
SAME(TVM_SMALL_TEXT, kTVMFFISmallStr);
SAME(TVM_TEXT, kTVMFFIStr);
SAME(TVM_TENSOR, kTVMFFITensor);
SAME(sizeof(TvmAny), sizeof(TVMFFIAny));
SAME(offsetof(TvmAny, small_length), offsetof(TVMFFIAny, small_str_len));
SAME(offsetof(TvmAny, value), offsetof(TVMFFIAny, v_int64));
SAME(sizeof(TvmObject), sizeof(TVMFFIObject));
SAME(sizeof(TvmText), sizeof(TVMFFIByteArray));
SAME(offsetof(TvmText, length), offsetof(TVMFFIByteArray, size));
static int (*create)(const TVMFFIByteArray *, const TVMFFIByteArray *, const TVMFFIByteArray *,
                     void **) = TVMFFIErrorCreate;
static const TvmErrors errors = {0, TVMFFIErrorSetRaised, TVMFFIObjectDecRef};
"""


def test_the_abi_is_that_of_tvm_ffis_header(folder):
    info = tvm_ffi.libinfo
    include = [f"-I{path}" for path in (info.find_include_path(), info.find_dlpack_include_path())]
    command = ["cc", "-std=c11", "-fsyntax-only", *include, "-Isrc/demo", "-xc", "-"]
    done = subprocess.run(
        command, cwd=folder, input=SAME_ABI, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_they_compile_without_a_warning(folder):
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = ["cc", "-std=c99", *warnings, "-fsyntax-only", "src/demo/tvm_ffi.c"]
    subprocess.run(command, cwd=folder, check=True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"params": (TensorParam("x"), ChoiceParam("size", ("A",), ("[1, 2]",)))},
            "tvm-ffi does not pass size=[1, 2]",
        ),
        (
            {
                "params": (ChoiceParam("format", ("A",), ("torch.channels_last",)),),
                "arguments": (
                    SchemaArgument("format", "MemoryFormat", (("memory_format", "channels_last"),)),
                ),
            },
            "tvm-ffi does not pass format=torch.channels_last",
        ),
    ],
)
def test_what_tvm_ffi_cannot_have_is_left_out_with_the_reason(change, why):
    op, _ = hand_made.add()
    assert unexported(dataclasses.replace(op, **change)) == why


def text_of(op, kernels):
    library = hand_made.library((op, kernels))
    return sources(library, tvm_ffi=True)["src/demo/tvm_ffi.c"].decode()


def test_a_choice_has_the_type_of_the_schema():
    op, kernels = hand_made.add()
    scale = ChoiceParam("scale", ("TWO",), ("2.0",))
    arguments = (*op.arguments, SchemaArgument("scale", "float", (2,)))
    cases = tuple(dataclasses.replace(case, choices=(("scale", 0),)) for case in op.cases)
    op = dataclasses.replace(op, params=(*op.params, scale), arguments=arguments, cases=cases)
    assert "{TVM_FLOAT, 0, 2.0, NULL, {0, 0, 0}}" in text_of(op, kernels)
