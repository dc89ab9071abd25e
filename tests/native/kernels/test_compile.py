"""Compiling variants in other processes: the same bytes as Triton's own, and errors that help."""

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from opforge._compat import compiling
from opforge.errors import BuildFailed
from opforge.native.ir.kernels import Image, TensorMap
from opforge.native.kernels.compile import compile_all
from support.archs import SM_80, SM_90, sm
from support.native import kernel_requests
from support.native.heard import Heard
from support.native.hopper_ops import moved_kernel
from support.native.kernel_requests import (
    KINDS,
    crashes_the_compiler,
    gemm,
    given_descriptor,
    request,
    scale_request,
    with_its_target,
    wrong_further_down,
    wrong_instruction,
    wrong_range,
)
from support.processes import environment


@pytest.fixture(autouse=True)
def own_triton_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def compiled_by_triton(wanted, arch):
    attrs = {(i,): [["tt.divisibility", 16]] for i in wanted.divisible}
    kind = GluonASTSource if wanted.fn.is_gluon() else ASTSource
    source = kind(wanted.fn, dict(wanted.signature), dict(wanted.constants), attrs)
    return triton.compile(source, GPUTarget("cuda", arch.number, 32), dict(wanted.options))


@pytest.mark.parametrize(
    ("kind", "arch"),
    [*((kind, SM_90) for kind in KINDS), *(("dot", arch) for arch in sm(80, 100))],
)
def test_a_worker_makes_the_bytes_that_triton_makes(kind, arch, pool, monkeypatch):
    wanted, lower = KINDS[kind], compiling.lower
    # Triton's own name source files by their full paths.
    monkeypatch.setattr(compiling, "lower", lambda variant, **_: lower(variant))
    image = compile_all([(wanted, (arch,))], executor=pool, cache=None, ptx=True)[wanted.key, arch]
    expected = compiled_by_triton(wanted, arch)
    assert image.cubin == expected.asm["cubin"]
    assert image.ptx == expected.asm["ptx"]
    assert image.function == expected.metadata.name
    assert image.num_warps == expected.metadata.num_warps
    assert image.shared == expected.metadata.shared
    assert image.global_scratch_size == expected.metadata.global_scratch_size
    assert image.num_ctas == expected.metadata.num_ctas
    assert image.cooperative == expected.metadata.launch_cooperative_grid


def test_a_kernel_that_asks_for_its_target_hears_what_it_is_compiled_for(pool):
    """Triton asks the driver, which knows the GPU of this machine, if there is one."""
    wanted = request(with_its_target, ["*i32"], {})
    images = compile_all([(wanted, sm(80, 90))], executor=pool, cache=None, ptx=True)
    stored = [re.search(r"mov\.b32 \t%r\d+, (\d);", image.ptx)[1] for image in images.values()]
    assert stored == ["0", "1"]


def test_results_come_by_key_and_arch_in_the_order_of_the_requests_each_compiled_once():
    first, second = scale_request(256), scale_request(128)
    wanted, heard = [(first, sm(90, 80, 90)), (second, sm(80)), (first, sm(80))], Heard()
    with ThreadPoolExecutor(2) as threads:
        images = compile_all(wanted, executor=threads, cache=None, progress=heard)
    assert (heard.total, len(heard.compiled), heard.stopped) == (3, 3, 1)
    assert list(images) == [(first.key, SM_90), (first.key, SM_80), (second.key, SM_80)]
    assert all(image.arch == arch for (_, arch), image in images.items())
    assert len({image.cubin for image in images.values()}) == 3
    # Only on request.
    assert {image.ptx for image in images.values()} == {""}


def test_what_a_launch_needs_is_read_from_the_metadata(pool):
    special = scale_request(num_ctas=2, num_warps=8, launch_cooperative_grid=True)
    (image,) = compile_all([(special, sm(90))], executor=pool, cache=None).values()
    assert (image.num_ctas, image.num_warps, image.cooperative) == (2, 8, True)


@pytest.mark.parametrize("arch", sm(80, 100))
def test_registers_and_spills_are_what_ptxas_prints(arch, pool, tmp_path):
    squeezed = request(
        gemm, ["*fp16"] * 3 + ["i32"] * 3, {"BM": 32, "BN": 64, "BK": 16}, range(6), maxnreg=32
    )
    for wanted in (scale_request(), squeezed):
        (image,) = compile_all([(wanted, (arch,))], executor=pool, cache=None, ptx=True).values()
        printed = ptxas_verbose(image, tmp_path)
        assert image.registers == int(re.search(r"Used (\d+) registers", printed)[1])
        assert image.spills == int(re.search(r"(\d+) bytes stack frame", printed)[1]) // 4
        assert (image.spills > 0) is (wanted is squeezed)


