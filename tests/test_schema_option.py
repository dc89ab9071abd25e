"""schema=: the user's own schema, which must not contradict the function."""

import inspect

import pytest
import torch
from torch import Tensor

import opforge
from opforge.errors import BadDeclaration, WrongArgument


def test_a_given_schema_is_used_as_it_is(op_name):
    @opforge.op(op_name(), schema="(Tensor x, *, float scale=2.5) -> Tensor")
    def scaled(x, *, scale=2.5):
        return x * scale

    x = torch.ones(2)
    assert scaled(x).tolist() == [2.5, 2.5]
    assert scaled(x, scale=3.0).tolist() == [3.0, 3.0]
    assert opforge.info(scaled).path == "direct"
    torch.library.opcheck(scaled, (x,), {"scale": 3.0})


@pytest.mark.parametrize(
    ("schema", "mutates_args", "text"),
    [
        ("(Tensor x) -> Tensor", (), "arguments do not match the function's parameters"),
        (
            "(Tensor x, *, float t=2.5) -> Tensor",
            (),
            "arguments do not match the function's parameters",
        ),
        ("(Tensor x, float s=3.0) -> Tensor", (), "disagree on a default"),
        ("(Tensor x, float s) -> Tensor", (), "disagree on a default"),
        ("(Tensor x, int s=2) -> Tensor", (), "disagree on a default"),
        ("(Tensor x, ScalarType s=float32) -> Tensor", (), "disagree on a default"),
        ("mylib::f(Tensor x, float s=2.5) -> Tensor", (), "must start with its arguments"),
        ("(Tensr x, float s=2.5) -> Tensor", (), "torch cannot parse schema="),
        ("(Tensor x, float s=2.5) -> Tensor", ["x"], "schema= and mutates_args disagree"),
    ],
)
def test_a_schema_that_contradicts_the_function_is_refused(schema, mutates_args, text, op_name):
    name = op_name()

    def f(x: Tensor, s: float = 2.5) -> Tensor:
        return x * s

    with pytest.raises(BadDeclaration) as caught:
        opforge.op(name, schema=schema, mutates_args=mutates_args)(f)
    assert text in str(caught.value)
    assert name in str(caught.value)


def test_a_dtype_default_of_a_given_schema_is_a_dtype_in_the_body(op_name):
    seen = []

    @opforge.op(op_name(), schema="(Tensor x, ScalarType d=float32, ScalarType? e=None) -> Tensor")
    def cast(x, d=torch.float32, e=None):
        seen.append((d, e))
        return x.to(d, copy=True)

    x = torch.ones(2, dtype=torch.float64)
    cast(x)
    cast(x, torch.float16, torch.int8)
    assert seen == [(torch.float32, None), (torch.float16, torch.int8)]


def named_otherwise(op_name, **options):
    """An op whose schema has a and t where its function has x and s."""

    def f(x: Tensor, s: float = 2.5) -> Tensor:
        return x * s

    return opforge.op(f, name=op_name(), schema="(Tensor a, float t=2.5) -> Tensor", **options)


def test_a_schemas_names_may_differ_from_the_functions(op_name):
    op = named_otherwise(op_name)
    assert op(torch.ones(1)).item() == 2.5
    assert op(a=torch.ones(1), t=3.0).item() == 3.0
    assert list(inspect.signature(op).parameters) == ["a", "t"]
    run = torch.compile(lambda x: op(x, t=4.0), backend="aot_eager", fullgraph=True)
    assert run(torch.ones(1)).item() == 4.0


def test_explain_and_check_name_arguments_as_the_schema_does(op_name):
    op = named_otherwise(op_name)
    text = opforge.explain(op)
    assert "a -> Tensor a" in text
    assert "t -> float t = 2.5" in text
    x = torch.ones(3)

    def reference(x, s=2.5):
        return x * s

    only = ["eager", "opcheck", "mutation", "numerics"]
    report = opforge.check(op, a=x, t=3.0, reference=reference, only=only)
    assert report.ok, report
    assert report.inputs == ("a: float32 (3,) on cpu",)
    with pytest.raises(WrongArgument, match="'a'"):
        opforge.check(op, x=x)


@pytest.mark.parametrize("named", [(), ["self"], ["x"]])
def test_a_mutated_argument_is_named_as_in_the_schema_or_as_in_the_function(op_name, named):
    def bump(x: Tensor, by: float = 1.0) -> None:
        x.add_(by)

    schema = "(Tensor(a!) self, float by=1.0) -> ()"
    op = opforge.op(bump, name=op_name(), schema=schema, mutates_args=named)
    report = opforge.check(op, torch.ones(3), only=["eager", "mutation"])
    assert report.ok, report


def test_rules_of_an_op_with_other_names_in_its_schema_go_by_place(op_name):
    op = named_otherwise(
        op_name,
        fake=lambda x, s: torch.empty_like(x),
        backward=lambda ctx, grad: grad * ctx.s * 10,
        setup_context=lambda ctx, inputs, output: setattr(ctx, "s", inputs[1]),
        vmap=lambda info, in_dims, x, s=2.5: (x * s, in_dims[0]),
    )
    x = torch.ones(2, requires_grad=True)
    torch.compile(lambda x: op(x) * 1, backend="aot_eager", fullgraph=True)(x).sum().backward()
    assert x.grad.tolist() == [25.0, 25.0]
    assert torch.func.vmap(op)(torch.ones(3, 2)).shape == (3, 2)
    op.register_kernel("cpu", lambda first, second: first + second)
    assert op(torch.ones(1)).item() == 3.5


@pytest.mark.parametrize("named", [["y"], ["x1"]])
def test_a_schemas_names_may_be_those_of_other_parameters(named, op_name):
    """They go by place, as with `custom_op`; the schema's x1 is the function's y0."""

    def weighted(x0: Tensor, x1: Tensor, y0: Tensor, y1: Tensor) -> Tensor:
        return x0 + 10 * x1 + 100 * y0 + 1000 * y1

    op = opforge.op(
        weighted,
        name=op_name(),
        schema="(Tensor x, Tensor y, Tensor x1, Tensor y1) -> Tensor",
        backward=lambda ctx, g: (g, g * 10, g * 100, g * 1000),
        fake=named,
    )
    given = dict(zip(["x", "y", "x1", "y1"], map(torch.tensor, [1.0, 2.0, 3.0, 4.0]), strict=True))
    given["x1"].requires_grad_()
    assert list(inspect.signature(op).parameters) == [*given]
    assert op(*given.values()).item() == op(**given).item() == 4321.0
    run = torch.compile(lambda: op(**given) * 1, backend="aot_eager", fullgraph=True)
    run().backward()
    assert given["x1"].grad.item() == 100.0


def test_a_parameter_whose_name_is_not_ascii_is_told(op_name):
    def scale(x: Tensor, größe: int) -> Tensor:  # noqa: PLC2401 - what is tested
        return x * größe

    with pytest.raises(
        BadDeclaration, match="a name in it is not ASCII\n  fix: rename the parameter"
    ):
        opforge.op(scale, name=op_name())
