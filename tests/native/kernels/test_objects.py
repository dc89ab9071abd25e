"""AMD kernels: what Triton compiles, what its objects say, and what the GPUs do not have."""

import contextlib
import random
import re
import struct

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import opforge
from opforge import native
from opforge._compat import compiling
from opforge.arch import Arch
from opforge.errors import BuildFailed
from opforge.native.kernels import objects
from opforge.native.kernels.compile import compile_all
from opforge.native.kernels.image_cache import Cache
from support.archs import SM_90
from support.native.kernel_requests import (
    KINDS,
    gemm,
    request,
    scale,
    scale_request,
)

GFX942 = Arch.named("gfx942")
PASSED = [("x_ptr", "*fp16"), ("y_ptr", "*fp16"), ("n", "i32"), ("factor", "fp32")]


@pytest.fixture(scope="module")
def compiled(pool):
    def compile_one(wanted, arch=GFX942, **more):
        given = {"cache": None, "executor": pool, **more}
        return compile_all([(wanted, (arch,))], jobs=1, **given)[wanted.key, arch]

    return compile_one


@pytest.fixture(scope="module")
def image(compiled):
    return compiled(scale_request())


def checked(content, passed=PASSED, arch=GFX942, function="scale", **more):
    given = {"threads": 256, "shared": 0, "flags": 2, **more}
    return objects.check(content, arch, function, passed, **given)


@pytest.mark.parametrize("name", ["gfx90a", "gfx950", "gfx1100", "gfx1201"])
def test_kernels_are_compiled_for_amd_gpus(name, tmp_path, compiled):
    arch = Arch.named(name)
    found = compiled(scale_request(), arch, cache=Cache(tmp_path), ptx=True)
    assert found.cubin.startswith(b"\x7fELF")
    assert (found.arch, found.function, found.num_warps, found.ptx) == (arch, "scale", 4, "")
    # From the cache, as it was.
    assert compiled(scale_request(), arch, cache=Cache(tmp_path), ptx=True) == found


@pytest.mark.parametrize("kind", ["elementwise", "dot"])
def test_a_worker_makes_the_bytes_that_triton_makes(kind, tmp_path, monkeypatch, compiled):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    wanted, lower = KINDS[kind], compiling.lower
    # Triton's own name source files by their full paths.
    monkeypatch.setattr(compiling, "lower", lambda variant, **_: lower(variant))
    attrs = {(i,): [["tt.divisibility", 16]] for i in wanted.divisible}
    source = ASTSource(wanted.fn, dict(wanted.signature), dict(wanted.constants), attrs)
    expected = triton.compile(source, GPUTarget("hip", "gfx942", 64), dict(wanted.options))
    found = compiled(wanted)
    assert found.cubin == expected.asm["hsaco"]
    assert (found.shared, found.num_warps) == (expected.metadata.shared, 4)
    # LLVM writes the same numbers into the text.
    printed = dict(re.findall(r"\.(vgpr_\w*count): +(\d+)", expected.asm["amdgcn"]))
    assert found.registers == int(printed["vgpr_count"]) > 0
    assert found.spills == int(printed["vgpr_spill_count"])


@pytest.mark.parametrize("kind", ["reduction", "dot", "noinline", "descriptor"])
def test_objects_fit_what_launches_pass(kind, compiled):
    found = compiled(KINDS[kind])
    assert found.registers > 0
    assert objects.usage(found.cubin, found.function, GFX942) == (found.registers, found.spills)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"passed": PASSED[:2]}, "takes 6 arguments, but a launch passes 2 and two"),
        ({"passed": [*PASSED, *PASSED]}, "takes 6 arguments, but a launch passes 8"),
        (
            {"passed": [*PASSED[:2], ("n", "i64"), PASSED[3]]},
            "takes n as 4 bytes at 16, but a launch passes 8 bytes at 16",
        ),
        ({"function": "other"}, "has no kernel other"),
        ({"threads": 128}, r"its largest block has .max_flat_workgroup_size 256, but .* says 128"),
        ({"arch": Arch.named("gfx1100")}, r"its wavefronts has .wavefront_size 64, but .* says 32"),
        ({"shared": 65537}, "needs 65537 bytes of shared memory, and gfx942 has 65536"),
    ],
)
def test_a_wrong_abi_is_refused_with_what_is_wrong(image, given, said):
    with pytest.raises(objects.BadObject, match=said):
        checked(image.cubin, **given)
    assert checked(image.cubin, shared=65536) == (image.registers, image.spills)


