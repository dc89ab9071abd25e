"""What `native.declare` says when it refuses."""

# Fields are declared with dict(...), as in the documentation; the old spellings are tested, too.
# ruff: noqa: C408, UP045

from typing import Optional

import pytest
import torch
from torch import Tensor

from opforge import native
from opforge.errors import (
    BadDeclaration,
    BadOption,
    BadSignature,
    WrongArgument,
)
from opforge.native.frontend.expand import expand
from support.native.declared import (
    GIVEN,
    Window,
    X,
    configured,
    declarations,
    gemm,
    many,
    refusal,
    rms_norm,
    silu,
)


def test_a_name_that_is_not_a_parameter_is_refused_with_the_closest(make_op):
    op = make_op(rms_norm)
    weight = native.tensor("hidden", dtype="fp16")
    text = refusal(WrongArgument, op, x=X, weights=weight)
    assert "no parameter 'weights'" in text
    assert "did you mean 'weight'? it has x, weight, eps" in text


def test_a_field_that_does_not_exist_is_refused_with_the_closest(make_op):
    op = make_op(configured)
    text = refusal(WrongArgument, op, x=X, cfg=dict(scal=1.0))
    assert "no field 'cfg.scal'" in text
    assert "did you mean 'scale'? it has scale, inner, mode" in text
    assert "did you mean 'cfg__inner__k'?" in refusal(WrongArgument, op, x=X, cfg__iner__k=1)


def test_every_missing_parameter_is_named_with_what_to_write(make_op):
    text = refusal(WrongArgument, make_op(many), x=X, parts=None)
    assert "'n', 'flag', 'name', 'act', 'mode', 'dtype', 'sizes', 'factor'" in text
    for fix in (
        "n=native.scalar('i64')",
        "flag=native.scalar('bool')",
        "name=native.choice('one', 'other')",
        "mode=native.choice(Mode.FAST, Mode.SLOW)",
        "dtype=native.choice(torch.float16, torch.float32)",
        "sizes=native.choice((1, 2))",
    ):
        assert fix in text
    text = refusal(WrongArgument, make_op(configured), x=X, cfg__scale=1.0)
    assert "parameter 'cfg.inner.k'" in text
    assert "fix: cfg__inner__k=native.scalar('i64')" in text


def test_an_optional_record_without_a_default_must_be_declared(make_op):
    def windowed(x: Tensor, window: Optional[Window]) -> Tensor:
        return x * 1

    op = make_op(windowed)
    assert "parameter 'window': nothing is declared" in refusal(WrongArgument, op, x=X)
    native.declare(op, x=X, window=None)
    native.declare(op, x=X, window=dict(left=native.scalar()))
    text = refusal(WrongArgument, op, x=X, window=None, window__left=1)
    assert "parameter 'window': declared both as None and field by field" in text


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (torch.complex128, "'complex128' is a torch dtype that Triton cannot store"),
        ("complex64", "pass a complex tensor as its real view"),
        ("qint8", "'qint8' is a torch dtype"),
        ("fp61", "did you mean 'fp64'?"),
        (("fp16", 3), "3 is not an element type"),
        (None, "no dtype is given"),
        ((), "no dtype is given"),
        ("T", "type variable 'T' has no types"),
    ],
)
def test_a_dtype_that_triton_lacks_is_refused(make_op, dtype, message):
    text = refusal(BadDeclaration, make_op(silu), x=native.tensor("m", dtype=dtype))
    assert text.startswith("OP (HERE), parameter 'x': ")
    assert message in text


def test_a_parameter_wins_over_a_type_variable_of_its_name(make_op):
    def transposed(x: Tensor, T: bool) -> Tensor:
        return x * 1

    op = make_op(transposed)
    native.declare(op, x=X, T=native.scalar("bool"))
    assert [p.name for p in expand(op).params] == ["x", "T"]
    assert "type variable 'T' has no types" in refusal(
        BadDeclaration, op, x=native.tensor("m", "T"), T=True
    )


