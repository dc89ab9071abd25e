"""Launches of compiled graphs in a recording, on a stand-in for Inductor's launches."""

import pytest
import torch
import triton
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import LambdaFuture
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

import opforge
from opforge import _compat
from opforge.recording.command import listing
from opforge.recording.model import read
from support import compiled_graphs as texts


@pytest.fixture
def inductor(monkeypatch, tmp_path):
    """Inductor where a launch works: nothing is compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    monkeypatch.setattr(CachingAutotuner, "run", lambda self, *args, stream, **kwargs: None)
    monkeypatch.setattr(
        AsyncCompile,
        "triton",
        lambda self, name, text, device_str="cuda": _compat.inductor_kernels.autotuner(name, text),
    )

    def compiled(name, text, *names):
        return texts.launching(AsyncCompile().triton(name, text), names)

    return compiled


X = torch.empty(4)


def test_types_constants_options_and_the_configuration_are_recorded(inductor):
    with opforge.record() as session:
        kernel = inductor("triton_poi_fused_add_0", texts.pointwise(), "in_ptr0", "out_ptr0", "n")
        config = kernel.launchers[0].config
        for _ in range(3):
            kernel.run(X, X, 1000, stream=0)
    (found,) = session.recording.kernels
    assert (found.module, found.name) == ("torch.compile", "triton_poi_fused_add")
    (variant,), (choice,) = found.variants, found.choices
    assert dict(variant.types) == {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32"}
    assert (variant.divisible, variant.ones) == (("in_ptr0", "out_ptr0"), ())
    assert dict(variant.constants) == {"XBLOCK": config.kwargs["XBLOCK"]}
    assert dict(variant.options)["num_warps"] == config.num_warps
    assert dict(variant.options)["debug"] is True
    assert (variant.arch, variant.launches) == ("sm_80", 3)
    assert variant.first.startswith(__file__)
    assert dict(choice.key) == {"x": 1024}
    assert dict(choice.config)["XBLOCK"] == config.kwargs["XBLOCK"]


def test_the_text_is_kept_without_what_differs_between_runs(inductor):
    with opforge.record() as session:
        for number, about in enumerate((1024, 8192)):
            name = f"triton_poi_fused_add_{number}"
            text = texts.pointwise(name, about=about, more=f"'num_load': {number}, ")
            inductor(name, text, "in_ptr0", "out_ptr0", "xnumel").run(X, X, 8, stream=0)
    (found,) = session.recording.kernels
    assert "triton_heuristics.pointwise" not in found.text
    assert "set_driver_to_gpu" not in found.text
    assert found.text.startswith("import triton\n")
    assert "@triton.jit\ndef triton_poi_fused_add(" in found.text
    assert [dict(choice.key) for choice in found.choices] == [{"x": 1024}, {"x": 8192}]


def test_kernels_of_user_code_with_what_they_call(inductor):
    with opforge.record() as session:
        names = ("x_ptr", "out_ptr", "factor", "n", "_grid_0", "_grid_1", "_grid_2")
        inductor("scale_kernel", texts.scale(), *names).run(X, X, 2.0, 1000, 8, 1, 1, stream=0)
    (found,) = session.recording.kernels
    (variant,) = found.variants
    assert dict(variant.types)["factor"] == "fp64"
    assert dict(variant.constants) == {"BLOCK": 128}
    assert variant.sizes == ({"n": 1000},)
    assert "def scaled(x, f):" in found.text


def test_graphs_with_the_same_kernel_are_counted_together(inductor):
    with opforge.record() as session:
        for _ in range(2):
            kernel = inductor("k", texts.pointwise("k"), "in_ptr0", "out_ptr0", "xnumel")
            for _ in range(3):
                kernel.run(X, X, 8, stream=0)
            kernel.run(X, X, 8, stream=0, benchmark_run=True)
    (found,) = session.recording.kernels
    assert found.launches == 6


def test_a_recording_can_be_written_read_and_listed(inductor, tmp_path):
    with opforge.record(tmp_path / "launches.json") as session:
        inductor("k", texts.pointwise("k"), "in_ptr0", "out_ptr0", "xnumel").run(X, X, 8, stream=0)
    assert read(tmp_path / "launches.json") == session.recording
    shown = " ".join(listing(session.recording).split())
    assert "torch.compile:k in_ptr0: *fp32 (16), out_ptr0: *fp32 (16)," in shown
    assert "printed by Inductor" in shown
    assert "for about x=1024 on sm_80: XBLOCK=" in shown


def test_templates_are_told_apart_by_what_they_call(inductor):
    """They say neither which file they are in nor, by the kernel alone, which text they have."""
    names = ("arg_Q", "out_ptr0", "_grid_0", "_grid_1", "_grid_2")
    name = "triton_tem_fused_flex_attention_0"
    with opforge.record() as session:
        for score in ("s + 1", "s * 2"):
            text = texts.template(name, score=score)
            inductor(name, text, *names).run(X, X, 4, 1, 1, stream=0)
    recording = session.recording
    assert not recording.missed
    assert {kernel.name for kernel in recording.kernels} == {"triton_tem_fused_flex_attention"}
    assert ["s + 1" in kernel.text for kernel in recording.kernels] == [True, False]
    assert ["s * 2" in kernel.text for kernel in recording.kernels] == [False, True]


def test_what_a_worker_of_inductors_compiles_is_recorded(monkeypatch, inductor):
    name, text = "triton_tem_fused_flex_attention_0", texts.template()
    names = ("arg_Q", "out_ptr0", "_grid_0", "_grid_1", "_grid_2")
    tuner = texts.launching(_compat.inductor_kernels.autotuner(name, text), names)
    future = LambdaFuture(lambda: tuner)
    monkeypatch.setattr(AsyncCompile, "triton", lambda self, name, text, device_str="cuda": future)
    with opforge.record() as session:
        AsyncCompile().triton(name, text).result().run(X, X, 4, 1, 1, stream=0)
    (kernel,) = session.recording.kernels
    assert "s + 1" in kernel.text


def test_a_text_from_before_the_recording_is_read_from_inductors_cache(inductor):
    kernel = inductor("k", texts.pointwise("k", added="3.0"), "in_ptr0", "out_ptr0", "xnumel")
    other = inductor("l", texts.pointwise("l"), "in_ptr0", "out_ptr0", "xnumel")
    other.filename = "nowhere"
    with opforge.record() as session:
        kernel.run(X, X, 8, stream=0)
        other.run(X, X, 8, stream=0)
    assert "tmp0 + 3.0" in session.recording.kernels[0].text
    (missed,) = session.recording.missed
    assert missed.kernel == "l"
    assert "its text is not in Inductor's cache" in missed.reason


def test_what_cannot_be_built_ahead_is_listed_with_its_reason(inductor, monkeypatch):
    names = ("in_ptr0", "out_ptr0", "xnumel")
    with opforge.record() as session:
        monkeypatch.setattr(triton.knobs.nvidia, "libdevice_path", "/elsewhere.bc")
        inductor("l", texts.pointwise("l"), *names).run(X, X, 8, stream=0)
    assert session.recording.kernels == ()
    assert [(missed.kernel, missed.reason) for missed in session.recording.missed] == [
        ("l", "it is compiled with a libdevice other than Triton's"),
    ]


def test_everything_is_inductors_again_afterwards(inductor):
    before = CachingAutotuner.run, AsyncCompile.triton
    with opforge.record():
        assert CachingAutotuner.run is not before[0]
        assert AsyncCompile.triton is not before[1]
    assert (CachingAutotuner.run, AsyncCompile.triton) == before