def reserving_16(content):
    """With 16 bytes for arguments; the number is of 1 or, where arguments are hidden, 2 bytes."""
    number = re.compile(rb"(\.kernarg_segment_size)(\xcd..|[\0-\x7f])", re.DOTALL)
    return number.sub(lambda m: m[1] + (b"\x10" if len(m[2]) == 1 else b"\xcd\0\x10"), content)


def test_a_damaged_object_is_refused(image):
    at = image.cubin.index(b"AMDGPU\0\0") + 8
    changed = [
        (b"", "cannot be read: it is not an ELF file"),
        (image.cubin[:60], "cannot be read: unpack_from"),
        (image.cubin.replace(b"AMDGPU\0", b"OTHERS\0"), "cannot be read"),
        (image.cubin[:at] + b"\xc1" + image.cubin[at + 1 :], "a value of kind 0xc1"),
        (image.cubin.replace(b".kernarg_segment_size", b".kernarg_segment_sIze"), "has no .kern"),
        (reserving_16(image.cubin), r"reserves 16 bytes for arguments that take \d\d"),
    ]
    for content, said in changed:
        with pytest.raises(objects.BadObject, match=said):
            checked(content)
        assert objects.usage(content, "nowhere", GFX942) == (0, 0)


def test_no_damage_is_more_than_an_error(image, compiled):
    chance = random.Random(0)
    for found in (image, compiled(scale_request(), SM_90)):
        (table,) = struct.unpack_from("<Q", found.cubin, 0x28)
        for _ in range(500):
            content = bytearray(found.cubin)
            # Half of it where sections are described.
            for start, end in ((0x28, 0x40), (table, len(content)), *[(0, len(content))] * 2):
                content[chance.randrange(start, end)] = chance.choice((0, 1, 0x80, 0x91, 0xFF))
            usage = objects.usage(bytes(content), "scale", found.arch)
            assert all(isinstance(number, int) for number in usage)
            if found is image:
                with contextlib.suppress(objects.BadObject):
                    checked(bytes(content))


def test_metadata_of_any_depth_and_tables_anywhere_are_refused():
    note = struct.pack("<III8s", 7, 5000, 32, b"AMDGPU") + b"\x91" * 5000
    section = struct.pack("<IIQQQQ24x", 0, 7, 0, 0, 128, len(note))
    for table, said in ((64, "recursion"), (2**63, "too large")):
        header = b"\x7fELF" + struct.pack("<36xQ10xHH2x", table, 64, 1)
        with pytest.raises(objects.BadObject, match=said):
            checked(header + section + note)


def test_all_kinds_of_msgpack_are_read():
    text = b"\xa1a"
    longer = {
        b"\xd9\x01a": "a", b"\xda\0\x01a": "a", b"\xdb\0\0\0\x01a": "a",
        b"\xcc\xff": 255, b"\xcd\x01\0": 256, b"\xce\0\0\0\x07": 7, b"\xcf" + bytes(7) + b"\x09": 9,
        b"\xdc\0\x01\xc3": [True], b"\xdd\0\0\0\x01\xc2": [False], b"\x92\x01\x02": [1, 2],
        b"\xde\0\x01" + text + b"\x01": {"a": 1}, b"\xdf\0\0\0\x01" + text + b"\x90": {"a": []},
    }  # fmt: skip
    for content, value in longer.items():
        assert objects.unpacked(content) == (value, len(content))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_ctas": 2}, "num_ctas=2 needs clusters, which gfx942 does not have"),
        ({"num_warps": 32}, "num_warps=32 is 2048 threads, 64 to a warp, and a block"),
        ({"maxnreg": 64}, "not a launch option for gfx942: maxnreg"),
    ],
)
def test_what_the_gpu_lacks_is_refused_with_the_kernels_line(options, said, compiled):
    wanted = scale_request(**options)
    with pytest.raises(BuildFailed) as caught:
        compiled(wanted)
    assert said in str(caught.value)
    assert f"{wanted.location}: scale(" in str(caught.value)
    assert "for gfx942" in str(caught.value)


@triton.jit
def in_ptx(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, at < n).to(tl.float32)
    y = tl.inline_asm_elementwise(
        "add.f32 $0, $1, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
    )
    tl.store(y_ptr + at, y * factor, at < n)


def test_assembly_of_nvidias_gpus_is_suspected(compiled):
    with pytest.raises(BuildFailed) as caught:
        # LLVM ends the worker, and with it the pool.
        compiled(request(in_ptx, [kind for _, kind in PASSED], {"BLOCK": 64}), executor=None)
    assert "it has inline assembly, which for gfx942 must be AMD's" in str(caught.value)


def smooth(x: Tensor, at: Tensor) -> Tensor:
    return torch.tanh(x).sigmoid() * x + x


