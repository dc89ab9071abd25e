"""Launches from a folder in place of Triton's JIT, on the stand-in driver."""

import contextlib
import copy
import ctypes
import enum
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import minisign
import pytest
import torch
import triton
import triton.backends.nvidia.driver as nvidia
import triton.language as tl
from click.testing import CliRunner
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode

import opforge
from opforge._compat import kernel_hash, patches
from opforge.cli import main
from opforge.errors import NotServable, NotServed, OpforgeWarning, Untrusted
from opforge.native.artifacts.hashes import sign
from opforge.native.ir.kernels import image_file
from opforge.report.read import read_all
from opforge.serving import serve as serving
from opforge.serving.build import build
from support.archs import SM_80, gfx, sm
from support.own_autotuner import own_autotuner
from support.processes import ROOT, TORCH_ALONE, environment, python
from support.served_folders import interpret
from support.served_kernels import (
    Size,
    annotated,
    chosen,
    combine,
    optional,
    plus_one,
    pruned,
    recorded,
    scaling,
    staged,
    tuned,
    weighted,
)
from support.standin.driver import AMD, NVIDIA


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """For both vendors; what an autotuner chooses is recorded on each."""
    launches = (
        lambda x: combine[(1,)](x, x, x, 1024, BLOCK=64),
        lambda x: combine[(1,)](x, None, x, 1000, BLOCK=128),
        lambda x: tuned[(1,)](x, 1000),
    )
    recording = recorded(*launches).joined(recorded(launches[-1], arch="gfx942"))
    folder = tmp_path_factory.mktemp("served") / "kernels"
    return build(recording, folder, archs=["sm_80", "gfx942"]).folder


def pytest_generate_tests(metafunc):
    """What serves from that folder does so on the GPUs of both."""
    if "gpu" in metafunc.fixturenames:
        ids = [NVIDIA.name, AMD.name]
        metafunc.parametrize("vendor", [NVIDIA, AMD], indirect=True, ids=ids)


@pytest.fixture
def gpu(device, folder):
    """A GPU as far as a served launch needs one; kernels are interpreted."""
    interpret(device, folder, combine, tuned.fn)
    return device


def test_recorded_and_other_sizes_are_served(gpu, jit, folder, tmp_path):
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
    (tmp_path / "counts.json").write_text(opforge.served().to_json())
    (report,) = read_all([str(folder), str(tmp_path / "counts.json")])
    assert [one.served for one in report.launched] == [8]
    # Under the names that the folder has.
    named = {variant.kernel for variant in report.builds[0].variants}
    assert {one.kernel for one in report.launched} <= named


@pytest.mark.parametrize("kind", [lambda tuner: tuner, own_autotuner], ids=["triton", "own"])
def test_an_autotuner_takes_what_was_recorded_and_measures_nothing(gpu, folder, monkeypatch, kind):
    # Half the time of a first launch, for what the launch compares anyway.
    monkeypatch.setattr("opforge._compat.autotuning.source_hash", None)
    opforge.serve(folder, strict=True)
    tuner = kind(tuned)
    monkeypatch.setitem(vars(tuner), "do_bench", None)
    x = torch.randn(500)
    doubled = x * 2
    tuner[lambda meta: (triton.cdiv(500, meta["BLOCK"]),)](x, 500)
    torch.testing.assert_close(x, doubled)
    tuned.cache.clear()


