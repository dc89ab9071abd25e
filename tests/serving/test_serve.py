"""Launches from a folder in place of Triton's JIT, on the stand-in driver."""

import shutil
import subprocess
import sys

import pytest
import torch
import triton
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, KernelInterface

import opforge
from opforge.errors import KernelChanged, NotServable, NotServed, OpforgeWarning
from opforge.serving import serve as serving
from opforge.serving.build import build
from opforge.serving.manifest import read
from support.processes import environment
from support.served_kernels import combine, recorded, tuned
from support.standin.interpreter import Interpreter


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    recording = recorded(
        lambda x: combine[(1,)](x, x, x, 1024, BLOCK=64),
        lambda x: combine[(1,)](x, None, x, 1000, BLOCK=128),
        lambda x: tuned[(1,)](x, 1000),
    )
    return build(recording, tmp_path_factory.mktemp("served") / "kernels", archs=["sm_80"]).folder


def as_a_library(folder):
    """A manifest as the stand-in's interpreter reads it."""
    kernels = []
    for kernel in read(folder).kernels:
        for instance in kernel.instances:
            for variant in instance.variants:
                names = [p.name for p in vars_of(kernel.name).params if not p.is_constexpr]
                types = dict(zip(names, variant.types, strict=True))
                kinds = dict(zip(names, instance.kinds, strict=True))
                passed = [n for n in names if types[n] not in {"1", "none"}]
                constants = {n: repr(v) for n, v in instance.constants}
                constants |= {n: "None" for n in names if types[n] == "none"}
                constants |= {n: "1" for n in names if types[n] == "1"}
                kernels.append(
                    {
                        "key": "",
                        "name": kernel.name,
                        "constants": constants,
                        "types": [
                            kinds[n] if kinds[n] != "int" else types[n].partition(":")[0]
                            for n in passed
                        ],
                        "images": [{"sha256": i.sha256, "ptx_sha256": ""} for i in variant.images],
                    }
                )
    return {"kernels": kernels}


def vars_of(name):
    return {"combine": combine, "tuned": tuned.fn}[name]


@pytest.fixture
def gpu(standin, folder, monkeypatch):
    """A GPU as far as a served launch needs one; kernels are interpreted."""
    functions = (lambda _device: 0, lambda: 0)
    monkeypatch.setattr("opforge._compat.served.device_functions", lambda: functions)
    monkeypatch.setattr("opforge._compat.served.current_arch", lambda: 80)
    standin.execute = Interpreter(
        as_a_library(folder), {n: InterpretedFunction(vars_of(n).fn) for n in ("combine", "tuned")}
    )
    yield standin
    serving.stop()


@pytest.fixture
def jit(monkeypatch):
    """What Triton's own JIT is asked to launch."""
    seen = []

    def run(self, *args, grid, warmup, **kwargs):
        seen.append((self, args, grid, kwargs))

    monkeypatch.setattr(JITFunction, "run", run)
    return seen


def test_recorded_and_other_sizes_are_served(gpu, jit, folder):
    opforge.serve(folder, strict=True)
    for n in (1000, 1024, 1, 17):
        x, y, out = torch.randn(n), torch.randn(n), torch.empty(n)
        combine[lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=64)
        torch.testing.assert_close(out, x + y)
        combine[(triton.cdiv(n, 128),)](x, None, out, n, BLOCK=128)
        torch.testing.assert_close(out, x)
    assert not jit
    (launches,) = opforge.served().launches.values()
    assert launches == 8
    assert sum(opforge.served().general.values()) > 0


def test_an_autotuner_takes_what_was_recorded_and_measures_nothing(gpu, jit, folder, monkeypatch):
    monkeypatch.setitem(vars(tuned), "do_bench", None)
    opforge.serve(folder, strict=True)
    x = torch.randn(500)
    doubled = x * 2
    tuned[lambda meta: (triton.cdiv(500, meta["BLOCK"]),)](x, 500)
    torch.testing.assert_close(x, doubled)
    tuned.cache.clear()