def gathered(x: Tensor, at: Tensor) -> Tensor:
    return x.gather(0, at)


# `s_cbranch_vccz` over one instruction, and that instruction, `s_trap 2`, as the GPUs encode them.
STOPS = {
    "gfx90a": (0xBF860001, 0xBF920002),
    "gfx942": (0xBF860001, 0xBF920002),
    "gfx1100": (0xBFA30001, 0xBF900002),
    "gfx1201": (0xBFA30001, 0xBF900002),
}


def test_torch_calls_are_built_and_stop_at_a_bad_index(tmp_path, op_name, pool):
    ops = [opforge.op(body, name=op_name(), mode="custom_op") for body in (smooth, gathered)]
    given = {"x": native.tensor("n", dtype="fp32"), "at": native.tensor("m", dtype="i64")}
    for op in ops:
        # Of few variants.
        native.declare(op, **given, dims={"n": (17, 1000), "m": (17, 1000)})
    done = native.build(ops, tmp_path, archs=list(STOPS), cache=None, executor=pool)
    for kernel in done.library.kernels:
        assert {str(image.arch) for image in kernel.images} == set(STOPS)
        stops = [struct.pack("<II", *STOPS[str(i.arch)]) in i.cubin for i in kernel.images]
        assert set(stops) == {not kernel.name.startswith("torch_tanh")}, kernel.name


@triton.jit
def of_triton(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at).to(tl.float8e4b15, bitcast=True)
    tl.store(out_ptr + at, x.to(tl.float32))


@triton.jit
def copied(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(tl.float32))


LACKING = {
    "fp8e4b15": (request(of_triton, ["*u8", "*fp32"], {"BLOCK": 64}), GFX942),
    # Torch has this one, for AMD's GPUs alone.
    "fp8e4b8": (request(copied, ["*fp8e4b8", "*fp32"], {"BLOCK": 64}), SM_90),
}


@pytest.mark.parametrize("dtype", LACKING)
def test_a_dtype_that_the_gpu_lacks_is_refused_with_the_line_and_a_way_out(dtype, compiled):
    wanted, arch = LACKING[dtype]
    with pytest.raises(BuildFailed) as caught:
        compiled(wanted, arch)
    assert f"{wanted.location}: {wanted.name}(" in str(caught.value)
    assert f"; {arch} has no {dtype}: branch on the GPU" in str(caught.value)


def test_fp8_of_other_gpus_is_computed(compiled):
    """Triton does it bit by bit where the GPU has no instruction."""
    for dtype in ("*fp8e4nv", "*fp8e5"):
        assert compiled(request(copied, [dtype, "*fp32"], {"BLOCK": 64})).registers > 0


def test_a_gluon_kernel_for_other_warps_is_refused(compiled):
    wanted = KINDS["gluon"]
    with pytest.raises(BuildFailed) as caught:
        compiled(wanted)
    said = "are its layouts for warps of 64 threads, and its instructions AMD's?"
    assert said in str(caught.value)
    assert wanted.location in str(caught.value)
    assert compiled(wanted, Arch.named("gfx1100")).registers > 0


def test_too_much_shared_memory_is_refused_at_the_build(compiled):
    tiles = {"BM": 32, "BN": 32, "BK": 512}
    wanted = request(gemm, ["*fp16"] * 3 + ["i32"] * 3, tiles, range(6), num_stages=4)
    with pytest.raises(BuildFailed, match=r"bytes of shared memory, and gfx942 has 65536"):
        compiled(wanted)


def test_an_object_that_does_not_fit_fails_the_build(monkeypatch, compiled):
    """As a Triton that orders arguments in another way would."""
    original = objects.check

    def other(content, arch, function, parameters, **more):
        return original(content, arch, function, [*parameters[1:], parameters[0]], **more)

    monkeypatch.setattr(objects, "check", other)
    wanted = request(scale, ["*fp16", "*fp16", "i32", "fp32"], {"BLOCK": 128})
    with pytest.raises(BuildFailed, match="takes n as 8 bytes at 8, but a launch passes 4 bytes"):
        compiled(wanted)


def test_a_module_that_the_compiler_prints_is_left_out(compiled):
    tiles = {"BM": 32, "BN": 32, "BK": 32}
    wanted = request(gemm, ["*fp16"] * 3 + ["i32"] * 3, tiles, range(6), kpack=3)
    with pytest.raises(BuildFailed) as caught:
        compiled(wanted)
    said = str(caught.value)
    assert "isPowerOf2_32" in said
    assert "tt.func" not in said
    assert len(said.splitlines()) < 12