def ptxas_verbose(image: Image, folder: Path) -> str:
    tool = get_ptxas(image.arch.number)
    name = re.search(r"\.target (\w+)", image.ptx)[1]
    source = folder / "kernel.ptx"
    source.write_text(image.ptx)
    # As Triton calls it: versions differ in their option for allocating registers.
    extra = ["--regAllocOptLevel=2"] if triton.__version__ >= "3.7" else []
    command = [tool.path, "-lineinfo", "-v", *extra, f"--gpu-name={name}", source]
    command += ["-o", folder / "kernel.o"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_every_failing_kernel_is_named_with_its_place_variant_and_text(pool, cache):
    good = scale_request()
    bad = [request(k, ["*i32"], {"BLOCK": 64}) for k in (wrong_range, wrong_instruction)]
    with pytest.raises(BuildFailed) as caught:
        compile_all([(r, sm(80, 90)) for r in (bad[0], good, bad[1])], executor=pool, cache=cache)
    text = str(caught.value)
    assert "2 kernels do not compile" in text
    assert f"{bad[0].location}: wrong_range(x_ptr: *i32, BLOCK=64) for sm_80, sm_90" in text
    assert "arange's range must be a power of 2" in text
    assert f"{bad[1].location}: wrong_instruction(x_ptr: *i32, BLOCK=64) for sm_80" in text
    assert "Not a name of any known instruction: 'bogus'" in text
    # What did compile was kept.
    heard = Heard()
    compile_all([(good, sm(80, 90))], executor=pool, cache=cache, progress=heard)
    assert [c.cached for c in heard.compiled] == [True, True]


def test_variants_that_fail_alike_share_a_paragraph_that_names_a_few_launches(pool):
    bad = [request(wrong_range, ["*i32"], {"BLOCK": b}) for b in (32, 64, 128)]
    who = {bad[0].key: [f"ops::op{i} (ops.py:{i})" for i in range(1, 7)]}
    with pytest.raises(BuildFailed) as caught:
        compile_all([(r, sm(80)) for r in bad], executor=pool, cache=None, launched_by=who)
    text = str(caught.value)
    assert "launched by ops::op1 (ops.py:1)" in text
    assert "ops::op4 (ops.py:4) and 2 more\n" in text
    assert "wrong_range(x_ptr: *i32, BLOCK=32) for sm_80, and 2 more variants of it" in text
    assert text.count("CompilationError") == 1


def test_an_error_in_a_function_that_a_kernel_calls_is_shown_with_its_cause(pool):
    bad = request(wrong_further_down, ["*fp32"], {"BLOCK": 64})
    with pytest.raises(BuildFailed) as caught:
        compile_all([(bad, sm(80))], executor=pool, cache=None)
    calls = re.findall("CompilationError: at .*:\n *def ([a-z_]+)", str(caught.value))
    assert calls == ["wrong_further_down", "_calls_wrong_dot", "_wrong_dot"]
    assert str(caught.value).endswith("input and other must have equal ranks >= 2")


def test_a_worker_keeps_the_ptx_of_a_failure_to_itself(pool, capfd):
    bad = request(wrong_instruction, ["*i32"], {"BLOCK": 64})
    with pytest.raises(BuildFailed):
        compile_all([(bad, sm(80))], executor=pool, cache=None)
    assert capfd.readouterr() == ("", "")


def test_a_compiler_crash_names_its_kernel_and_the_others_are_compiled():
    bad = request(crashes_the_compiler, ["*i32"], {"BLOCK": 64})
    heard = Heard()
    wanted = [(r, sm(80)) for r in (scale_request(32), bad, scale_request(64))]
    with pytest.raises(BuildFailed) as caught:
        compile_all(wanted, jobs=2, cache=None, progress=heard)
    assert "a kernel does not compile" in str(caught.value)
    assert "crashes_the_compiler(x_ptr: *i32, BLOCK=64) for sm_80" in str(caught.value)
    assert "failed to parse constraints" in str(caught.value)
    assert sorted((c.label, c.failed) for c in heard.compiled) == [
        ("crashes_the_compiler sm_80", True),
        ("scale sm_80", False),
        ("scale sm_80", False),
    ]


class Failing(Executor):
    """An executor whose jobs fail in one way."""

    def __init__(self, error):
        self.error = error

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        if self.error is None:
            future.cancel()
        else:
            future.set_exception(self.error)
        return future


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BrokenExecutor("gone"), "a worker died"),
        (RuntimeError("worker lost its disk"), "worker lost its disk"),
        # As dask does when its scheduler goes away.
        (None, "its executor gave up: it was shut down, or lost its scheduler; build"),
    ],
)
def test_an_executor_that_fails_fails_its_kernels(error, said):
    wanted = [(scale_request(b), sm(80)) for b in (32, 64)]
    with pytest.raises(BuildFailed, match=said) as caught:
        compile_all(wanted, executor=Failing(error), cache=None)
    assert "scale(x_ptr: *fp16" in str(caught.value)