def test_an_option_that_is_a_parameter_too_is_taken(device, tmp_path):
    """Triton takes num_warps=8 for both, and launches 8 warps."""
    recording = recorded(
        lambda x: staged[(1,)](x, 7, 3, num_warps=8), lambda x: staged[(1,)](x, 7, 3, 1)
    )
    warps = []
    device.execute = lambda launched: warps.append(launched.block[0] // 32)
    opforge.serve(build(recording, tmp_path / "kernels", archs=["sm_80"]).folder, strict=True)
    x = torch.zeros(8)
    returned = staged[(1,)](x, 7, 3, num_warps=8)
    returned[(1,)](x, 7)
    returned[(1,)](x, 7, 3, 8)
    staged[(1,)](x, 7, 3, 1)
    assert warps == [8, 8, 8, 4]


def test_numbers_are_what_annotations_say(device, jit_of, tmp_path):
    recording = recorded(lambda x: annotated[(1,)](x, 2, 3))
    folder = build(recording, tmp_path / "kernels", archs=["sm_80"]).folder
    interpret(device, folder, annotated)
    opforge.serve(folder)
    handed_over = jit_of()
    x = torch.zeros(8)
    for scale, n in ((2, 3), (2.5, True), (True, 16), (2**40, 1)):
        annotated[(1,)](x, scale, n)
        assert (x[0], handed_over) == (scale * n, [])


def test_an_op_is_traced_past_what_is_served(gpu, folder, op_name):
    @opforge.op(op_name())
    def added(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        combine[(1,)](x, None, out, x.numel(), BLOCK=128)
        return out

    graphs = []

    def keep(graph, _inputs):
        graphs.append(graph.code)
        return graph.forward

    opforge.serve(folder, strict=True)
    with opforge.target("sm_80"), FakeTensorMode():
        compiled = torch.compile(added, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
        with contextlib.suppress(Exception):  # the graph launches on fakes, which Triton refuses
            compiled(torch.empty(64, device="cuda"))
    (code,) = graphs
    assert "triton_kernel_wrapper_functional" in code
    assert sum(opforge.served().launches.values()) == 0
    torch.testing.assert_close(added(torch.ones(64)), torch.ones(64))
    assert sum(opforge.served().launches.values()) == 1


def test_what_is_served_can_be_recorded_for_a_target(gpu, folder):
    opforge.serve(folder, strict=True)
    (kernel,) = recorded(lambda x: combine[(1,)](x, None, x, 64, BLOCK=128)).kernels
    assert kernel.name == "combine"
    (kernel,) = recorded(lambda x: tuned[(1,)](x, 1000)).kernels
    assert kernel.name == "tuned"
    assert sum(opforge.served().launches.values()) == 0


def test_an_autotuner_without_a_recorded_configuration_is_not_measured(gpu, jit, folder):
    opforge.serve(folder, strict=True)
    other = triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 16)], ["n"])(tuned.fn)
    with pytest.raises(NotServed, match=r"has none of the .* that .*tuned chooses from"):
        other[(1,)](torch.randn(8), 8)


def test_packages_may_ask_which_gpu_there_is_without_a_compiler(gpu, folder, monkeypatch):
    """Triton's own driver compiles C before it answers."""
    compiled = []

    class Utils:
        # As Triton writes it, with the name that the module has for the class.
        def __new__(cls):
            return super(nvidia.CudaUtils, cls).__new__(cls)

        def __init__(self):
            compiled.append(self)
            self.load_binary = len

    monkeypatch.setattr(nvidia, "CudaUtils", Utils)
    opforge.serve(folder)
    with opforge.target("sm_90"):
        driver = nvidia.CudaDriver()
        assert driver.get_current_target().arch == 90
        assert driver.utils.get_device_properties(0)["multiprocessor_count"] == 132
    assert not compiled
    assert driver.utils.load_binary is len
    assert driver.utils.load_binary is len
    assert len(compiled) == 1


def test_pruning_decides_which_recorded_configuration_is_taken(gpu, tmp_path):
    """The nearest one may be wrong for the sizes: here a row must fit into a block."""
    recording = recorded(lambda x: pruned[(1,)](x, 64), lambda x: pruned[(1,)](x, 100))
    assert [dict(c.key)["n"] for k in recording.kernels for c in k.choices] == [64, 100]
    opforge.serve(build(recording, tmp_path / "kernels", archs=["sm_80"]).folder, strict=True)
    for n, block in ((64, 64), (70, 128), (100, 128), (3, 64)):
        with pytest.raises(StopIteration):
            pruned[stop_at(block)](torch.randn(n), n)


def stop_at(block):
    """A grid that sees which block was chosen."""

    def grid(meta):
        assert meta["BLOCK"] == block
        raise StopIteration

    return grid


