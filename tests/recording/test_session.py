"""What a recording of this process holds, on fake tensors and through a stand-in for the JIT."""

import threading
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses import FakeTensorMode
from triton.compiler.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

import opforge
from opforge._compat import kernel_hash, patches
from opforge.errors import NeedsGpu
from opforge.recording.model import read
from support.archs import SM_90
from support.own_autotuner import own_autotuner


@triton.jit
def helper(x):
    return x + 1


@triton.jit
def add(x_ptr, y_ptr, n, bias, BLOCK: tl.constexpr, ACT: tl.constexpr = None):  # noqa: PLR0917
    pass


@triton.jit(do_not_specialize=["n"])
def plain(x_ptr, n, scale, flag):
    pass


@triton.autotune([triton.Config({"BLOCK": 128}, num_warps=2), triton.Config({"BLOCK": 64})], ["n"])
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def tuned(x_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    pass


@pytest.fixture
def x():
    with opforge.target("sm_90"), FakeTensorMode():
        yield torch.empty(1000, device="cuda")


def variants_of(session):
    return [variant for kernel in session.recording.kernels for variant in kernel.variants]


def test_types_constants_options_and_classes_of_numbers(x):
    with opforge.record() as session:
        add[(1,)](x, x[1:].half(), 1024, None, BLOCK=64, num_warps=8)
        # It starts inside its storage.
        add[lambda meta: (1,)](x[1:], x, 1, 2**40, 64, helper)
    first, second = variants_of(session)
    assert dict(first.types) == {"x_ptr": "*fp32", "y_ptr": "*fp16", "n": "i32"}
    assert dict(first.constants) == {"bias": None, "BLOCK": 64, "ACT": None}
    assert (first.ones, first.divisible) == ((), ("x_ptr", "y_ptr", "n"))
    assert (dict(first.options), first.arch) == ({"num_warps": 8}, "sm_90")
    assert first.first.startswith(__file__)
    assert first.sizes == ({"n": 1024},)
    assert dict(second.types)["bias"] == "i64"
    assert (second.ones, second.divisible) == (("n",), ("y_ptr", "bias"))
    named = {"function": f"{__name__}:helper", "source": kernel_hash.digest(helper)}
    assert dict(second.constants)["ACT"] == named


def test_what_is_not_specialized_stays_general(x):
    with opforge.record() as session:
        plain[(1,)](x, 1, 0.5, True)
        plain[(1,)](x, 16, 1.5, False)
    (variant,) = variants_of(session)
    assert dict(variant.types) == {"x_ptr": "*fp32", "n": "i32", "scale": "fp32", "flag": "u1"}
    assert (variant.ones, variant.divisible, variant.launches) == ((), ("x_ptr",), 2)
    assert variant.sizes == ({"n": 1}, {"n": 16})


@pytest.mark.parametrize("kind", [None, own_autotuner], ids=["triton", "own"])
def test_an_autotuner_without_a_gpu_takes_its_first_configuration_and_says_so(x, kind):
    def needs_a_gpu(call, quantiles):
        return call()

    with opforge.record() as session:
        tuner = tuned if kind is None else kind(tuned)
        if kind is not None:
            vars(tuner)["do_bench"] = needs_a_gpu
        tuner[(1,)](x, 256)
    (variant,) = variants_of(session)
    assert (dict(variant.constants), variant.launches) == ({"BLOCK": 128, "EVEN": True}, 1)
    assert dict(variant.options)["num_warps"] == 2
    (missed,) = session.recording.missed
    assert missed.kernel == "tuned"
    assert "no GPU to measure on, so only its first configuration was recorded" in missed.reason
    assert not tuned.cache


class Pair(NamedTuple):
    first: object
    second: object


def test_what_json_cannot_hold_is_listed_once_with_its_reason(x):
    with opforge.record() as session:
        for _ in range(3):
            add[(1,)](x, x, 5, None, BLOCK=64, ACT=len)
            add[(1,)](x, (), 5, None, BLOCK=64)
            add[(1,)](x, Pair(x, 1), 5, None, BLOCK=64)
    assert variants_of(session) == []
    assert [missed.reason for missed in session.recording.missed] == [
        "ACT is a builtins.builtin_function_or_method, which JSON cannot hold",
        "y_ptr is an empty tuple",
        "y_ptr is a NamedTuple",
    ]


def test_a_file_is_written_and_everything_is_triton_again(x, tmp_path):
    before = vars(CompiledKernel)["run"], vars(Autotuner)["_bench"], "cache" in vars(Autotuner)
    with opforge.record(tmp_path / "launches.json") as session:
        assert vars(CompiledKernel)["run"] is not before[0]
        add[(1,)](x, x, 5, None, BLOCK=64)
    assert before == (
        vars(CompiledKernel)["run"], vars(Autotuner)["_bench"], "cache" in vars(Autotuner)
    )  # fmt: skip
    assert read(tmp_path / "launches.json") == session.recording
    assert repr(session) == "<recording: 1 kernel, 1 variant, 1 launch of 1 process>"


class Compiled:
    """What a launch returns: Triton's kernel, as far as a recorder reads it."""

    def __init__(self, fn, args, kwargs):
        found = fn.create_binder()
        bound, specialization, options = found[4](*args, **kwargs)
        _, signature, constants, attrs = fn._pack_args(
            found[3], kwargs, bound, specialization, options
        )
        self.src = SimpleNamespace(fn=fn, signature=signature, constants=constants, attrs=attrs)
        self.metadata = SimpleNamespace(target=found[2])

    @property
    def run(self):
        return lambda: None

    def __getitem__(self, grid):
        return lambda *args: self.run()


@pytest.fixture
def jit(monkeypatch):
    """Triton's JIT where a launch works: it compiles once per set of arguments, and counts."""
    kernels = {}

    def run(self, *args, grid, warmup, **kwargs):
        with opforge.target("sm_90"):
            made = Compiled(self, args, kwargs)
        kernel = kernels.setdefault(repr((self, vars(made.src), sorted(kwargs))), made)
        if not warmup:
            kernel.run()
        return kernel

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setitem(vars(patches.LAUNCHES), "_found", Compiled)
    monkeypatch.setattr("opforge._compat.compiled.current_arch", lambda: SM_90)
    return kernels


def test_launches_of_all_threads_are_counted(jit):
    x = torch.empty(1000)

    def launch():
        for n in range(100):
            add[(1,)](x, x, 16 * (n + 1), None, BLOCK=64)

    with opforge.record() as session:
        threads = [threading.Thread(target=launch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (variant,) = variants_of(session)
    assert variant.launches == 400
    assert 1 < len(variant.sizes) <= 8


def test_options_are_those_that_the_caller_gives(jit):
    x = torch.empty(1000)
    with opforge.record() as session:
        add[(1,)](x, x, 16, None, BLOCK=64, num_warps=8)
        add[(1,)](x, x, 16, None, BLOCK=64, maxnreg=32, debug=True)
    assert [dict(variant.options) for variant in variants_of(session)] == [
        {"num_warps": 8},
        {"debug": True, "maxnreg": 32},
    ]


@triton.jit
def staged(x_ptr, num_stages: tl.constexpr, num_warps: tl.constexpr = 2):
    pass


def test_a_parameter_that_a_launch_names_is_an_option_too(jit):
    """As Triton has it: `staged[grid](x, num_stages=5)` also sets the option, a position not."""
    x = torch.empty(1000)
    with opforge.record() as session:
        staged[(1,)](x, 4, num_warps=8)
        staged[(1,)](x, num_stages=5)
    first, second = variants_of(session)
    assert dict(first.constants) == {"num_stages": 4, "num_warps": 8}
    assert dict(first.options) == {"num_warps": 8}
    assert dict(second.options) == {"num_stages": 5}


@pytest.mark.parametrize("asks", ["torch._inductor.runtime.triton_heuristics", "package"])
def test_a_launch_past_the_jit_is_listed_but_not_what_inductor_asks_for(jit, asks):
    """Inductor launches in its own way, and packages call what launches themselves."""
    with opforge.target("sm_90"):
        compiled = Compiled(add, (torch.empty(1), torch.empty(1), 16, None, 64), {})
    with opforge.record() as session:
        for _ in range(2):
            exec("compiled.run()", {"__name__": asks, "compiled": compiled})
    assert session.recording.kernels == ()
    reasons = [missed.reason for missed in session.recording.missed]
    assert len(reasons) == (asks == "package")
    assert all("is launched past Triton's JIT" in reason for reason in reasons)


@pytest.mark.parametrize(("kind", "n"), [(None, 256), (own_autotuner, 2)], ids=["triton", "own"])
def test_a_choice_is_recorded_and_what_was_measured_for_it_is_not(jit, monkeypatch, kind, n):
    clock = iter([2.0, 1.0])
    with opforge.record() as session:
        tuner = tuned if kind is None else kind(tuned)
        bench = lambda call, quantiles: [call(), next(clock)][1:] * 3  # noqa: E731
        monkeypatch.setitem(vars(tuner), "do_bench", bench)
        for _ in range(3):
            tuner[(1,)](torch.empty(1000), 256)
    (kernel,) = session.recording.kernels
    (variant,), (choice,) = kernel.variants, kernel.choices
    assert (dict(variant.constants)["BLOCK"], variant.launches) == (64, 3)
    assert (dict(choice.key), choice.arch) == ({"n": n}, "sm_90")
    assert dict(choice.config)["BLOCK"] == 64
    tuned.cache.clear()


def test_what_a_launch_without_a_gpu_returned_can_be_launched(x):
    with opforge.record() as session:
        compiled = add[(1,)](x, x, 16, None, BLOCK=64)
        compiled[(1,)](x, x, 16, None, 64, None)
    (variant,) = variants_of(session)
    assert variant.launches == 2


def test_reading_a_fake_tensor_names_the_line_and_the_way_out(x):
    with pytest.raises(NeedsGpu) as caught, opforge.record(), opforge.target("sm_90"):
        x.sum().item()
    assert f"at {__file__}:" in caught.value.found
    assert "record on a GPU" in caught.value.fix