def test_an_interruption_ends_the_build_and_cancels_what_waits(pool):
    class Interrupting(Heard):
        def done(self, label, **how):
            super().done(label, **how)
            raise KeyboardInterrupt

    heard = Interrupting()
    wanted = [
        (scale_request(b, num_warps=w), sm(80)) for b in (32, 64, 128, 256) for w in (1, 2, 4)
    ]
    with pytest.raises(KeyboardInterrupt):
        compile_all(wanted, executor=pool, cache=None, progress=heard)
    assert (len(heard.compiled), heard.stopped) == (1, 1)


def copied(path):
    """The requests of a copy of a module of kernels."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(Path(kernel_requests.__file__).read_text())
    spec = importlib.util.spec_from_file_location("moved_variants", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.KINDS["helper"]


def test_a_kernel_gives_the_same_bytes_wherever_its_file_lies_and_whenever_it_was_written(
    tmp_path, monkeypatch, cache
):
    """ptxas looks for a file without a folder where the build runs, and would write its date."""
    made = []
    with ThreadPoolExecutor(1) as here:
        for place, written in (("here", 1_000_000_000), ("there", 1_700_000_000)):
            path = tmp_path / place / "moved_variants.py"
            wanted = copied(path)
            os.utime(path, (written, written))
            monkeypatch.chdir(path.parent)
            monkeypatch.setenv("HOME", str(path.parent))
            monkeypatch.setenv("TRITON_CACHE_DIR", str(path.parent))
            images = compile_all([(wanted, sm(90))], executor=here, cache=None)
            made.append(images[wanted.key, SM_90].cubin)
            # The second is in the cache.
            compile_all([(wanted, sm(90))], executor=here, cache=cache)
    assert made[0] == made[1]
    assert b"moved_variants.py" in made[0]
    assert b"/here" not in made[0]
    assert len([*cache.folder.rglob("*.image")]) == 1


def test_a_kernel_may_lie_in_a_file_whose_name_ptxas_does_not_take(pool, tmp_path):
    wanted = copied(tmp_path / "größe" / 'vari"\n\\nten.py')
    images = compile_all([(wanted, sm(90))], executor=pool, cache=None)
    assert b"vari_nten.py" in images[wanted.key, SM_90].cubin


def test_an_image_says_how_its_descriptors_are_passed(pool, cache):
    wanted = request(given_descriptor, ["tensordesc<fp16[32, 32]>", "*fp16"], {"BLOCK": 32})
    for _ in range(2):
        images = compile_all([(wanted, sm(80, 90))], executor=pool, cache=cache)
        assert images[wanted.key, SM_80].maps == ()
        # Halves, and rows of 64 bytes.
        assert images[wanted.key, SM_90].maps == (TensorMap(6, 2, 2, (32, 32)),)


def test_a_gluon_kernel_of_newer_gpus_is_suspected(pool):
    layout = gl.NVMMASharedLayout.get_default_for([64, 32], gl.float16)
    described = f"tensordesc<fp16[64, 32],{layout!r}>"
    wanted = request(moved_kernel, [described, described], {"M": 64, "N": 32})
    with pytest.raises(BuildFailed) as caught:
        compile_all([(wanted, sm(80))], jobs=1, cache=None)
    assert "it is a Gluon kernel: if sm_80 lacks what it uses" in str(caught.value)


def test_a_block_that_no_tensor_map_can_have_is_refused(pool):
    wanted = request(given_descriptor, ["tensordesc<fp16[4, 4]>", "*fp16"], {"BLOCK": 4})
    with pytest.raises(BuildFailed) as caught:
        compile_all([(wanted, sm(80, 90))], executor=pool, cache=None)
    assert "x_desc has a block 8 bytes wide, and TMA copies at least 16" in str(caught.value)
    assert "for sm_80" not in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (scale_request(launch_pdl=True), "launch_pdl=True needs sm_90 or later"),
        (scale_request(num_wraps=4), "num_wraps"),
        (scale_request(num_ctas=2), "num_ctas > 1 requires"),
        (scale_request(num_ctas=3), "num_ctas=3 is not the size of a cluster: 1, 2, 4, 8 or 16"),
        (scale_request(num_warps=3), "num_warps must be a power of 2"),
    ],
)
def test_what_triton_cannot_compile_is_told_by_name(bad, text, pool):
    with pytest.raises(BuildFailed) as caught:
        compile_all([(bad, sm(80))], executor=pool, cache=None)
    assert bad.location in str(caught.value)
    assert text in str(caught.value)


def test_a_script_without_a_main_guard_can_build_with_workers_that_need_no_torch(tmp_path):
    hidden = tmp_path / "hidden" / "torch"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('no torch here')")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        print("started")
        import sys
        sys.path.insert(0, {str(hidden.parent)!r})
        from support.archs import sm
        from support.native.kernel_requests import scale_request
        from opforge.native.kernels.compile import compile_all
        print(len(compile_all([(scale_request(), sm(80, 90))], jobs=2, cache=None)))
    """)
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, env=environment()
    )
    assert (done.stdout.split(), done.stderr) == (["started", "2"], "")