@pytest.mark.parametrize("constant", [tl.constexpr(3), plus_one], ids=["constexpr", "function"])
def test_a_constant_without_annotation_is_tritons(device, jit_of, tmp_path, constant):
    """Triton compiles it in, so that its kernel is neither that of None nor that of a number."""
    recording = recorded(*(lambda x, n=n: optional[(1,)](x, n) for n in (constant, 7)))
    done = build(recording, tmp_path / "kernels", archs=["sm_80"])
    (note,) = done.notes
    assert "is not served where n is " in note
    assert "annotate it (n: tl.constexpr)" in note
    x = torch.zeros(1)
    opforge.serve(done.folder, strict=True)
    with pytest.raises(NotServed, match="n is None, but was built as int"):
        optional[(1,)](x, None)
    with pytest.raises(NotServed, match=r"n is a constant, but not annotated as tl\.constexpr"):
        optional[(1,)](x, constant)
    optional[(1,)](x, 7)
    assert len(device.launches) == 1
    serving.stop()
    jit = jit_of()
    opforge.serve(done.folder)
    with pytest.warns(OpforgeWarning, match=r"To serve it, annotate it \(n: tl\.constexpr\)"):
        optional[(1,)](x, n=constant)
    assert [kwargs for *_, kwargs in jit] == [{"n": constant}]


def test_an_enum_is_a_constant_of_its_own(device, folder, tmp_path):
    """A kernel may ask which type its constant has."""
    x = torch.randn(64)
    opforge.serve(folder, strict=True)
    with pytest.raises(NotServed, match=r"for the constants BLOCK=<Size\.SMALL: 64>"):
        combine[(1,)](x, x, x, 64, BLOCK=Size.SMALL)
    serving.stop()
    recording = recorded(lambda x: combine[(1,)](x, x, x, 1024, BLOCK=Size.SMALL))
    opforge.serve(build(recording, tmp_path / "kernels", archs=["sm_80"]).folder, strict=True)
    combine[(1,)](x, x, x, 64, BLOCK=Size.SMALL)
    assert len(device.launches) == 1
    with pytest.raises(NotServed, match="for the constants BLOCK=64"):
        combine[(1,)](x, x, x, 64, BLOCK=64)


def test_options_that_triton_takes_anyway_are_no_options(device, folder, tmp_path):
    x = torch.randn(64)
    opforge.serve(folder, strict=True)
    combine[(1,)](x, x, x, 64, BLOCK=64, num_warps=4, num_stages=3, instrumentation_mode="")
    combine[(1,)](x, x, x, 64, BLOCK=64, debug=False, maxnreg=None)
    with pytest.raises(NotServed, match="nothing was built for the options num_stages=2"):
        combine[(1,)](x, x, x, 64, BLOCK=64, num_warps=4, num_stages=2)
    serving.stop()
    recording = recorded(
        lambda x: combine[(1,)](x, x, x, 1024, BLOCK=64, num_warps=4, num_ctas=1),
        lambda x: combine[(1,)](x, x, x, 1024, BLOCK=64),
    )
    done = build(recording, tmp_path / "kernels", archs=["sm_80"])
    (kernel,) = done.library.functions
    assert len(kernel.instances) == 1
    opforge.serve(done.folder, strict=True)
    combine[(1,)](x, x, x, 64, BLOCK=64)


@pytest.mark.parametrize(
    ("vendor", "other"),
    [(NVIDIA, sm(75)[0]), (AMD, gfx("90a")[0])],
    indirect=["vendor"],
    ids=["nvidia", "amd"],
)
def test_another_architecture_is_tritons(device, folder, jit, monkeypatch, other):
    monkeypatch.setattr("opforge._compat.device.device_arch", lambda: other)
    device.reset(capability=(7, 5), arch="gfx90a")
    x = torch.randn(64)
    opforge.serve(folder)
    said = rf"nothing was built for {other} .* only for sm_80, gfx942\. To"
    with pytest.warns(OpforgeWarning, match=said):
        combine[(1,)](x, x, x, 64, BLOCK=64)
    combine[lambda _: (1,)](x, x, x, 64, BLOCK=64)
    assert [grid for _, _, grid, _ in jit] == [(1, 1, 1)] * 2
    opforge.serve(folder, strict=True)
    with pytest.raises(NotServed, match=rf"nothing was built for {other} .*\n.*--arch {other}"):
        combine[(1,)](x, x, x, 64, BLOCK=64)
    with pytest.raises(NotServed, match=f"nothing was built for {other}"):
        opforge.serve(folder, strict=True, preload=True)
    with pytest.warns(OpforgeWarning, match=f"nothing was built for {other}"):
        opforge.serve(folder, preload=True)


