"""Rules that an op gets after its decoration, as the object that `custom_op` returns."""

import dataclasses

import pytest
import torch

import opforge
from opforge.errors import BadOption, BadRegistration, BadSignature, WrongResult, WrongReturn

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Weights:
    weight: Tensor | None = None
    scale: float = 2.0


WEIGHTS = Weights()
CALLS = pytest.mark.parametrize("calls", [0, 20], ids=["before any call", "after many calls"])


def plain(name, **options):
    @opforge.op(name, **options)
    def op(x: Tensor, y: float = 3.0) -> Tensor:
        return x * y

    return op, (torch.ones(2),)


def flattened(name, **options):
    @opforge.op(name, **options)
    def op(x: Tensor, weights: Weights = WEIGHTS) -> Tensor:
        return x * weights.scale * (1 if weights.weight is None else weights.weight)

    return op, (torch.ones(2), Weights(torch.ones(2), 5.0))


FORMS = pytest.mark.parametrize("form", [plain, flattened], ids=["plain", "with a record"])


def compiled(op, backend="aot_eager"):
    """The op inside a function: torch.compile refuses an op that is alone."""
    torch.compiler.reset()

    def run(*args):
        return op(*args) * 1

    return torch.compile(run, backend=backend, fullgraph=True)


def called(form, op_name, calls=0, **options):
    op, args = form(op_name(), **options)
    for _ in range(calls):
        op(*args)
    return op, args


@CALLS
@FORMS
def test_a_kernel_for_a_device_runs_instead_of_the_body(op_name, form, calls):
    op, args = called(form, op_name, calls)
    seen = []

    @op.register_kernel("cpu")
    def on_cpu(x, second=None):
        seen.append(second)
        return x + 100

    assert op(*args).tolist() == [101.0, 101.0]
    assert op(args[0].clone().requires_grad_(), *args[1:]).tolist() == [101.0, 101.0]
    assert callable(on_cpu)
    if form is flattened:
        assert seen[0].scale == 5.0
        assert type(seen[0]) is Weights


@FORMS
def test_a_kernel_for_a_device_gets_the_defaults_of_the_function(op_name, form):
    op, args = called(form, op_name)
    seen = []
    op.register_kernel(["cpu", "cuda"], lambda x, second: seen.append(second) or x.clone())
    op(args[0])
    assert seen[0] == (3.0 if form is plain else WEIGHTS)


def test_a_kernel_for_another_device_leaves_the_body_on_this_one(op_name):
    op, args = called(plain, op_name)
    op.register_kernel("cuda")(lambda x, y: x + 100)
    assert op(*args).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
@FORMS
def test_a_kernel_for_a_device_runs_when_compiled(op_name, form, backend):
    op, args = called(form, op_name, 1)
    run = compiled(op, backend)
    run(*args)
    op.register_kernel("cpu", lambda x, second: x + 100)
    assert run(*args).tolist() == [101.0, 101.0]


def test_a_kernel_can_be_disabled_for_a_while(op_name):
    op, args = called(plain, op_name)
    op.register_kernel("cpu", lambda x, y: x + 100)
    with op.set_kernel_enabled("cpu", enabled=False):
        assert op(*args).tolist() == [3.0, 3.0]
        with op.set_kernel_enabled("cpu"):
            assert op(*args).tolist() == [101.0, 101.0]
        assert op(*args).tolist() == [3.0, 3.0]
        op.register_kernel("cpu", lambda x, y: x + 200)
        assert op(*args).tolist() == [3.0, 3.0]
    assert op(*args).tolist() == [201.0, 201.0]


@CALLS
@FORMS
def test_a_late_fake_is_the_one_that_is_asked(op_name, form, calls):
    op, args = called(form, op_name, calls)
    seen = []

    @op.register_fake
    def fake(input, other=None):  # noqa: A002  # names do not matter
        seen.append(other)
        return torch.empty_like(input)

    assert opforge.info(op).fake_source == "given"
    compiled(op)(*args)
    assert seen
    if form is flattened:
        assert type(seen[0]) is Weights
    assert callable(fake)


def test_a_late_fake_with_too_few_parameters_is_refused_and_changes_nothing(op_name):
    op, args = called(plain, op_name)
    with pytest.raises(BadSignature, match="too many positional arguments"):
        op.register_fake(lambda: None)
    assert op(*args).tolist() == [3.0, 3.0]


@CALLS
@FORMS
@pytest.mark.parametrize("how", ["eager", "aot_eager"])
def test_a_late_backward_is_used(op_name, form, calls, how):
    op, args = called(form, op_name, calls)
    if calls:
        op(args[0].clone().requires_grad_(), *args[1:])
        compiled(op)(*args)

    def setup_context(ctx, inputs, output):
        ctx.second = inputs[1]

    def backward(ctx, grad):
        factor = ctx.second.scale if form is flattened else ctx.second
        return grad * factor * 10, None

    assert op.register_autograd(backward, setup_context=setup_context) is None
    x = args[0].clone().requires_grad_()
    (op if how == "eager" else compiled(op))(x, *args[1:]).sum().backward()
    assert x.grad.tolist() == [50.0 if form is flattened else 30.0] * 2