def test_what_is_not_covered_is_tritons_with_one_warning(gpu, jit, folder):
    opforge.serve(folder)
    x = torch.randn(8)
    with pytest.warns(OpforgeWarning) as said:
        combine[(1,)](x, x, x, 8, BLOCK=256)
    # The next ones would be errors.
    combine[(1,)](x, x, x, 8, BLOCK=256)
    combine[(1,)](x, x, x, 8, BLOCK=256)
    assert "combine is launched by Triton: nothing was built for" in str(said[0].message)
    assert "BLOCK=256" in str(said[0].message)
    assert [(fn, grid, kwargs) for fn, _, grid, kwargs in jit] == [
        (combine, (1,), {"BLOCK": 256})
    ] * 3
    ((name, reason),) = opforge.served().handed_over
    assert name.endswith(":combine")
    assert f"{name}: 3 by Triton, because {reason}" in str(opforge.served())


def test_strict_raises_with_the_command_that_helps(gpu, jit, folder):
    opforge.serve(folder, strict=True)
    x = torch.randn(8)
    with pytest.raises(NotServed) as caught:
        combine[(1,)](x.half(), x, x, 8, BLOCK=64)
    assert f"is not covered by {folder}: " in str(caught.value)
    assert "fix: record it with `opforge record`, and build again with `opforge build`" in str(
        caught.value
    )
    assert not jit


def test_a_kernel_that_is_not_in_the_folder(gpu, jit, folder):
    @triton.jit
    def other(x_ptr):
        pass

    opforge.serve(folder)
    with pytest.warns(OpforgeWarning, match=r"other is launched by Triton: .*other is not in"):
        other[(1,)](torch.ones(1))
    other[(1,)](torch.ones(1))
    assert len(jit) == 2
    assert [*opforge.served().handed_over.values()] == [2]
    opforge.serve(folder, strict=True)
    with pytest.raises(NotServed, match=r"other is not in .*kernels"):
        other[(1,)](torch.ones(1))


def test_an_edited_kernel_is_not_served(gpu, jit, folder, monkeypatch):
    monkeypatch.setattr("opforge._compat.compiled.source_hash", lambda fn: "another")
    x = torch.randn(8)
    opforge.serve(folder)
    with pytest.warns(OpforgeWarning, match="is not the kernel that .* was built from"):
        combine[(1,)](x, x, x, 8, BLOCK=64)
    assert len(jit) == 1
    opforge.serve(folder, strict=True)
    with pytest.raises(KernelChanged, match="has been edited"):
        combine[(1,)](x, x, x, 8, BLOCK=64)


def test_hooks_of_launches_are_honoured(gpu, jit, folder):
    opforge.serve(folder)
    x = torch.randn(8)
    chain = triton.knobs.runtime.launch_enter_hook
    chain.add(print)
    try:
        with pytest.warns(OpforgeWarning, match="launch_enter_hook is set"):
            combine[(1,)](x, x, x, 8, BLOCK=64)
    finally:
        chain.remove(print)
    assert len(jit) == 1


def test_everything_is_triton_again_afterwards(gpu, folder):
    before = JITFunction.run, KernelInterface.__getitem__
    opforge.serve(folder)
    assert JITFunction.run is not before[0]
    serving.stop()
    assert (JITFunction.run, KernelInterface.__getitem__) == before
    assert opforge.served().launches == {}


def test_an_altered_image_is_refused(folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "kernels")
    image = next((copied / "images").iterdir())
    content = bytearray(image.read_bytes())
    content[100] ^= 1
    image.write_bytes(content)
    with pytest.raises(NotServable, match="was altered: its hash is not the manifest's"):
        opforge.serve(copied)
    image.unlink()
    with pytest.raises(NotServable, match=r"lacks images/.*, an image for sm_80"):
        opforge.serve(copied)


def test_the_command_serves_a_program(folder):
    code = (
        "import triton; from opforge.serving.serve import _current; print(_current.server.strict)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "opforge", "serve", "--strict", folder, "--",
         sys.executable, "-c", code],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