def test_a_function_of_the_main_script_is_a_constant(device, tmp_path):
    """It is the one that the script passes, not that of a second import."""
    recording = recorded(lambda x: combine[(1,)](x, None, x, 7, 128, plus_one))
    done = build(recording, tmp_path / "kernels", archs=["sm_80"]).folder
    content = (done / "manifest.json").read_text()
    name, file = "support.served_kernels:plus_one", plus_one.fn.__code__.co_filename
    (done / "manifest.json").write_text(content.replace(name, f"{file}:plus_one"))
    opforge.serve(done, strict=True)
    x = torch.randn(7)
    combine[(1,)](x, None, x, 7, 128, plus_one)
    assert len(device.launches) == 1


def test_a_reinterpreted_tensor_is_served_by_its_new_dtype(gpu, jit, folder):
    opforge.serve(folder, strict=True)
    x, out = torch.randn(64), torch.empty(64)
    again = triton.reinterpret(x.view(torch.int32), tl.float32)
    combine[(1,)](again, again, out, 64, BLOCK=64)
    torch.testing.assert_close(out, x + x)
    with pytest.raises(NotServed, match=r"x_ptr is torch\.int32, but was built as torch\.float32"):
        combine[(1,)](triton.reinterpret(x, tl.int32), x, out, 64, BLOCK=64)


def test_what_is_handed_over_is_what_the_program_passed(gpu, jit, folder):
    opforge.serve(folder)
    x, size = torch.randn(8), enum.IntEnum("Size", {"A": 8}).A
    wrapped = triton.reinterpret(x, tl.int32)
    with pytest.warns(OpforgeWarning, match="nothing was built for"):
        combine[(1,)](wrapped, x, x, size, BLOCK=[256])
    ((_, args, _, kwargs),) = jit
    assert args[0] is wrapped
    assert args[3] is size
    assert kwargs == {"BLOCK": [256]}


def test_a_folder_that_cannot_be_served_leaves_the_other_one(gpu, jit, folder):
    opforge.serve(folder, strict=True)
    with pytest.raises(NotServable):
        opforge.serve("no_such_folder")
    x = torch.randn(64)
    combine[(1,)](x, x, x, 64, BLOCK=64)
    assert not jit


def test_a_torch_without_cuda_is_told(folder, monkeypatch):
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    opforge.serve(folder)
    try:
        for _ in range(2):
            with pytest.raises(NotServable, match="this torch cannot launch on a GPU"):
                combine[(1,)](torch.randn(8), None, torch.randn(8), 8, BLOCK=128)
    finally:
        serving.stop()


def test_what_a_launch_returns_launches_again(gpu, jit, folder):
    """As wrappers of packages do, with all arguments or without constants."""
    opforge.serve(folder, strict=True)
    x, out = torch.randn(64), torch.empty(64)
    returned = combine[(1,)](x, x, out, 64, BLOCK=64)
    for args in ((x, x, out, 64, 64, None), (x, x, out, 64)):
        out.zero_()
        returned[(1,)](*args)
        torch.testing.assert_close(out, x + x)
    out.zero_()
    returned[(1,)](x, x, out_ptr=out, n=64, BLOCK=64)
    torch.testing.assert_close(out, x + x)
    returned[(1,)](x_ptr=x, y_ptr=x, out_ptr=out.zero_(), n=64)
    torch.testing.assert_close(out, x + x)
    assert sum(opforge.served().launches.values()) == 5


