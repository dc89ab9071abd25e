"""What capturing leaves alone: globals, other threads, launches outside of a trace."""

import importlib.util
import operator
import threading
import warnings

import pytest
import torch
import triton
import triton.language as tl
from torch._library.triton import triton_ops_to_kernels
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize

import opforge
from opforge.errors import OpforgeWarning
from support import launching
from support.launching import biased, double, graph_of, kernel_names, launches, targets

Tensor = torch.Tensor
x = torch.ones(8, 128)
HOOKED = triton.autotune(launching.CONFIGS, key=["n"], pre_hook=lambda args, **_: None)(double)


def opforge_warnings(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if issubclass(w.category, OpforgeWarning)]


def fetched(x: Tensor, which: str) -> Tensor:
    out, again = torch.empty_like(x), torch.empty_like(x)
    double[(8,)](x, out, x.numel(), BLOCK=128)
    operator.attrgetter(which)(launching)[(8,)](out, None, again, x.numel(), BLOCK=128)
    return again


def only_fetched(x: Tensor, which: str) -> Tensor:
    out = torch.empty_like(x)
    operator.attrgetter(which)(launching)[(8,)](x, out, x.numel(), BLOCK=128)
    return out


def test_a_kernel_that_reading_missed_is_reported_once_and_is_still_a_node(op_name):
    name = op_name()
    op = opforge.op(fetched, name=name)
    assert biased not in triton_ops_to_kernels[name]
    graphs = []
    told = opforge_warnings(lambda: graphs.extend(graph_of(op, x, "biased") for _ in range(3)))
    assert [kernel_names(g) for g in graphs] == [["double", "biased"]] * 3
    [text] = told
    line = biased.fn.__code__.co_firstlineno
    assert text.startswith(f"{name} ({__file__}:{fetched.__code__.co_firstlineno}): ")
    assert f"kernel biased ({launching.__file__}:{line}) was launched while tracing" in text
    assert "reading the body did not find it" in text
    assert text.endswith("Name it: kernels=[biased]")
    found = {ref.name: ref.found_via for ref in opforge.info(op).kernels}
    assert found["biased"] == "seen while tracing" != found["double"]
    assert {biased, double} <= {*triton_ops_to_kernels[name]}
    assert "launched by a trace: seen while tracing" in opforge.explain(op)


def test_naming_the_kernel_ends_the_warning(op_name):
    op = opforge.op(fetched, name=op_name(), kernels=[biased])
    assert opforge_warnings(lambda: graph_of(op, x, "biased")) == []


def test_an_op_whose_only_kernel_was_missed_is_opaque_and_says_so(op_name):
    op = opforge.op(only_fetched, name=op_name())
    assert opforge.info(op).mode == "custom_op"
    graphs = []
    told = opforge_warnings(lambda: graphs.append(graph_of(op, x, "double")))
    [text] = told
    assert "so the op is opaque to the compiler" in text
    assert "kernels=[double] makes it transparent" in text
    assert "mode='custom_op' keeps it opaque" in text
    assert targets(graphs[0]) == [op]


TABLE = {"double": double, "hooked": HOOKED}


def picked(x: Tensor, which: str) -> Tensor:
    out = torch.empty_like(x)
    pick = TABLE.get(which)
    pick[(8,)](x, out, x.numel(), BLOCK=128)
    return out


def test_a_trace_tells_which_of_the_kernels_that_are_only_mentioned_is_launched(op_name):
    op = opforge.op(picked, name=op_name())
    assert opforge.info(op).mode == "triton_op"
    assert "it may launch double" in opforge.info(op).reason
    assert "no trace has launched it yet" in opforge.explain(op)
    assert kernel_names(graph_of(op, x, "double")) == ["double"]
    grades = {id(ref.kernel): ref.grade for ref in opforge.info(op).kernels}
    assert grades == {id(double): "traced", id(HOOKED): "mentioned"}


def test_an_op_whose_trace_launches_what_no_graph_can_hold_becomes_opaque(op_name):
    op = opforge.op(picked, name=op_name())
    graphs = []
    [text] = opforge_warnings(lambda: graphs.extend(graph_of(op, x, "hooked") for _ in range(2)))
    assert "opaque to the compiler from now on" in text
    assert "its autotuner has a pre_hook" in text
    assert [targets(graph) for graph in graphs] == [[op]] * 2
    assert opforge.info(op).mode == "custom_op"


def test_an_op_that_is_opaque_on_request_does_not_warn_about_its_launches(op_name):
    op = opforge.op(only_fetched, name=op_name(), mode="custom_op")
    assert opforge_warnings(lambda: graph_of(op, x, "double")) == []


def two_of_one(x: Tensor, which: str) -> Tensor:
    out, again = torch.empty_like(x), torch.empty_like(x)
    double[(8,)](x, out, x.numel(), BLOCK=128)
    operator.attrgetter(which)(launching)[(8,)](out, again, x.numel())
    return again


def test_a_missed_autotuner_counts_even_if_its_function_was_found(op_name):
    name = op_name()
    op = opforge.op(two_of_one, name=name)
    graphs = []
    told = opforge_warnings(lambda: graphs.append(graph_of(op, x, "tuned")))
    assert [launch.kernel for launch in launches(graphs[0])] == [double, launching.tuned]
    assert len(told) == 1
    assert launching.tuned in triton_ops_to_kernels[name]