def test_an_unused_type_variable_is_refused(make_op):
    text = refusal(BadDeclaration, make_op(silu), x=X, T=("fp16", "bf16"))
    assert "type variable 'T' is not used" in text


def test_a_size_may_not_have_the_name_of_something_else(make_op):
    def sliced(x: Tensor, n: int) -> Tensor:
        return x * 1

    op = make_op(sliced)
    text = refusal(BadDeclaration, op, x=X, n=native.scalar("i64"))
    assert "parameter 'x': 'n' names a size here and is also a scalar parameter" in text
    native.declare(op, x=native.tensor("m", "fp16"), n=native.scalar("i64"), dims={"n": (1, 64)})
    a, b = native.tensor("s", "fp16"), native.tensor("*s", "fp16", ranks=1)
    text = refusal(BadDeclaration, make_op(gemm), a=a, b=b)
    assert "parameter 'a': 's' names a size here and is also *s" in text


STRIDED = native.tensor("m n", "fp16", layout="strided", broadcast=True)


@pytest.mark.parametrize(
    ("parameter", "spec", "message"),
    [
        ("n", X, "a tensor is declared for a parameter of type int"),
        ("x", native.scalar("fp32"), "a scalar is declared for a parameter of type Tensor"),
        ("x", native.choice(None), "native.choice is not for tensors"),
        ("x", "m n", "a tensor parameter is declared with native.tensor"),
        ("x", None, "annotate it as Tensor | None in the op"),
        ("x", native.optional(X), "the op's annotation has no None"),
        ("n", native.optional(native.scalar("i64")), "native.optional takes a tensor"),
        ("x", native.tensor("m n", "fp16", layout="channels_last"), "'channels_last' is unknown"),
        ("x", STRIDED, 'only a strided tensor with dims "*s" can be broadcast'),
        ("parts", X, "a list of tensors has no place in a C function"),
        ("parts", native.choice(1), "a list of tensors has no place in a C function"),
        ("name", native.scalar("fp32"), "a scalar is declared for a parameter of type str"),
        ("mode", native.scalar("i32"), "a scalar is declared for a parameter of type Mode"),
        ("sizes", native.scalar("i64"), "of type list[int]"),
        ("flag", native.scalar("i32"), "fix: flag=native.scalar('bool')"),
        ("n", native.scalar("fp32"), "type fp32 is declared for a parameter of type int"),
        ("factor", native.scalar("fp8e5"), "type fp8e5 is declared for"),
        ("n", native.choice(), "native.choice has no values"),
        ("n", native.choice(1, "2"), "'2' is not a int"),
        ("n", True, "True is not a int"),
        ("n", 2**63, f"{2**63} is not a int"),
        ("n", native.choice(native.scalar("i64")), "found a spec where a value is expected"),
        ("act", native.choice("relu", "gelu"), "fix: one of 'relu', 'silu'"),
        ("mode", "medium", "fix: one of Mode.FAST, Mode.SLOW"),
        ("sizes", 3, "3 is not a list[int]"),
        ("dtype", "fp16", "'fp16' is not a torch.dtype"),
    ],
)
def test_a_spec_that_does_not_fit_the_parameter_is_refused(make_op, parameter, spec, message):
    errors = (WrongArgument, BadOption, BadSignature)
    text = refusal(errors, make_op(many), **{**GIVEN, parameter: spec})
    assert text.startswith(f"OP (HERE), parameter '{parameter}': ")
    assert message in text


def test_a_list_of_tensors_without_a_default_cannot_be_declared(make_op):
    def summed(parts: list[Tensor]) -> Tensor:
        return parts[0] * 1

    op = make_op(summed)
    for specs in ({}, {"parts": X}, {"parts": [X]}):
        text = refusal(BadSignature, op, **specs)
        assert "parameter 'parts': a list of tensors has no place in a C function" in text