def test_what_a_launch_returned_is_looked_at(gpu, folder, monkeypatch):
    """Then it is Triton's compiled kernel, of the types that were launched."""
    asked = []

    def compiled(source, target, options):
        asked.append((source.signature, source.constants, source.attrs, options["num_warps"]))
        return SimpleNamespace(_init_handles=lambda: None, n_regs=24 + len(asked))

    monkeypatch.setattr(triton, "compile", compiled)
    x, out = torch.randn(64), torch.empty(64)
    opforge.serve(folder, strict=True)
    returned = combine[(1,)](x, x, out, 64, BLOCK=64)
    with pytest.raises(NotServed, match=r"the program looks at \.n_regs of what it returned"):
        returned.n_regs  # noqa: B018
    assert repr(returned)
    assert copy.copy(returned) is not returned
    assert not asked
    opforge.serve(folder)
    returned = combine[(1,)](x, x, out, 64, BLOCK=64)
    with pytest.warns(OpforgeWarning, match=r"launched by Triton: .* looks at \.n_regs"):
        assert returned.n_regs == 25
    assert not hasattr(returned, "spills")
    assert returned.n_regs == 25
    # Another warning would be an error.
    assert combine[(1,)](x[1:], None, out, 1, BLOCK=128).n_regs == 26
    first, second = ((tuple(types.values()), *others) for types, *others in asked)
    by_16 = {(at,): [["tt.divisibility", 16]] for at in range(4)}
    types = ("*fp32", "*fp32", "*fp32", "i32", "constexpr", "constexpr")
    assert first == (types, {(4,): 64, (5,): None}, by_16, 4)
    types = ("*fp32", "constexpr", "*fp32", "i32", "constexpr", "constexpr")
    assert second == (types, {(1,): None, (4,): 128, (5,): None}, {}, 4)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {"BLOCK": 64}), ((1, 2, 3, 4, 5, 6, 7), {}), ((), {"num_wraps": 4}), ((2**64,), {})],
)
def test_what_triton_refuses_it_refuses_itself(gpu, jit, folder, args, kwargs):
    """In strict mode, too: the call is wrong, with or without a folder."""
    opforge.serve(folder, strict=True)
    x = torch.randn(8)
    combine[(1,)](x, x, x, *args, **kwargs)
    assert len(jit) == 1
    assert opforge.served().handed_over == {}


def test_kernels_that_a_function_makes_are_served_by_what_they_have_from_there(device, tmp_path):
    recording = recorded(*(lambda x, f=f: scaling(f)[(1,)](x, 8, 64) for f in (2, 3)))
    built = build(recording, tmp_path / "kernels", archs=["sm_80"])
    assert built.notes == ()
    images = {k.source: k.instances[0].variants for k in built.library.functions}
    assert len(images) == 2
    launched = []
    device.execute = lambda one: launched.append(one.image)
    opforge.serve(built.folder, strict=True)
    x = torch.zeros(64)
    for factor in (3, 2):
        scaling(factor)[(1,)](x, 8, 64)
        own = images[kernel_hash.digest(scaling(factor))]
        files = [built.folder / image_file(v.kernel, SM_80) for v in own]
        assert launched.pop() in [file.read_bytes() for file in files]
    with pytest.raises(NotServed, match="has been edited"):
        scaling(4)[(1,)](x, 8, 64)


@pytest.fixture
def weighing(device, tmp_path):
    """A folder with launches that pass tuples, and what is passed when they are served."""
    recording = recorded(
        lambda x: weighted[(1,)]((x, x), x, 16, (2.0, (3, 16)), 64),
        lambda x: weighted[(1,)]((x, None), x, 16, (2.0, (3,)), BLOCK=64),
    )
    assert recording.missed == ()
    passed = []

    def execute(launched):
        types = [ctypes.c_uint64] * 3 + [ctypes.c_int32, ctypes.c_float, *[ctypes.c_int32] * 2]
        passed.append((launched.grid[0], [launched.read(i, t) for i, t in enumerate(types)]))

    device.execute = execute
    return build(recording, tmp_path / "kernels", archs=["sm_80"]).folder, passed


