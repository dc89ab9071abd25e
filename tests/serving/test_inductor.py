"""Kernels of compiled graphs from a folder, on the stand-in driver."""

import importlib
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from triton.tools.tensor_descriptor import TensorDescriptor

import opforge
from opforge import _compat
from opforge.errors import NotFound, NotServed, OpforgeWarning
from opforge.recording.model import Recording
from opforge.serving.build import build
from opforge.serving.find import find
from support import compiled_graphs as texts
from support.processes import TORCH_ALONE, environment, python
from support.served_folders import interpret_all
from support.serving import READ

# By name: a text, the arguments of a launch, and the configuration that was chosen.
RECORDED = {
    "triton_poi_fused_add_0": (texts.pointwise(), ("in_ptr0", "out_ptr0", "xnumel"), 0),
    "scale_kernel": (
        texts.scale(),
        ("x_ptr", "out_ptr", "factor", "n", "_grid_0", "_grid_1", "_grid_2"),
        0,
    ),
    "described_kernel": (
        texts.described(),
        ("x_desc", "out_desc", "_grid_0", "_grid_1", "_grid_2"),
        0,
    ),
    "tuned_kernel": (texts.tuned(), ("x_ptr", "out_ptr", "n", "_n"), 1),
    "triton_red_fused_sum_2": (
        texts.total(),
        ("in_ptr0", "out_ptr0", "xnumel", "r0_numel"),
        0,
    ),
    "triton_tem_fused_flex_attention_0": (
        texts.template(),
        ("arg_Q", "out_ptr0", "_grid_0", "_grid_1", "_grid_2"),
        0,
    ),
}
VALUES = {"factor": 2.0}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("inductor")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        patch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
        patch.setattr(CachingAutotuner, "run", lambda self, *args, stream: None)
        autotuner = _compat.inductor_kernels.autotuner
        patch.setattr(AsyncCompile, "triton", lambda self, *given: autotuner(*given))
        with opforge.record() as session:
            for name, (text, names, config) in RECORDED.items():
                texts.note(text)
                tuner = texts.launching(AsyncCompile().triton(name, text), names, config)
                tuner.run(*(VALUES.get(n, 16) for n in names), stream=0)
    return session.recording


@pytest.fixture(scope="module")
def folder(recording, tmp_path_factory):
    return build(recording, tmp_path_factory.mktemp("served") / "kernels", archs=["sm_80"]).folder


@pytest.fixture
def gpu(device, folder, monkeypatch, tmp_path):
    """A GPU whose kernels are interpreted, and none of them compiled."""

    def refuse(*args, **kwargs):
        raise AssertionError("something was compiled")

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    monkeypatch.setattr("torch._inductor.runtime.triton_heuristics.triton.compile", refuse)
    monkeypatch.setattr(CachingAutotuner, "bench", refuse)
    of_text = texts.FUNCTIONS
    interpret_all(device, folder, lambda kernel: of_text[kernel.source.partition("-")[0]])
    return device


@pytest.fixture
def inductor(monkeypatch):
    """What Inductor is left to compile."""
    seen = []

    def triton(self, name, text, device_str="cuda"):
        seen.append(name)

    monkeypatch.setattr(AsyncCompile, "triton", triton)
    return seen


def compiled(name, text=None):
    return AsyncCompile().triton(name, RECORDED[name][0] if text is None else text)


@pytest.mark.parametrize("n", [1, 17, 1000, 4096])
def test_inductors_own_kernels_are_served_for_all_sizes(gpu, folder, n):
    opforge.serve(folder, strict=True)
    x, out = torch.randn(n), torch.empty(n)
    kernel = compiled("triton_poi_fused_add_0")
    for _ in range(3):
        kernel.run(x, out, n, stream=0)
    torch.testing.assert_close(out, x + 1)
    assert opforge.served().launches == {"torch.compile:triton_poi_fused_add": 3}


def launches(gpu, *types):
    """What launches get from now on; Triton's interpreter does not know functions of these."""
    seen = []

    def execute(launched):
        seen.append((launched.grid, *(launched.read(i, READ[t]) for i, t in enumerate(types))))

    gpu.execute = execute
    return seen


@pytest.mark.parametrize(
    ("name", "arguments", "passed"),
    [
        # Without its size of 1.
        ("triton_red_fused_sum_2", (1, 5000), (1, {"i32": 5000})),
        ("triton_tem_fused_flex_attention_0", (2, 1, 1), (2, {})),
        ("scale_kernel", (0.1, 300, 3, 1, 1), (3, {"fp64": 0.1, "i32": 300})),
    ],
)
def test_other_kinds_of_kernels_are_served(gpu, folder, name, arguments, passed):
    rows, values = passed
    seen = launches(gpu, "p", "p", *values)
    opforge.serve(folder, strict=True)
    x, out = torch.randn(5000), torch.empty(5000)
    compiled(name).run(x, out, *arguments, stream=0)
    assert seen == [((rows, 1, 1), x.data_ptr(), out.data_ptr(), *values.values())]


