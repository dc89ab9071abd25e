"""The generated files: the same each time, clean C and C++, and their names kept apart."""

import ctypes
import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from opforge.errors import BadOption
from opforge.native.artifacts.toolchain import as_unit, compile_library
from opforge.native.codegen import sources
from opforge.native.codegen.text import runtime
from support.native import hand_made
from support.standin.library import write

GOLDEN = Path(__file__).parent / "golden"
C99 = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic")
CXX17 = ("-std=c++17", "-x", "c++", "-Wall", "-Wextra", "-Werror")
RUNTIME = [name for name in runtime() if name.endswith(".c")]
COMPILERS = [("gcc", C99), ("g++", CXX17), ("clang", C99), ("clang++", CXX17)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write(hand_made.every_op(), tmp_path_factory.mktemp("sources"))
    compile_library(folder, "demo", static=True, flags=("-O0",))
    return folder


def test_libraries_in_one_folder_share_nothing_but_equal_headers():
    ours = sources(hand_made.every_op(), torch=True)
    other = dataclasses.replace(hand_made.library(hand_made.overlapping()), name="other")
    theirs = sources(other, torch=True)
    shared = ours.keys() & theirs.keys()
    assert all(path.startswith("include/opforge/") for path in shared)
    assert [ours[path] for path in shared] == [theirs[path] for path in shared]


def test_a_library_that_grows_keeps_its_runtime():
    small, large = (sources(one) for one in (hand_made.library(), hand_made.every_op()))
    generated = {"images.c", "kernels.h", "manifest.c"}
    runtime = {path for path in small if path.startswith("src/demo/") and "/op_" not in path}
    assert {p for p in runtime if small[p] != large[p]} == {f"src/demo/{f}" for f in generated}


def test_the_runtime_has_room_for_every_launch_of_a_path():
    op, kernels = hand_made.add()
    case = op.cases[0]
    path = case.paths[-1]
    long = dataclasses.replace(path, steps=path.steps * 33)
    op = dataclasses.replace(op, cases=(dataclasses.replace(case, paths=(long,)),))
    written = sources(hand_made.library((op, kernels)))["src/demo/library.h"].decode()
    assert "#define OF_MAX_LAUNCHES 64\n" in written
    # Two for each launch.
    assert "#define OF_MAX_ALLOCATIONS 128\n" in written
    assert "#define OF_MAX_OUTPUTS 32\n" in written


def test_a_number_of_a_type_that_c_cannot_pass_is_refused():
    op, kernels = hand_made.add()
    case = op.cases[0]
    (launch,) = case.paths[-1].steps
    variants = [dataclasses.replace(v, types=(*v.types[:3], "fp8e5")) for v in launch.variants]
    launch = dataclasses.replace(launch, variants=tuple(variants))
    path = dataclasses.replace(case.paths[-1], steps=(launch,))
    op = dataclasses.replace(op, cases=(dataclasses.replace(case, paths=(path,)),))
    with pytest.raises(BadOption, match="argument 'n' is an integer, but passed as"):
        sources(hand_made.library((op, kernels)))


def test_no_file_of_the_runtime_has_the_guard_of_a_public_header():
    # That of a library called opforge_runtime would be skipped, and its functions hidden.
    files = sources(hand_made.every_op(), torch=True, tvm_ffi=True, jax=True)
    own = b"\n".join(text for path, text in files.items() if path.startswith("src/"))
    assert b"#ifndef OPFORGE_RUNTIME_INCLUDED\n" in own
    assert re.findall(rb"#ifndef \w+_H\n", own) == []


FRAMEWORKS = {
    "torch": {f"src/demo/torch/{file}" for file in ("demo_torch.cpp", *runtime("torch"))},
    "tvm_ffi": {"src/demo/tvm_ffi.c", "src/demo/tvm_ffi.h"},
    "jax": {
        "python/demo/__init__.py", "python/demo/jax.py", "src/demo/jax_ffi.c", "src/demo/jax_ffi.h",
    },
}  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_files_of_a_framework_are_written_only_where_it_is_asked_for(framework):
    library = hand_made.library()
    plain, more = sources(library), sources(library, **{framework: True})
    assert plain.items() < more.items()
    assert more.keys() - plain.keys() == FRAMEWORKS[framework]


@pytest.mark.parametrize("compiler", COMPILERS, ids=lambda c: c[0])
def test_the_sources_compile_without_a_warning(folder, tmp_path, compiler):
    command, flags = compiler
    if shutil.which(command) is None:
        pytest.skip(f"no {command} here")
    files = sorted((folder / "src" / "demo").glob("*.c"))
    own = [file for file in files if file.name in RUNTIME]
    # Most of what C++ reads is headers. That each file includes what it needs is shown in C.
    units = [own] if flags is CXX17 else [[file] for file in own]
    for unit in (*units, *([file] for file in files if file not in own)):
        written = [*flags, "-fPIC", "-c", *as_unit(unit), "-o", "one.o"]
        subprocess.run([command, *written], cwd=tmp_path, check=True)


def test_the_library_needs_nothing_but_the_c_library(folder):
    shown = subprocess.run(
        ["readelf", "-d", folder / "lib" / "libdemo.so"], capture_output=True, text=True, check=True
    ).stdout
    needed = [line.split("[")[1].rstrip("]") for line in shown.splitlines() if "NEEDED" in line]
    # The dynamic loader itself is listed by x86-64 libraries with thread-local storage.
    others = {name.split(".so")[0] for name in needed if not name.startswith("ld-linux")}
    assert others <= {"libc", "libdl", "libpthread", "libm"}


def symbols(library: Path, *options: str) -> set[str]:
    shown = subprocess.run(
        ["nm", "--defined-only", *options, library], capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split() for line in shown.splitlines()]
    return {fields[2] for fields in lines if len(fields) == 3 and fields[1].isupper()}


def test_only_the_api_is_exported(folder):
    exported = symbols(folder / "lib" / "libdemo.so", "-D")
    ops = ("add", "matmul", "everything", "special", "pick")
    endings = ("", "_with", "_workspace", "_workspace_with", "_implementations")
    functions = {f"demo_{op}{end}" for op in ops for end in endings}
    written = [op for op in ops if op != "special"]
    functions |= {f"demo_{op}_outputs{end}" for op in written for end in ("", "_with")}
    own = ["load", "unload", "set_allocator", "last_error", "manifest", "abi_1", "abi_version"]
    own += ["torch_deferred", "torch_allocator", "manifest_hash"]
    assert exported == functions | {f"demo_{name}" for name in own}


def test_every_global_name_has_the_library_in_front(folder):
    archive = symbols(folder / "lib" / "libdemo.a")
    assert {name for name in archive if not name.startswith("demo_")} == set()


def test_nothing_in_the_library_ends_or_prints(folder):
    shown = subprocess.run(
        ["nm", "-u", folder / "lib" / "libdemo.a"], capture_output=True, text=True, check=True
    ).stdout
    used = {line.split()[-1] for line in shown.splitlines() if line.strip().startswith("U ")}
    assert "vsnprintf" in used
    ending = {"exit", "_exit", "abort", "__assert_fail", "printf", "fprintf", "puts", "fwrite"}
    assert used & ending == set()


def forged_headers(folder: Path, forged: Path, name: str) -> Path:
    """The headers of a library called `name`, as ABI 2 would have them."""
    (forged / "opforge").mkdir(parents=True)
    for file in ("demo.h", "opforge/abi.h"):
        text = (folder / "include" / file).read_text()
        text = text.replace("VERSION 1", "VERSION 2").replace("VERSION != 1", "VERSION != 2")
        text = text.replace("abi_1", "abi_2").replace("demo", name).replace("DEMO", name.upper())
        (forged / file.replace("demo", name)).write_text(text)
    return forged


def test_a_header_of_another_abi_does_not_link(folder, tmp_path):
    forged = forged_headers(folder, tmp_path / "forged", "demo")
    program = tmp_path / "main.c"
    program.write_text('#include "demo.h"\nint main(void) { return 0; }\n')
    libraries = [str(folder / "lib" / "libdemo.a"), "-ldl", "-lpthread", "-lm"]

    def link(include, *flags):
        command = ["cc", *C99, *flags, f"-I{include}", str(program), *libraries]
        binary = ["-o", str(tmp_path / "main")]
        return subprocess.run([*command, *binary], capture_output=True, text=True, check=False)

    assert link(folder / "include").returncode == 0
    failed = link(forged)
    assert failed.returncode != 0
    assert "demo_abi_2" in failed.stderr
    assert link(forged, "-DOPFORGE_NO_LINK_CHECK").returncode == 0


def test_headers_of_different_abis_do_not_compile_together(folder, tmp_path):
    forged = forged_headers(folder, tmp_path / "forged", "other")
    program = tmp_path / "main.c"
    program.write_text('#include "demo.h"\n#include "other.h"\nint main(void) { return 0; }\n')
    failed = subprocess.run(
        ["cc", "-c", f"-I{folder / 'include'}", f"-I{forged}", str(program), "-o", "/dev/null"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "have different ABIs" in failed.stderr


def dlpack(tmp_path, change=lambda text: text):
    """torch's copy of the real header, under its usual name."""
    real = Path(torch.__file__).parent / "include" / "ATen" / "dlpack.h"
    if not real.exists():
        pytest.skip("this torch has no dlpack.h")
    (tmp_path / "dlpack").mkdir()
    (tmp_path / "dlpack" / "dlpack.h").write_text(change(real.read_text()))


@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("included", [True, False])
def test_the_tensor_is_dlpacks(folder, tmp_path, language, included):
    dlpack(tmp_path)
    program = tmp_path / "main.c"
    first = "#include <dlpack/dlpack.h>\n" if included else ""
    program.write_text(
        f'{first}#include "demo.h"\n#ifndef OPFORGE_CHECKED_DLPACK\n#error "not checked"\n#endif\n'
        "const OpforgeTensor *view(const DLTensor *t) { return (const OpforgeTensor *)t; }\n"
    )
    standard = "-std=c99" if language == "c" else "-std=c++17"
    flags = ["-x", language, standard, "-Wall", "-Wextra", "-Werror", "-c", "-o", "/dev/null"]
    includes = [f"-I{folder / 'include'}", f"-I{tmp_path}"]
    subprocess.run(["cc", *flags, *includes, str(program)], check=True)


def test_a_tensor_that_is_not_dlpacks_does_not_compile(folder, tmp_path):
    dlpack(tmp_path, lambda text: text.replace("int32_t ndim;", "int64_t ndim;"))
    program = tmp_path / "main.c"
    program.write_text('#include "demo.h"\n')
    failed = subprocess.run(
        ["cc", "-std=c99", "-c", f"-I{folder / 'include'}", f"-I{tmp_path}", str(program)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert "opforge_dlpack_size" in failed.stderr


def test_the_manifest_is_in_the_library_too(library):
    written = sources(hand_made.for_both(hand_made.every_op()))["share/demo/manifest.json"]
    assert library.function("manifest")() == written
    manifest = json.loads(written)
    kernel = manifest["kernels"][0]
    assert kernel["types"] == ["*fp16", "*fp16", "*fp16", "i32"]
    assert kernel["constants"] == {"BLOCK": "128"}
    assert [image["arch"] for image in kernel["images"]] == ["sm_80", "sm_90a", "gfx942"]
    assert manifest["archs"] == ["sm_80", "sm_90a", "gfx942"]
    assert manifest["ops"][0]["source_hash"] == "0123"
    assert library.c.demo_abi_version() == manifest["abi"] == 1
    assert ctypes.c_int.in_dll(library.c, "demo_abi_1").value == 1


@pytest.mark.parametrize("op", ["add", "matmul", "everything"])
def test_the_c_of_an_op_is_as_accepted(op, request):
    golden(request, f"op_{op}.c", sources(hand_made.every_op())[f"src/demo/op_{op}.c"])


def test_the_header_is_as_accepted(request):
    golden(request, "demo.h", sources(hand_made.every_op())["include/demo.h"])


def golden(request, name: str, content: bytes) -> None:
    """Compare with the accepted file; `pytest --accept` rewrites it."""
    file = GOLDEN / name
    if request.config.getoption("--accept"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    assert content.decode() == file.read_text()