def test_a_record_is_declared_by_its_fields(make_op):
    op = make_op(configured)
    text = refusal(WrongArgument, op, x=X, cfg=native.scalar("fp32"))
    assert "parameter 'cfg': Config is declared field by field" in text
    assert "cfg=dict(scale=..., inner=..., mode=...)" in text
    assert "Config is declared field by field" in refusal(WrongArgument, op, x=X, cfg=None)
    text = refusal(WrongArgument, op, x=X, cfg=dict(scale=1.0), cfg__scale=2.0)
    assert "parameter 'cfg.scale': declared twice in one call" in text


def test_a_tuple_is_declared_by_its_elements(make_op):
    def strided(x: Tensor, steps: tuple[int, int]) -> Tensor:
        return x * 1

    op = make_op(strided)
    native.declare(op, x=X, steps=(native.scalar("i32"), 2))
    text = refusal(WrongArgument, op, x=X, steps=(1, 2, 3))
    assert "parameter 'steps'" in text
    assert "fix: steps=(..., ...)" in text
    assert [p.name for p in expand(op).params] == ["x", "steps__0"]


def test_a_parameter_called_dims_can_be_declared(make_op):
    def reduced(x: Tensor, dims: list[int]) -> Tensor:
        return x * 1

    op = make_op(reduced)
    native.declare(op, x=X, dims=native.choice((0, 1), (1,)))
    native.declare(op, x=X, dims=[1])
    assert expand(op).params[1].values == ("(0, 1)", "(1,)")


def test_declarations_that_need_different_c_functions_are_refused(make_op):
    op = make_op(gemm)
    b = native.tensor("n k", dtype="fp16")
    native.declare(op, a=X, b=b, alpha=native.scalar("fp32"))
    first = declarations(op)[0].location
    for alpha in (native.scalar("fp64"), native.choice(1, 2.0), 1.5):
        text = refusal(BadDeclaration, op, a=X, b=b, alpha=alpha)
        assert (
            "parameter 'alpha': the declarations of this op give this parameter different" in text
        )
        assert f"native.scalar('fp32') at {first}; " in text


@pytest.mark.parametrize(
    ("annotation", "kind"), [(list[Tensor], "a list of tensors"), (int, "a number")]
)
def test_an_output_that_is_not_a_tensor_is_refused(make_op, annotation, kind):
    def fn(x: Tensor) -> annotation:
        return [x * 1]

    text = refusal(BadSignature, make_op(fn), x=X)
    assert f"parameter 'return': the op returns {kind}" in text


def test_the_cases_of_all_declarations_count(make_op):
    op = make_op(rms_norm)
    loose = native.tensor("...", ("fp16", "bf16", "fp32", "fp64"), ranks=range(1, 9))
    for eps in range(4):
        native.declare(op, x=loose, weight=loose, eps=eps)
    text = refusal(BadDeclaration, op, x=loose, weight=loose, eps=4)
    assert "5120 cases, more than 4096" in text
    assert "x: 32, weight: 32; these multiply" in text
    assert len(expand(op).cases) == 4096


@pytest.mark.parametrize("value", ["a\0b", "a\udcff"])
def test_a_choice_that_is_no_text_of_c_is_refused(make_op, value):
    def routed(x: Tensor, route: str) -> Tensor:
        return x

    text = refusal(WrongArgument, make_op(routed), x=X, route=native.choice("a", value))
    assert text.startswith("OP (HERE), parameter 'route': a text with ")


def test_a_backward_is_wanted_or_not(make_op):
    op = make_op(silu)
    assert "backward= says whether" in refusal(WrongArgument, op, x=X, backward="yes")
    native.declare(op, x=X, backward=True)
    text = refusal(BadDeclaration, op, x=native.tensor("n", dtype="i8"), backward=False)
    assert f"found: backward=True at {__file__}:" in text
    assert "; backward=False at HERE" in text
    assert len(declarations(op)) == 1
