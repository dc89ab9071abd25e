"""Calls without the dispatcher: after many, all is as if each had gone through it."""

import contextlib
import dataclasses
import gc
import threading
import warnings
import weakref

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

import opforge
from opforge import _compat
from opforge.errors import BuildFailed, MissingBackward
from opforge.registration import direct
from opforge.registry import registry

Tensor = torch.Tensor
X, Y = torch.ones(3), torch.full((3,), 2.0)


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


def backward(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * y, grad * x, None


WITH = {"backward": backward, "setup_context": setup_context}
KINDS = pytest.mark.parametrize("options", [{}, WITH], ids=["without backward", "with backward"])


def scaled(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    return x * y * scale


def guards(op):
    return registry.get(op).registration.generated.namespace.get("_of_guards", ())


def warm(op, *args, times=20):
    for _ in range(times):
        op(*args)
    return op


@contextlib.contextmanager
def dispatched(op):
    """How many calls go through the dispatcher meanwhile."""
    namespace, seen = registry.get(op).registration.generated.namespace, []
    real = namespace["_of_op"]

    def counted(*args, **kwargs):
        seen.append(args)
        return real(*args, **kwargs)

    namespace["_of_op"] = counted
    try:
        yield seen
    finally:
        namespace["_of_op"] = real


@pytest.fixture(params=[{}, WITH], ids=["without backward", "with backward"])
def op(request, op_name):
    return warm(opforge.op(scaled, name=op_name(), mode="custom_op", **request.param), X, Y)


def test_calls_of_plain_tensors_do_not_reach_the_dispatcher(op):
    with dispatched(op) as seen:
        assert op(X, Y, 2.0).tolist() == [4.0] * 3
        assert op(X, Y).tolist() == [2.0] * 3
        assert op(x=X, scale=2.0, y=Y).tolist() == [4.0] * 3
    assert seen == []


def test_other_dtypes_ranks_and_parameters_are_learnt(op):
    others = [
        (X.double(), Y.double()),
        (X[None], Y[None]),
        (torch.nn.Parameter(X.clone()), Y),
    ]
    for x, y in others:
        warm(op, x, y, times=3)
        with dispatched(op) as seen:
            assert op(x, y).flatten().tolist() == [2.0] * 3
        assert seen == []


def test_more_kinds_of_calls_than_there_are_guards_go_to_the_dispatcher(op):
    for rank in range(1, 15):
        x, y = X.view([1] * rank + [3]), Y.view([1] * rank + [3])
        assert warm(op, x, y)(x, y).flatten().tolist() == [2.0] * 3
    assert len(guards(op)) == direct._MOST


def test_a_call_that_no_guard_is_for_is_examined_seldom(op, monkeypatch):
    registration, examined = registry.get(op).registration, []
    monkeypatch.setattr(registration.direct, "_learn", examined.append)
    warm(op, X, Y[:1].to_sparse().to_dense().expand(3), times=1)
    warm(op, X, X, times=640)
    assert len(examined) < 30


@pytest.mark.parametrize(
    ("args", "kwargs", "error"),
    [
        ((), {}, "missing value for argument 'x'"),
        ((X,), {}, "missing value for argument 'y'"),
        ((X, Y, 1.0, 2.0), {}, "expected at most 3 argument"),
        ((X, Y), {"other": 1}, "Unknown keyword argument 'other'"),
        ((X, Y), {"y": Y}, "Argument 'y' specified both"),
        ((X, Y, "text"), {}, "Expected a value of type 'float' for argument 'scale'"),
        ((X, 3), {}, "Expected a value of type 'Tensor' for argument 'y'"),
    ],
)
def test_what_torch_refuses_it_refuses_in_its_words(op, op_name, args, kwargs, error):
    name = registry.get(op).name
    with pytest.raises((RuntimeError, TypeError)) as direct_error:
        op(*args, **kwargs)
    with pytest.raises((RuntimeError, TypeError)) as torchs:
        _compat.patches.original(op, "_op")(*args, **kwargs)
    assert str(direct_error.value) == str(torchs.value)
    assert error in str(direct_error.value)
    assert name in str(direct_error.value)


def test_arguments_that_torch_converts_are_converted(op_name):
    seen = []

    def body(  # noqa: PLR0917
        x: Tensor, f: float, i: int, b: bool, s: str, g: float | None = None
    ) -> Tensor:
        seen.append((f, i, b, s, g))
        return x + 0

    op = opforge.op(body, name=op_name(), mode="custom_op")
    warm(op, X, 1.0, 2, True, "text")
    with dispatched(op) as through:
        op(X, 1.5, 3, False, "other", 2.5)
        op(X, 1.5, 3, False, "other", None)
    assert through == []
    op(X, 2, 3, False, "other", 1)
    assert [type(v) for v in seen[-1]] == [float, int, bool, str, float]
    with pytest.raises(RuntimeError, match="argument 'i'"):
        op(X, 1.0, 2**63, True, "text")
    with pytest.raises(RuntimeError, match="argument 's'"):
        op(X, 1.0, 2, True, "\ud800")


def test_numbers_are_returned_as_torch_returns_them(op_name):
    results = [None]

    def body(x: Tensor) -> tuple[Tensor, int, float]:
        return results[0]

    op = opforge.op(body, name=op_name(), fake=lambda x: (x + 0, 1, 1.0))
    for given in [(X + 0, 3, 1.5), (X + 0, 3, 2), [X + 0, 3, 2]]:
        results[0] = given
        out = warm(op, X)(X)
        assert type(out) is tuple
        assert [type(v) for v in out] == [Tensor, int, float]
        assert out[1:] == (int(given[1]), float(given[2]))


def test_optional_tensors_may_be_there_or_not(op_name):
    def body(x: Tensor, b: Tensor | None = None, c: Tensor | None = None) -> Tensor:
        return x + (0 if b is None else b) + (0 if c is None else 10 * c)

    op = opforge.op(body, name=op_name(), mode="custom_op")
    expected = {(X,): 1.0, (X, Y): 3.0, (X, None, Y): 21.0, (X, Y, Y + 0): 23.0}
    for _ in range(3):
        for args, value in expected.items():
            assert warm(op, *args)(*args).tolist() == [value] * 3
    with dispatched(op) as seen:
        for args, value in expected.items():
            assert op(*args).tolist() == [value] * 3
    assert seen == []


def test_no_tensor_is_taken_for_one_that_is_left_out(op_name):
    def body(x: Tensor, b: Tensor | None = None) -> Tensor:
        return x + 0

    op = warm(opforge.op(body, name=op_name(), mode="custom_op"), torch.empty(0))
    with dispatched(op) as seen:
        op(torch.empty(0), torch.empty(0))
    assert len(seen) == 1


class SeeingFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_a_mode_of_functions_sees_the_op(op):
    with SeeingFunctions() as seeing:
        assert op(X, Y).tolist() == [2.0] * 3
    assert op in seeing.seen


@pytest.mark.parametrize("kineto", [False, True])
def test_a_profiler_sees_the_op(op, kineto):
    with torch.autograd.profiler.profile(use_kineto=kineto) as profile:
        op(X, Y)
    assert registry.get(op).name in {event.name for event in profile.function_events}


def test_fakes_and_traces_see_the_op(op):
    from torch._subclasses import FakeTensorMode  # noqa: PLC0415

    with FakeTensorMode() as mode:
        out = op(mode.from_tensor(X), mode.from_tensor(Y))
        assert type(out).__name__ == "FakeTensor"
        assert type(op(torch.empty(3), torch.empty(3))).__name__ == "FakeTensor"
    graph = make_fx(lambda x, y: op(x, y) + 1)(X, Y)
    assert op in {node.target for node in graph.graph.nodes}
    for strict in (False, True):
        exported = torch.export.export(_module(op), (X, Y), strict=strict)
        assert op in {node.target for node in exported.graph.nodes}


def _module(call):
    class Module(torch.nn.Module):
        def forward(self, x, y):
            return call(x, y)

    return Module()


@pytest.mark.parametrize("first", ["plain", "followed", "disabled", "inference"])
def test_autograd_follows_what_it_should(op_name, first):
    op = opforge.op(scaled, name=op_name(), mode="custom_op", **WITH)
    weight = torch.nn.Parameter(Y.clone())

    def plain():
        assert not op(X, Y).requires_grad

    def followed():
        out = op(X, weight, 3.0)
        (grad,) = torch.autograd.grad(out.sum(), weight)
        assert grad.tolist() == [1.0] * 3

    def disabled():
        with torch.no_grad():
            assert not op(X, weight).requires_grad

    def inference():
        with torch.inference_mode():
            assert op(X, weight).is_inference()
            assert op(X + 0, Y + 0).is_inference()

    calls = {"plain": plain, "followed": followed, "disabled": disabled, "inference": inference}
    for call in (calls.pop(first), *calls.values()) * 5:
        call()
    with dispatched(op) as seen:
        plain()
        followed()
        disabled()
        inference()
    assert seen == []


def test_going_back_through_an_op_without_a_backward_raises_after_other_calls(op_name):
    op = opforge.op(scaled, name=op_name(), mode="custom_op")
    weight = torch.nn.Parameter(Y.clone())
    with torch.no_grad():
        warm(op, X, weight)
    with dispatched(op) as seen, pytest.raises(opforge.errors.MissingBackward):
        op(X, weight).sum().backward()
    assert seen == []


def test_autograd_that_is_left_out_stays_so(op_name):
    op = opforge.op(scaled, name=op_name(), mode="custom_op", **WITH)
    weight = torch.nn.Parameter(Y.clone())
    for _ in range(5):
        assert op(X, weight).requires_grad
        with torch._C._AutoDispatchBelowAutograd():
            assert not op(X, weight).grad_fn


def test_tangents_are_refused(op):
    from torch.autograd import forward_ad  # noqa: PLC0415

    with forward_ad.dual_level(), pytest.raises(MissingBackward):
        op(forward_ad.make_dual(X, Y), Y)


def test_the_autocast_rule_is_applied(op_name):
    dtypes = []

    def body(x: Tensor, y: Tensor) -> Tensor:
        dtypes.append(x.dtype)
        return x * y

    op = opforge.op(body, name=op_name(), autocast={"cpu": torch.bfloat16})
    for _ in range(3):
        warm(op, X, Y)
        assert dtypes[-1] is torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            warm(op, X, Y)
        assert dtypes[-1] is torch.bfloat16


def test_autocast_without_a_rule_changes_nothing(op):
    with torch.autocast("cpu", torch.bfloat16):
        warm(op, X, Y)
        with dispatched(op) as seen:
            assert op(X, Y).dtype is torch.float32
    assert seen == []


@KINDS
def test_kernels_of_others_come_and_go(op_name, options):
    name = op_name()
    op = warm(opforge.op(scaled, name=name, mode="custom_op", **options), X, Y)
    namespace, short = name.split("::")
    for key in ["CPU", "AutogradCPU", "Autograd", "BackendSelect"] * 2:
        library = torch.library.Library(namespace, "FRAGMENT")
        with warnings.catch_warnings():
            # torch says that it takes the place of the op's own.
            warnings.simplefilter("ignore")
            library.impl(short, lambda x, y, scale=1.0: x + 100, key)
        assert op(X, Y).tolist() == [101.0] * 3
        library._destroy()
        assert op(X, Y).tolist() == [2.0] * 3


def test_a_backward_that_torch_is_given_by_name_counts(op_name):
    name = op_name()
    op = opforge.op(scaled, name=name, mode="custom_op")
    x = X.clone().requires_grad_()
    warm(op, x, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.register_autograd(name, backward, setup_context=setup_context)
    assert torch.autograd.grad(op(x, Y).sum(), x)[0].tolist() == [2.0] * 3


def test_sparse_and_meta_tensors_and_one_tensor_twice_go_to_the_dispatcher(op):
    with dispatched(op) as seen:
        assert op(X.to_sparse(), Y).to_dense().tolist() == [2.0] * 3
        assert op(X.to("meta"), Y.to("meta")).device.type == "meta"
        assert op(X, X).tolist() == [1.0] * 3
    assert len(seen) == 3
    assert len(guards(op)) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_does_not_end_the_process(op):
    """torch's guards call what throws for one, where nothing catches it."""
    nested = torch.nested.nested_tensor([X, X])
    # torch has no kernel for one where no kernel for autograd leads to the body.
    with dispatched(op) as seen, contextlib.suppress(NotImplementedError):
        op(nested, Y)
    assert len(seen) == 1


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
def test_writes_are_counted_as_the_dispatcher_counts_them(op_name, mode):
    def write(x: Tensor, y: Tensor) -> None:
        x.numpy()[:] = 7

    switch = {
        "grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode,
    }[mode]  # fmt: skip
    op = opforge.op(write, name=op_name(), mutates_args=["x"], mode="custom_op")
    x = torch.zeros(3)
    with switch():
        versions = []
        for _ in range(5):
            op(x, Y)
            versions.append(x._version)
        with dispatched(op) as seen:
            op(x, Y)
        assert seen == []
        inner = torch.zeros(3)
        warm(op, inner, Y)
    assert versions == [1, 2, 3, 4, 5]
    assert x._version == 6
    assert x.tolist() == [7.0] * 3


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 1.0
    name: str = "plain"


def test_ops_that_take_records_are_called_directly_too(op_name):
    def body(x: Tensor, cfg: Config) -> Tensor:
        return x * cfg.scale

    op = warm(opforge.op(body, name=op_name(), mode="custom_op"), X, Config())
    with dispatched(op) as seen:
        assert op(X, Config(2.0)).tolist() == [2.0] * 3
    assert seen == []


def test_guards_keep_no_tensors(op_name):
    op = opforge.op(scaled, name=op_name(), mode="custom_op", **WITH)
    x, y = torch.ones(3), torch.nn.Parameter(torch.ones(3))
    warm(op, x, y)
    assert guards(op)
    kept = [weakref.ref(x), weakref.ref(y)]
    del x, y
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_threads_with_modes_of_their_own_share_the_guards(op):
    wrong = []

    def call(switch, is_inference):
        for _ in range(300):
            with switch():
                out = op(X + 0, Y + 0)
            if out.is_inference() is not is_inference or out.tolist() != [2.0] * 3:
                wrong.append(out)

    threads = [
        threading.Thread(target=call, args=args)
        for args in [(torch.inference_mode, True), (torch.no_grad, False)] * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("lacking", ["module", "signature", "keys"])
def test_without_such_guards_calls_go_through_the_dispatcher(op_name, monkeypatch, lacking):
    class Guards:
        def __init__(self, *tensors):
            pass

    class Overlooks:
        def __init__(self, *tensors, **more):
            pass

        def check(self, *tensors):
            return True

    real = _compat.guards
    if lacking == "module":
        monkeypatch.delitem(vars(_compat), "guards")

        def raises(name):
            raise BuildFailed(name)

        monkeypatch.setattr(_compat, "__getattr__", raises)
    else:
        monkeypatch.setattr(real, "TensorGuards", Guards if lacking == "signature" else Overlooks)
    op = warm(opforge.op(scaled, name=op_name(), mode="custom_op", **WITH), X, Y)
    assert guards(op) == ()
    x = X.clone().requires_grad_()
    assert torch.autograd.grad(op(x, Y).sum(), x)[0].tolist() == [2.0] * 3