def test_the_items_of_tuples_are_passed(weighing, monkeypatch):
    folder, passed = weighing
    opforge.serve(folder, strict=True)
    x, y, out = torch.ones(64), torch.ones(64), torch.ones(64)

    def grid(given):
        return (len(given["xs"]) + given["BLOCK"],)

    weighted[grid]((x, y), out, 17, scales=(0.5, (4, 32)), BLOCK=64)
    weighted[grid]((x, y), out, 17, (0.5, (4, 5)), 64)
    pointers = [x.data_ptr(), y.data_ptr(), out.data_ptr()]
    assert passed == [(66, [*pointers, 17, 0.5, 4, last]) for last in (32, 5)]
    # As wrappers of packages do.
    returned = weighted[grid]((x, y), out, 17, (0.5, (4, 5)), 64)
    returned[(7,)]((y, y), out, 9, (0.5, (4, 6)), 64)
    returned[(7,)]((y, y), out, 9, (0.5, (4, 6)))
    assert passed[3:] == [(7, [y.data_ptr(), y.data_ptr(), out.data_ptr(), 9, 0.5, 4, 6])] * 2
    (launches,) = opforge.served().launches.values()
    assert launches == 5
    with pytest.raises(NotServed, match="nothing was built for tuples of these lengths"):
        weighted[grid]((x, y), out, 17, (0.5, (4, 5, 6)), BLOCK=64)
    with pytest.raises(NotServed, match=r"xs\.1"):
        weighted[grid]((x, y.half()), out, 17, (0.5, (4, 5)), BLOCK=64)
    monkeypatch.setattr(weighted, "pre_run_hooks", [print])
    with pytest.raises(NotServed, match="it has pre_run_hooks"):
        weighted[grid]((x, y), out, 17, (0.5, (4, 5)), 64)


def test_triton_gets_tuples_as_they_were_passed(weighing, jit):
    opforge.serve(weighing[0])
    x = torch.ones(64)
    with pytest.warns(OpforgeWarning, match="weighted is launched by Triton"):
        weighted[(1,)]((x, x.half()), x, 17, (0.5, (4, 5)), 64, num_warps=8)
    with pytest.warns(OpforgeWarning, match="weighted is launched by Triton"):
        weighted[(1,)]((x, None), x, 17, (0.5, (4, 5, 6)), BLOCK=64)
    assert [fn for fn, *_ in jit] == [weighted, weighted]
    assert [(args[0][0], args[3], kwargs) for _, args, _, kwargs in jit] == [
        (x, (0.5, (4, 5)), {"num_warps": 8}),
        (x, (0.5, (4, 5, 6)), {"BLOCK": 64}),
    ]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("place", [combine.fn.__code__.co_filename, "/built/elsewhere/prog.py"])
def test_a_kernel_of_a_script_is_served_wherever_it_is_the_same(
    folder, tmp_path, monkeypatch, place
):
    """Where the script is imported, and where it runs under another path now."""
    copied = shutil.copytree(folder, tmp_path / "kernels")
    content = json.loads((copied / "manifest.json").read_text())
    for function in content["functions"]:
        function["module"] = place
    (copied / "manifest.json").write_text(json.dumps(content))
    opforge.serve(copied, strict=True)
    for kernel in (combine, tuned.fn) if place.startswith("/built") else ():
        monkeypatch.setattr(kernel.fn, "__module__", "__main__")
    x = torch.randn(64)
    doubled = x + x
    combine[(1,)](x, x, x, 64, BLOCK=64)
    tuned[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](x, 64)
    torch.testing.assert_close(x, 2 * doubled)