def test_tensor_descriptors_of_user_code_are_served(gpu, folder):
    opforge.serve(folder, strict=True)
    x, out = torch.randn(70, 40), torch.empty(70, 40)
    given, made = (TensorDescriptor.from_tensor(t, [64, 32]) for t in (x, out))
    compiled("described_kernel").run(given, made, 2, 2, 1, stream=0)
    assert torch.equal(out, x * 2)


def test_a_size_of_1_that_was_another_takes_the_general_variant(gpu, folder):
    seen = launches(gpu, "p", "p", "fp64", "i32")
    opforge.serve(folder, strict=True)
    x, out = torch.randn(1), torch.empty(1)
    text = texts.scale("'BLOCK': 128, 'n': 1", n="constexpr")
    compiled("scale_kernel", text).run(x, out, 0.5, 1, 1, 1, 1, stream=0)
    assert seen == [((1, 1, 1), x.data_ptr(), out.data_ptr(), 0.5, 1)]


def test_an_autotuner_of_user_code_takes_what_was_recorded_and_measures_nothing(gpu, folder):
    opforge.serve(folder, strict=True)
    x, out = torch.randn(1300), torch.empty(1300)
    # Of two graphs.
    for kernel in (compiled("tuned_kernel"), compiled("tuned_kernel")):
        kernel.run(x, out, 1300, 1300, stream=0)
        torch.testing.assert_close(out, x + 1)
        assert kernel.launchers[0].config.kwargs == {"BLOCK": 512}
    assert opforge.served().launches == {"torch.compile:tuned_kernel": 2}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("triton_poi_fused_add_0", {"about": 1 << 20}),
        ("triton_poi_fused_add_17", {}),
        ("triton_poi_fused_add_0", {"more": "'coordinate_descent_tuning': True, "}),
    ],
    ids=["other size hints", "another place in its graph", "coordinate descent"],
)
def test_a_text_for_other_sizes_places_and_tuning_is_the_same_kernel(gpu, folder, name, given):
    opforge.serve(folder, strict=True)
    x, out = torch.randn(2000), torch.empty(2000)
    compiled(name, texts.pointwise(name, **given)).run(x, out, 2000, stream=0)
    torch.testing.assert_close(out, x + 1)


def test_another_text_is_inductors_with_one_warning(gpu, inductor, folder):
    opforge.serve(folder)
    text = texts.pointwise(added="2.0")
    with pytest.warns(OpforgeWarning, match="is compiled by Inductor: .* with a different text"):
        compiled("triton_poi_fused_add_0", text)
    compiled("triton_poi_fused_add_0", text)
    assert inductor == ["triton_poi_fused_add_0"] * 2
    assert [*opforge.served().handed_over.values()] == [2]


@pytest.mark.parametrize(
    "case",
    [
        ("other", texts.pointwise("other"), "other is not in "),
        (
            "triton_poi_fused_add_0",
            texts.pointwise(added="2.0"),
            "has triton_poi_fused_add with a different text",
        ),
        ("scale_kernel", texts.scale("'BLOCK': 64"), "nothing was built for BLOCK=64, debug=True"),
        ("scale_kernel", texts.scale(n="i64"), r"with arguments \(\*fp32, \*fp32, fp64, i64\)"),
        ("tuned_kernel", texts.tuned((64, 256)), "no configuration was recorded that its"),
        (
            "triton_poi_fused_add_0",
            texts.pointwise(more="'store_cubin': True, ").replace("'store_cubin': False, ", ""),
            "it belongs to C\\+\\+ code",
        ),
        (
            "triton_poi_fused_add_0",
            texts.pointwise().replace("'launch_pdl': False", "'launch_pdl': True"),
            "nothing was built for .*launch_pdl=True",
        ),
        ("odd", "x = 1", "its text has 0 kernels with a decorator of Inductor's"),
    ],
)
def test_strict_raises_with_the_reason(gpu, inductor, folder, case):
    name, text, said = case
    opforge.serve(folder, strict=True)
    with pytest.raises(
        NotServed, match=rf"^torch\.compile:\w+ is not covered by .*{said}"
    ) as caught:
        compiled(name, text)
    assert "record it with `opforge record`" in caught.value.fix
    assert inductor == []