REBOUND = """
import torch, triton, opforge
from support.launching import double, tuned_other

kernel = double

@opforge.op({name!r})
def op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel[(8,)](x, out, x.numel(), BLOCK=128)
    return out
"""


@triton.jit
def triple(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 3, mask=offs < n)


def test_a_global_rebound_to_another_kernel_is_used_at_the_next_trace(op_name, tmp_path):
    name = op_name()
    path = tmp_path / "rebound.py"
    path.write_text(REBOUND.format(name=name))
    spec = importlib.util.spec_from_file_location("rebound", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert kernel_names(graph_of(module.op, x)) == ["double"]
    assert triple not in triton_ops_to_kernels[name]
    module.kernel = triple
    assert kernel_names(graph_of(module.op, x)) == ["triple"]
    assert [ref.kernel for ref in opforge.info(module.op).kernels] == [triple]
    assert module.kernel is triple
    assert triple in triton_ops_to_kernels[name]


class Recorder(triton.KernelInterface):
    """A kernel that notes its launches instead of running."""

    def __init__(self, fn):
        self.fn = fn
        self.arg_names = fn.arg_names
        self.calls = []

    def run(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        tracing = opforge._compat.launches.current() is not None
        return self.fn.run(*args, **kwargs) if tracing else "launched"


recorder = Recorder(double)


def launch_recorder(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    recorder[(8,)](x, out, x.numel(), BLOCK=128)
    return out


@pytest.fixture
def recorded():
    recorder.calls.clear()
    return recorder.calls


def test_a_launch_outside_a_trace_is_unchanged(op_name, recorded):
    op = opforge.op(launch_recorder, name=op_name(), kernels=[double])
    assert kernel_names(graph_of(op, x)) == ["double"]
    assert recorded == []
    assert recorder[(8,)](1, 2, n=3) == "launched"
    assert recorder.run(1, grid=(2,), warmup=False) == "launched"
    assert recorded == [
        ((1, 2), {"n": 3, "grid": (8,), "warmup": False}),
        ((1,), {"grid": (2,), "warmup": False}),
    ]


def wrapped_by(cls, name):
    wrapper = cls(double)

    @opforge.op(name, kernels=[double])
    def op(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        wrapper[(8,)](x, out, x.numel(), BLOCK=128)
        return out

    return op


def test_what_a_wrapper_refuses_is_refused_while_tracing_too(op_name):
    class Strict(Recorder):
        def run(self, *args, **kwargs):
            raise ValueError("rows must be a multiple of 16")

    with pytest.raises(ValueError, match="rows must be a multiple of 16"):
        graph_of(wrapped_by(Strict, op_name()), x)


def test_a_wrapper_that_launches_unseen_is_looked_through_with_a_warning(op_name):
    class Hidden(Recorder):
        def run(self, *args, **kwargs):
            return None

    graphs = []
    op = wrapped_by(Hidden, op_name())
    (told,) = opforge_warnings(lambda: graphs.append(graph_of(op, x)))
    assert "it made no launch that can be seen" in told
    assert kernel_names(graphs[0]) == ["double"]


@pytest.mark.parametrize("when", ["before the launch", "after the launch"])
def test_a_wrapper_that_needs_a_real_launch_is_looked_through_with_one_warning(op_name, when):
    class Keeping(Recorder):
        def run(self, *args, **kwargs):
            if when == "before the launch":
                args[0].sum().item()
            self.calls.append(self.fn.run(*args, **kwargs).metadata)

    op = wrapped_by(Keeping, op_name())
    graphs = []
    (told,) = opforge_warnings(lambda: graphs.append(graph_of(op, x)))
    assert "Keeping, which wraps kernel double" in told
    assert "cannot run while tracing" in told
    assert kernel_names(graphs[0]) == ["double"]


def test_an_error_in_a_body_ends_the_capture(op_name, recorded):
    def body(x: Tensor) -> Tensor:
        recorder[(8,)](x, x.new_empty(8, 128), x.numel(), BLOCK=128)
        raise LookupError("in the body")

    op = opforge.op(body, name=op_name(), kernels=[double])
    with pytest.raises(LookupError, match="in the body"):
        graph_of(op, x)
    assert recorded == []
    recorder[(8,)](1)
    assert len(recorded) == 1


def test_a_thread_that_launches_while_others_trace_is_not_captured(op_name, recorded):
    inside, done = threading.Barrier(3), threading.Event()
    shapes, errors = [], []

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        inside.wait(30)
        done.wait(30)
        recorder[(8,)](x, out, x.numel(), BLOCK=128)
        return out

    def trace(op, make):
        try:
            with opforge.target("sm_90"), FakeTensorMode():
                fake = torch.empty(8, 128, device="cuda")
                shapes.append(tuple(make(op)(fake).shape))
        except BaseException as error:  # noqa: BLE001  # the test below sees it
            errors.append(error)

    ops = [opforge.op(body, name=op_name(), kernels=[double], fake=["x"]) for _ in range(2)]
    threads = [
        threading.Thread(target=trace, args=(ops[0], dispatch_functionalize)),
        threading.Thread(target=trace, args=(ops[1], dispatch_functionalize)),
    ]
    for thread in threads:
        thread.start()
    inside.wait(30)
    assert recorder[(4,)](1, 2) == "launched"
    assert opforge._compat.launches.current() is None
    done.set()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert shapes == [(8, 128)] * 2
    assert recorded == [((1, 2), {"grid": (4,), "warmup": False})]
