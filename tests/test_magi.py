"""The drop-in for MagiCompiler's `magi_register_custom_op`."""

import dataclasses
import enum
import inspect

import pytest
import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode

import opforge
from opforge.errors import FakeMismatch, FakeUnknown, OpforgeError
from opforge.magi import magi_register_custom_op

Tensor = torch.Tensor


class Act(enum.Enum):
    SILU = "silu"
    GELU = "gelu"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    FLOAT = 0.5


@dataclasses.dataclass(frozen=True)
class Cfg:
    scale: float
    causal: bool = False


@dataclasses.dataclass(frozen=True)
class Layer:
    weight: Tensor
    scale: float = 1.0


@dataclasses.dataclass
class Mutable:
    scale: float


@pytest.fixture
def unregistered():
    """Unregisters the ops it is given, for those whose name is made by opforge."""
    made = []
    yield made.append
    for op in made:
        opforge.unregister(op)


def test_it_has_magi_compilers_parameters_in_their_order():
    parameters = inspect.signature(magi_register_custom_op).parameters
    assert {name: p.default for name, p in parameters.items()} == {
        "name": None,
        "mutates_args": (),
        "infer_output_meta_fn": None,
        "setup_context_fn": None,
        "backward_fn": None,
        "is_compute_sensitive": False,
        "is_subgraph_boundary": False,
        "extra_triton_kernels": (),
        "force_register_mode": None,
        "max_introspect_depth": 5,
    }
    assert list(parameters) == [
        "name",
        "mutates_args",
        "infer_output_meta_fn",
        "setup_context_fn",
        "backward_fn",
        "is_compute_sensitive",
        "is_subgraph_boundary",
        "extra_triton_kernels",
        "force_register_mode",
        "max_introspect_depth",
    ]


@triton.jit
def kernel():
    pass


def test_every_parameter_is_taken(op_name):
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1].scale

    name = op_name()

    @magi_register_custom_op(
        name=name,
        mutates_args=(),
        infer_output_meta_fn=["x"],
        setup_context_fn=setup_context,
        backward_fn=lambda ctx, grad: (grad * ctx.scale, None),
        is_compute_sensitive=True,
        is_subgraph_boundary=True,
        extra_triton_kernels=(kernel,),
        force_register_mode="custom_op",
        max_introspect_depth=3,
    )
    def scale(x: Tensor, cfg: Cfg) -> Tensor:
        return x * cfg.scale

    info = opforge.info(scale)
    assert info.name == name
    assert (info.compute_sensitive, info.subgraph_boundary) == (True, True)
    assert [k.kernel for k in info.kernels] == [kernel]
    assert info.fake_source == "listed"
    assert info.mode == "custom_op"
    x = torch.ones(2, requires_grad=True)
    scale(x, Cfg(3.0)).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_the_flattened_callable_carries_its_overload(op_name):
    name = op_name()

    @magi_register_custom_op(name)
    def scale(x: Tensor, cfg: Cfg) -> Tensor:
        """Scale."""
        return x * cfg.scale

    overload = scale._magi_torch_registered_op
    assert overload is getattr(torch.ops.opforge_tests, name.partition("::")[2]).default
    assert scale.__doc__ == "Scale."
    assert overload(torch.ones(1), 3.0, False).item() == 3.0
    assert scale(torch.ones(1), Cfg(3.0)).item() == 3.0


def test_a_signature_that_fits_torch_returns_the_overload(op_name):
    @magi_register_custom_op(op_name())
    def double(x: Tensor) -> Tensor:
        return x * 2

    assert isinstance(double, torch._ops.OpOverload)


def test_the_name_is_made_from_the_function_where_none_is_given(unregistered):
    @magi_register_custom_op()
    def magi_named_by_itself(x: Tensor) -> Tensor:
        return x * 2

    unregistered(magi_named_by_itself)
    assert opforge.info(magi_named_by_itself).name == "test_magi::magi_named_by_itself"


def test_it_works_without_parentheses(unregistered):
    @magi_register_custom_op
    def magi_bare(x: Tensor) -> Tensor:
        return x * 2

    unregistered(magi_bare)
    assert magi_bare(torch.ones(1)).item() == 2.0


def test_mode_none_returns_the_function_itself(op_name):
    def double(x: Tensor) -> Tensor:
        return x * 2

    assert magi_register_custom_op(op_name(), force_register_mode="none")(double) is double
    assert opforge.info(double).mode == "none"
    opforge.unregister(double)