def test_nothing_is_served_in_the_interpreter(device, folder, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(NotServable, match="nothing is served under TRITON_INTERPRET=1"):
        opforge.serve(folder, strict=True)
    with pytest.warns(OpforgeWarning, match="nothing is served under TRITON_INTERPRET=1"):
        opforge.serve(folder)


RECORD = "record it with `opforge record`"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("launch", "said", "fix"),
    [
        (lambda x: combine[(1,)](x.half(), x, x, 8, BLOCK=64), "x_ptr is torch.float16", RECORD),
        (lambda x: combine[(1,)](x, x, x, (8,), BLOCK=64), "n is of type tuple", "always Triton's"),
        (lambda x: chosen[(1,)](x, x), "chosen is not in ", RECORD),
        (
            lambda x: combine.warmup(x.dtype, None, x.dtype, 8, BLOCK=64, grid=(1,)),
            "warmup() asks for Triton's compiled kernel",
            "leave its warmup() out",
        ),
    ],
)
def test_what_is_not_covered_is_tritons_or_an_error_that_says_what_helps(
    jit, folder, launch, said, fix
):
    x = torch.randn(8)
    opforge.serve(folder)
    with pytest.warns(OpforgeWarning) as warned:
        launch(x)
    assert said in str(warned[0].message)
    assert len(jit) == 1
    opforge.serve(folder, strict=True)
    with pytest.raises(NotServed) as caught:
        launch(x)
    assert said in caught.value.what
    assert fix in caught.value.fix
    assert len(jit) == 1


def test_hooks_of_launches_are_honoured_however_they_are_set(gpu, jit, folder):
    opforge.serve(folder)
    runtime = triton.knobs.runtime
    runtime.launch_exit_hook.add(print)
    try:
        with pytest.warns(OpforgeWarning, match="launch_exit_hook is set"):
            launch_combine()
    finally:
        runtime.launch_exit_hook.remove(print)
    with runtime.scope():
        runtime.launch_enter_hook = print
        with pytest.warns(OpforgeWarning, match="launch_enter_hook is set"):
            launch_combine()
        runtime.launch_enter_hook = None
        launch_combine()
    launch_combine()
    assert (len(jit), len(gpu.launches)) == (2, 2)


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


@pytest.fixture
def copied(folder, tmp_path):
    """The folder, signed with `key`."""
    pair = minisign.KeyPair.generate()
    (tmp_path / "key").write_bytes(bytes(pair.secret_key))
    (tmp_path / "pub").write_bytes(bytes(pair.public_key))
    copied = shutil.copytree(folder, tmp_path / "kernels")
    sign([copied / "share/served/SHA256SUMS"], tmp_path / "key", str)
    return copied


def launch_combine():
    x = torch.ones(8)
    combine[(1,)](x, x, x, 8, BLOCK=64)


@pytest.mark.parametrize("options", [{"verify": True}, {"trusted_keys": ["pub"]}])
def test_an_image_that_is_altered_before_its_first_launch_is_refused(
    gpu, copied, options, monkeypatch
):
    monkeypatch.chdir(copied.parent)
    opforge.serve(copied, **options)
    for image in (copied / "images").iterdir():
        content = bytearray(image.read_bytes())
        content[100] ^= 1
        image.write_bytes(content)
    with pytest.raises(Untrusted, match=r"images/.* is not what was built"):
        launch_combine()
    assert gpu.launches == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda image: image.write_bytes(image.read_bytes()[:-1]), r"is damaged: it has \d+ bytes"),
        (lambda image: image.unlink(), r"lacks images/.*, an image for (sm_80|gfx942)"),
    ],
)
def test_an_image_that_is_cut_short_or_gone_is_refused(gpu, copied, change, said):
    opforge.serve(copied)
    for image in (copied / "images").iterdir():
        change(image)
    with pytest.raises(NotServable, match=said):
        launch_combine()
    assert gpu.launches == []


def test_what_was_hashed_is_launched_whatever_becomes_of_the_files(gpu, jit, copied):
    opforge.serve(copied, strict=True, verify=True)
    launch_combine()
    shutil.rmtree(copied)
    serving._current.server.extension.unload()
    launch_combine()
    loads = gpu.calls.count(gpu.vendor.call("cuModuleLoadData"))
    assert loads == len(gpu.launches) == 2