@CALLS
@FORMS
def test_a_late_vmap_rule_is_used(op_name, form, calls):
    op, args = called(form, op_name, calls)
    seen = []

    @op.register_vmap
    def rule(info, in_dims, x, *rest):
        seen.append(info.batch_size)
        return op(x, *rest), in_dims[0]

    out = torch.func.vmap(lambda x: op(x, *args[1:]))(torch.ones(4, 2))
    assert out.shape == (4, 2)
    assert seen == [4]
    op.register_vmap("sequential")
    assert torch.func.vmap(lambda x: op(x, *args[1:]))(torch.ones(4, 2)).shape == (4, 2)
    assert seen == [4]


@CALLS
@FORMS
def test_a_late_autocast_rule_is_used(op_name, form, calls):
    op, args = called(form, op_name, calls)
    op.register_autocast("cpu", torch.bfloat16)
    op.register_autocast("cuda", torch.float16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(*args).dtype == torch.bfloat16
    assert op(*args).dtype == torch.float32


def test_late_rules_show_in_explain(op_name):
    op, _ = called(plain, op_name)
    op.register_kernel("cpu", lambda x, second: x + 100)
    op.register_fake(lambda x, second=None: torch.empty_like(x))
    op.register_autograd(lambda ctx, grad: (grad * 7, None))
    text = opforge.explain(op)
    assert all(line in text for line in ("on cpu", "fake      given", "backward  given"))


def test_a_stale_handle_takes_no_rules(op_name):
    op, _ = called(plain, op_name)
    opforge.unregister(op)
    with pytest.raises(BadRegistration, match="the op was unregistered"):
        op.register_fake(lambda x, y: x)


def test_an_op_with_late_rules_can_be_defined_and_exported_anew(op_name):
    name = op_name()
    for factor in (2.0, 3.0):

        def body(x: Tensor, factor: float = factor) -> Tensor:
            return torch.from_numpy(x.numpy() * factor)

        op = opforge.op(body, name=name)
        op.register_fake(lambda x, factor=1.0: torch.empty_like(x))

        class Model(torch.nn.Module):
            def forward(self, x, op=op):
                return op(x) + 1

        program = torch.export.export(Model(), (torch.ones(2),))
        assert program.module()(torch.ones(2)).tolist() == [factor + 1] * 2
        opforge.unregister(op)


@pytest.mark.parametrize("options", [{}, {"backward": lambda ctx, g: (g, None)}])
def test_a_body_for_one_type_of_device_runs_there_alone(op_name, options):
    op, args = called(plain, op_name, device_types="cuda", **options)
    for x in (torch.ones(2), torch.ones(2, requires_grad=True)):
        with pytest.raises(NotImplementedError, match="'CPU' backend"):
            op(x)
    op.register_kernel("cpu", lambda x, y: x + 100)
    assert op(*args).tolist() == [101.0, 101.0]
    assert op(torch.ones(2, device="meta")).shape == (2,)


@pytest.mark.parametrize("with_backward", [False, True])
def test_a_kernel_for_the_other_devices_runs_where_the_body_does_not(op_name, with_backward):
    options = {"backward": lambda ctx, grad: (grad * 7, None)} if with_backward else {}
    for body_is_for, expected in (("cuda", 101.0), ("cpu", 3.0)):
        op, (x,) = called(plain, op_name, device_types=body_is_for, **options)
        op.register_kernel(None, lambda x, y: x + 100)
        assert op(x).tolist() == compiled(op)(x).tolist() == [expected] * 2
        assert "on others" in opforge.explain(op)
        op.register_kernel("cpu", lambda x, y: x + 200)
        x = torch.ones(2, requires_grad=True)
        out = op(x)
        assert out.tolist() == [201.0, 201.0]
        if with_backward:
            out.sum().backward()
            assert x.grad.tolist() == [7.0, 7.0]


def test_without_types_of_device_the_body_serves_the_others(op_name):
    op, _ = called(plain, op_name)
    with pytest.raises(BadOption, match="the body already serves all the others"):
        op.register_kernel(None, lambda x, y: x)


def test_an_op_without_tensors_goes_by_its_device(op_name):
    @opforge.op(op_name(), device_types="cpu")
    def op(n: int, device: torch.device) -> Tensor:
        return torch.ones(n)

    assert op(2, "cpu").tolist() == [1.0, 1.0]
    with pytest.raises(NotImplementedError):
        op(2, "cuda")
    op.register_kernel("meta", lambda n, device: torch.empty(n, device="meta"))
    assert op(2, torch.device("meta")).device.type == "meta"


@pytest.mark.parametrize(
    ("device_types", "text"),
    [("gpus", "'gpus' is not a device type"), (3, "is not a list of device types")],
)
def test_what_is_no_type_of_device_is_refused(op_name, device_types, text):
    with pytest.raises(BadOption, match=text):
        plain(op_name(), device_types=device_types)


def test_an_op_without_tensors_and_device_has_no_types_of_device(op_name):
    def body(n: int) -> Tensor:
        return torch.ones(n)

    with pytest.raises(BadOption, match="neither a tensor nor a device"):
        opforge.op(body, name=op_name(), device_types="cpu")
    op = opforge.op(body, name=op_name())
    with pytest.raises(BadOption, match="neither a tensor nor a device"):
        op.register_kernel("cpu", body)


MISFITS = {
    "too few": (lambda x: x.clone(), "kernel cannot be called as kernel(x, {}): too many"),
    "too many": (lambda x, y, z: x.clone(), "missing a required argument: 'z'"),
    "no function": (3, "register_kernel got 3"),
}


@pytest.mark.parametrize("decorates", [False, True])
@pytest.mark.parametrize("misfit", MISFITS)
@FORMS
def test_a_kernel_that_cannot_be_called_is_refused_and_changes_nothing(
    op_name, form, misfit, decorates
):
    name = op_name()
    op, args = form(name)
    before = op(*args).tolist()
    fn, text = MISFITS[misfit]
    with pytest.raises(BadOption) as caught:
        op.register_kernel("cpu")(fn) if decorates else op.register_kernel("cpu", fn)
    assert str(caught.value).startswith(f"{name} ({__file__}:")
    assert text.format("y" if form is plain else "weights") in str(caught.value)
    assert op(*args).tolist() == before


def test_a_kernel_takes_keyword_only_parameters_by_their_names(op_name):
    @opforge.op(op_name())
    def op(x: Tensor, *, y: float) -> Tensor:
        return x * y

    with pytest.raises(BadOption, match=r"kernel\(x, y=y\)"):
        op.register_kernel("cpu", lambda x, z: x + 100)
    op.register_kernel("cpu", lambda x, **rest: x + rest["y"])
    assert op(torch.ones(1), y=2.0).item() == 3.0


def test_a_builtin_may_be_a_kernel(op_name):
    """It has no signature to compare."""
    op, _ = called(plain, op_name)
    op.register_kernel("cpu", torch.mul)
    assert op(torch.ones(1), 4.0).item() == 4.0


@pytest.mark.parametrize("decorates", [False, True])
@FORMS
def test_a_vmap_rule_that_cannot_be_called_is_refused_and_changes_nothing(op_name, form, decorates):
    op, args = called(form, op_name)
    for misfit in (lambda i, d: None, lambda i, d, x, y, z: None, lambda x: None):
        with pytest.raises(BadOption, match="vmap cannot be called as vmap\\(info, in_dims, x, "):
            op.register_vmap()(misfit) if decorates else op.register_vmap(misfit)
    assert torch.func.vmap(lambda x: op(x, *args[1:]))(torch.ones(4, 2)).shape == (4, 2)


def test_a_vmap_rule_may_leave_out_what_has_a_default(op_name):
    op, _ = called(plain, op_name)
    op.register_vmap(lambda info, in_dims, x: (x * 3.0, in_dims[0]))
    assert torch.func.vmap(op)(torch.ones(4, 2)).tolist() == [[3.0, 3.0]] * 4


@pytest.mark.parametrize(
    ("kernel", "error", "text"),
    [
        (lambda x, y: None, WrongReturn, "the kernel for cpu returned NoneType, but the op's"),
        (lambda x, y: "text", WrongReturn, "the kernel for cpu returned str"),
        (lambda x, y: x, WrongResult, "of the kernel for cpu shares memory"),
    ],
)
def test_what_a_kernel_returns_is_checked_as_the_body_is(op_name, kernel, error, text):
    op, args = called(plain, op_name)
    op.register_kernel("cpu", kernel)
    with pytest.raises(error, match=text) as caught:
        op(*args)
    assert f"{__file__}:{kernel.__code__.co_firstlineno}" in str(caught.value)


def test_a_body_in_a_kernels_place_is_named_as_the_body(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        return None

    op.register_kernel("cpu", lambda x: None)
    for _ in range(2):
        with pytest.raises(WrongReturn, match="the kernel for cpu returned"):
            op(torch.ones(1))
        refused = pytest.raises(WrongReturn, match="the body returned")
        with op.set_kernel_enabled("cpu", enabled=False), refused:
            op(torch.ones(1))