def test_an_unknown_mode_is_a_value_error(op_name):
    with pytest.raises(ValueError, match="force_register_mode='fast' is unknown") as caught:
        magi_register_custom_op(op_name(), force_register_mode="fast")
    assert isinstance(caught.value, OpforgeError)
    assert "'triton_op'" in str(caught.value)


def test_output_i_looks_like_tensor_input_i(op_name):
    @magi_register_custom_op(op_name())
    def op(n: int, x: Tensor, layer: Layer, z: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        return x + n, layer.weight + n, z + n

    assert opforge.info(op).fake_source == "assumed"
    with FakeTensorMode():
        outs = op(
            3, torch.empty(1), Layer(torch.empty(2, dtype=torch.int32)), torch.empty(3, 4).t()
        )
    assert [tuple(o.shape) for o in outs] == [(1,), (2,), (4, 3)]
    assert outs[1].dtype == torch.int32
    assert outs[2].stride() == (1, 4)


def test_the_body_is_not_run_on_fakes(op_name):
    @magi_register_custom_op(op_name())
    def op(x: Tensor) -> Tensor:
        calls.append(type(x))
        return x + 1

    calls = []
    compiled = torch.compile(lambda x: op(x) * 2, backend="aot_eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 4.0
    assert calls == [Tensor]


@pytest.mark.parametrize(
    ("body", "difference"),
    [
        (lambda x: x[:1].clone(), r"shape \(1,\), expected \(2,\)"),
        (lambda x: x.double(), "dtype torch.float64, expected torch.float32"),
    ],
    ids=["shape", "dtype"],
)
def test_a_wrong_assumption_is_found_by_the_first_real_call(op_name, body, difference):
    name = op_name()

    @magi_register_custom_op(name)
    def op(x: Tensor) -> Tensor:
        return body(x)

    with pytest.raises(FakeMismatch, match=difference) as caught:
        op(torch.ones(2))
    assert name in str(caught.value)
    assert "output i looks like tensor input i" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


def test_the_assumption_is_verified_once(op_name):
    @magi_register_custom_op(op_name())
    def op(x: Tensor, n: int) -> Tensor:
        return x.new_zeros(n)

    op(torch.ones(2), 2)
    assert "verified by a real call" in opforge.explain(op)
    assert op(torch.ones(2), 5).shape == (5,)


def test_more_outputs_than_tensor_inputs_need_a_function(op_name):
    with pytest.raises(FakeUnknown, match="cannot tell what the outputs") as caught:

        @magi_register_custom_op(op_name())
        def op(x: Tensor) -> tuple[Tensor, Tensor]:
            return x + 1, x + 2

    assert isinstance(caught.value, RuntimeError)


def test_an_infer_function_may_name_its_parameters_as_it_likes(op_name):
    @magi_register_custom_op(op_name(), infer_output_meta_fn=lambda a, b: a.new_empty(b.scale_to()))
    def op(x: Tensor, cfg: Sized) -> Tensor:
        return x.new_zeros(cfg.scale_to())

    with FakeTensorMode():
        assert op(torch.empty(2), Sized(3)).shape == (6,)
    assert op(torch.empty(2), Sized(3)).shape == (6,)
    assert opforge.info(op).fake_source == "given"


@dataclasses.dataclass(frozen=True)
class Sized:
    n: int

    def scale_to(self):
        return self.n * 2


def test_an_op_that_only_mutates_needs_no_infer_function(op_name):
    @magi_register_custom_op(op_name(), mutates_args=["layer"])
    def op(layer: Layer) -> None:
        layer.weight.add_(1)

    weight = torch.zeros(2)
    assert op(Layer(weight)) is None
    assert weight.tolist() == [1.0, 1.0]

    def function(w):
        op(Layer(w, 1.0))
        return w + 1

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert compiled(weight).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("cls", "member"),
    [(Act, Act.GELU), (Level, Level.HIGH), (Odd, Odd.PAIR), (Odd, Odd.FLOAT)],
    ids=str,
)
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_the_body_gets_the_member_for_a_member_and_for_its_raw_value(op_name, cls, member, how):
    seen = []

    @magi_register_custom_op(op_name())
    def op(x: Tensor, kind: cls) -> Tensor:
        seen.append(kind)
        return x + 1

    def function(x, kind):
        return op(x, kind)

    if how == "compiled":
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    function(torch.ones(1), member)
    function(torch.ones(1), member.value)
    assert len(seen) == 2
    assert all(kind is member for kind in seen)


def test_a_value_outside_the_enum_is_a_value_error_with_the_choices(op_name):
    name = op_name()

    @magi_register_custom_op(name)
    def op(x: Tensor, act: Act) -> Tensor:
        return x + 1

    with pytest.raises(ValueError, match="'relu' is not a value of Act") as caught:
        op(torch.ones(1), "relu")
    text = str(caught.value)
    assert name in text
    assert "parameter 'act'" in text
    assert "Act.SILU" in text


def missing_annotation(x, y: int):
    return x


def mutable_dataclass(x: Tensor, cfg: Mutable) -> Tensor:
    return x


def dictionary(x: Tensor, options: dict[str, int]) -> Tensor:
    return x


def variadic(x: Tensor, *rest: int) -> Tensor:
    return x


def unknown_class(x: Tensor, thing: object) -> Tensor:
    return x


def bad_return(x: Tensor) -> str:
    return ""


@pytest.mark.parametrize(
    "fn", [missing_annotation, mutable_dataclass, dictionary, variadic, unknown_class, bad_return]
)
def test_a_mistaken_annotation_is_a_type_error(op_name, fn):
    name = op_name()
    with pytest.raises(TypeError) as caught:
        magi_register_custom_op(name)(fn)
    assert isinstance(caught.value, OpforgeError)
    assert name in str(caught.value)
    assert "test_magi.py" in str(caught.value)


def double(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    "name", ["noseparator", "a b::c", "mylib::", "::op", "aten::mine", "my-lib::op"]
)
def test_a_bad_name_is_a_value_error(name):
    with pytest.raises(ValueError, match="is not an operator name") as caught:
        magi_register_custom_op(name)(double)
    assert isinstance(caught.value, OpforgeError)


@pytest.mark.parametrize(
    "options",
    [{"mutates_args": ["z"]}, {"infer_output_meta_fn": ["z"]}],
    ids=["mutates_args", "infer"],
)
def test_an_unknown_argument_is_a_value_error(op_name, options):
    with pytest.raises(ValueError, match="names 'z', which is not a parameter"):
        magi_register_custom_op(op_name(), **options)(double)


def test_a_wrong_number_of_gradients_is_a_value_error(op_name):
    @magi_register_custom_op(op_name(), backward_fn=lambda ctx, g: (g, g, g))
    def op(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    with pytest.raises(ValueError, match="expected 2, got 3"):
        op(torch.ones(1, requires_grad=True), torch.ones(1)).backward()


def test_a_duplicate_is_a_runtime_error_with_both_locations(op_name):
    name = op_name()

    @magi_register_custom_op(name)
    def first(x: Tensor) -> Tensor:
        return x * 2

    with pytest.raises(RuntimeError, match=f"{name} is defined twice") as caught:

        @magi_register_custom_op(name)
        def second(x: Tensor) -> Tensor:
            return x * 3

    assert str(caught.value).count("test_magi.py:") >= 2
    assert first(torch.ones(1)).item() == 2.0


def test_an_infer_function_with_other_parameters_is_a_type_error(op_name):
    with pytest.raises(TypeError, match="the fake's signature does not match the op's"):
        magi_register_custom_op(op_name(), infer_output_meta_fn=lambda: None)(double)


def test_a_record_gradient_may_be_a_dict(op_name):
    @magi_register_custom_op(op_name(), backward_fn=lambda ctx, g: (g, {"weight": g * 3}))
    def op(x: Tensor, layer: Layer) -> Tensor:
        return x + 3 * layer.weight

    x, weight = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    op(x, Layer(weight)).sum().backward()
    assert weight.grad.tolist() == [3.0, 3.0]


def test_forcing_triton_op_on_a_body_without_kernels_is_a_value_error(op_name):
    with pytest.raises(ValueError, match="no launch of a Triton kernel was found in its body"):
        magi_register_custom_op(op_name(), force_register_mode="triton_op")(double)


def test_forcing_triton_op_is_accepted(op_name):
    register = magi_register_custom_op(
        op_name(), force_register_mode="triton_op", extra_triton_kernels=[kernel]
    )
    assert opforge.info(register(double)).mode == "triton_op"


def test_something_that_is_not_a_kernel_is_a_runtime_error(op_name):
    with pytest.raises(RuntimeError, match="which is not a Triton kernel"):
        magi_register_custom_op(op_name(), extra_triton_kernels=[print])(double)