def test_a_folder_that_no_trusted_key_has_signed_is_not_served(folder, copied, tmp_path):
    with pytest.raises(Untrusted, match="SHA256SUMS is not signed"):
        opforge.serve(folder, trusted_keys=[tmp_path / "pub"])
    opforge.serve(copied, trusted_keys=[tmp_path / "pub"])
    serving.stop()
    (tmp_path / "no").write_bytes(bytes(minisign.KeyPair.generate().public_key))
    with pytest.raises(Untrusted, match="none of the trusted keys has signed"):
        opforge.serve(copied, trusted_keys=[tmp_path / "no"])
    with pytest.raises(Untrusted, match="SHA256SUMS cannot be read: No such file"):
        opforge.serve(copied / "images", trusted_keys=[tmp_path / "pub"])


def test_an_altered_extension_is_refused(folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "kernels")
    extension = copied / "_opforge_served.abi3.so"
    content = extension.read_bytes()
    extension.write_bytes(content + b"more")
    with pytest.raises(Untrusted, match=r"abi3\.so is not what was built"):
        opforge.serve(copied, verify=True)
    extension.write_bytes(content[:-100])
    with pytest.raises(NotServable, match=r"abi3\.so cannot be used: it has \d+ bytes of"):
        opforge.serve(copied)
    extension.unlink()
    with pytest.raises(NotServable, match=r"abi3\.so cannot be used: there is no such file"):
        opforge.serve(copied)


def test_a_folder_that_a_killed_build_left_mixed_is_refused(copied):
    (copied / "share/served/SHA256SUMS").write_bytes(b"")
    with pytest.raises(NotServable, match="a build was killed while it wrote its files"):
        opforge.serve(copied)


SAYS = (
    "import triton; from opforge.serving.serve import _current as now;"
    "print(now.server.strict, now.server.tune_missing)"
)


@pytest.mark.parametrize("command", ["record", "serve"])
def test_triton_is_as_without_opforge_but_for_what_the_table_lists(command, folder, tmp_path):
    program = [sys.executable, ROOT / "tests" / "support" / "triton_attributes.py"]
    own = ["-o", tmp_path / "launches.json"] if command == "record" else [folder]

    def attributes(*before):
        done = subprocess.run(
            [*before, *program], env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    under = attributes(sys.executable, "-m", "opforge", command, *own, "--")
    plain = attributes()
    listed = {name for patch in patches.table() for name in patch.what}
    differing = {n for n in under.keys() | plain.keys() if under.get(n) != plain.get(n)}
    assert differing
    # What the names of a replaced class stand for is replaced with it.
    assert {n for n in differing - listed if n.rpartition(".")[0] not in listed} == set()


def test_the_command_serves_a_program_and_writes_what_was_served(folder, tmp_path):
    # There is no GPU to launch on, so a process tells of launches that were not made.
    code = f"import sitecustomize; {SAYS}; now.server.handed_over['m:k', 'why'] += 2"
    command = ["serve", "--strict", "--tune-missing", "--counts"]
    program = [str(folder), "--", python(), "-c", code]
    done = subprocess.run(
        [sys.executable, "-m", "opforge", *command, tmp_path / "counts.json", *program],
        env=environment(**TORCH_ALONE), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
    assert json.loads((tmp_path / "counts.json").read_text()) == {
        "served_format": 1, "launches": {}, "general": {},
        "handed_over": [{"kernel": "m:k", "reason": "why", "launches": 2}],
    }  # fmt: skip
    done = CliRunner().invoke(main, [*command, str(tmp_path), *program])
    assert done.exit_code == 1
    assert done.output == f"Error: {tmp_path} cannot be written: Is a directory\n"


def test_a_variable_serves_a_program_where_the_wheel_is_installed(folder, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    # As pip does.
    wheel = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", wheel], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(made, tmp_path / "site", "zip")
    # As Python does with site-packages when it starts.
    code = f"import site; site.addsitedir({str(tmp_path / 'site')!r}); {SAYS}"
    done = subprocess.run(
        [python(), "-c", code], env=os.environ | TORCH_ALONE | {"OPFORGE_SERVE": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "False False\n"), done.stderr