def test_a_launch_that_is_not_covered_is_inductors(gpu, folder, monkeypatch):
    """Where it was printed for float32, and another dtype comes."""
    handed = []

    class Result:
        def make_launcher(self):
            return lambda *args, stream: handed.append((args, stream))

    monkeypatch.setattr(CachingAutotuner, "_precompile_config", lambda self, config: Result())
    opforge.serve(folder)
    x = torch.ones(20, dtype=torch.float64)
    kernel = compiled("triton_poi_fused_add_0")
    with pytest.warns(OpforgeWarning, match="is compiled by Inductor: in_ptr0 is torch.float64"):
        kernel.run(x, x, 20, stream=5)
    kernel.run(x, x, 20, stream=5)
    assert handed == [((x, x, 20), 5)] * 2
    opforge.serve(folder, strict=True)
    with pytest.raises(NotServed):
        compiled("triton_poi_fused_add_0").run(x, x, 20, stream=5)


def test_kernels_for_the_cpu_are_inductors(gpu, inductor, folder):
    opforge.serve(folder, strict=True)
    AsyncCompile().triton("k", "", device_str="cpu")
    assert inductor == ["k"]


def test_a_long_name_is_shortened_where_it_is_a_files(recording, tmp_path):
    name = "triton_poi_fused_" + "add_" * 80
    printed = _compat.inductor_kernels.printed(texts.pointwise(name))
    kernel = replace(
        recording.kernels[0], name=printed.name, text=printed.text,
        source=recording.kernels[0].source.replace(recording_source(recording), printed.source),
    )  # fmt: skip
    done = build(Recording((kernel,)), tmp_path / "kernels", archs=["sm_80"])
    (served,) = done.library.functions
    key = served.instances[0].variants[0].kernel
    assert {i.function for k in done.library.kernels if k.key == key for i in k.images} == {name}


def recording_source(recording):
    return recording.kernels[0].source.partition("-")[0]


@pytest.mark.parametrize("name", RECORDED)
def test_a_kernel_that_a_worker_compiled_is_the_same(name, monkeypatch):
    kernels, text = _compat.inductor_kernels, RECORDED[name][0]
    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    printed, fn = kernels.printed(text), kernels.autotuner(name, text).fn
    source = kernels.source_of(printed, fn)
    monkeypatch.setattr(fn, "fn", None)
    assert kernels.source_of(printed, fn) == source


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A module that a text imports, as opforge has Inductor print it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    (tmp_path / "graph_config.py").write_text("FACTOR = 2\n")
    yield importlib.import_module("graph_config")
    del sys.modules["graph_config"]


def test_what_a_text_imports_is_compared(gpu, recording, config, tmp_path, monkeypatch):
    text = texts.scale().replace("x * f", "x * f * graph_config.FACTOR")
    text = f"import graph_config\n{text}"
    monkeypatch.setattr(CachingAutotuner, "run", lambda self, *args, stream: None)
    with opforge.record() as session:
        texts.note(text)
        _, names, at = RECORDED["scale_kernel"]
        tuner = texts.launching(_compat.inductor_kernels.autotuner("scale_kernel", text), names, at)
        tuner.run(*(VALUES.get(n, 16) for n in names), stream=0)
    done = build(session.recording, tmp_path / "kernels", archs=["sm_80"])
    opforge.serve(done.folder, strict=True)
    assert compiled("scale_kernel", text) is not None
    config.FACTOR = 20
    with pytest.raises(NotServed, match="when something that scale_kernel uses was another"):
        compiled("scale_kernel", text)
    with pytest.raises(NotFound, match="something that it uses, has been edited"):
        find(session.recording.kernels[0])


def test_a_text_of_another_torch_is_not_built(recording, monkeypatch):
    kernel = recording.kernels[0]
    monkeypatch.setattr("opforge._compat.inductor_kernels._helpers", lambda: "another")
    with pytest.raises(NotFound, match="calls functions of a different torch"):
        find(kernel)


def test_a_text_that_does_not_run_is_told(recording):
    text = "import a_module_that_is_not_there\n"
    source = _compat.inductor_kernels.Printed("k", text).source
    with pytest.raises(NotFound, match="cannot be run") as caught:
        find(replace(recording.kernels[0], name="k", text=text, source=source))
    assert "No module named 'a_module_that_is_not_there'" in str(caught.value)


def test_the_commands_see_what_a_program_imports_later(folder, tmp_path):
    # The first import does what a Python that is not preloaded does when it starts.
    code = (
        "import sitecustomize, sys; assert 'torch._inductor' not in sys.modules;"
        "import triton, torch._inductor.async_compile as a; print(a.AsyncCompile.triton.__module__,"
        " hasattr(a.AsyncCompile.triton, '__wrapped__'))"
    )
    for command in (["record", "-o", str(tmp_path / "launches.json")], ["serve", str(folder)]):
        done = subprocess.run(
            [sys.executable, "-m", "opforge", *command, "--", python(), "-c", code],
            env=environment(**TORCH_ALONE), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("torch._inductor.async_compile True\n")
