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
    assert refusal(WrongArgument, op, x=X, weigth=weight) == (
        "OP (HERE): the op has no parameter 'weigth'\n"
        "  fix: did you mean 'weight'? it has x, weight, eps"
    )
    assert refusal(WrongArgument, op, y=X) == (
        "OP (HERE): the op has no parameter 'y'\n  fix: it has x, weight, eps"
    )


def test_a_field_that_does_not_exist_is_refused_with_the_closest(make_op):
    op = make_op(configured)
    assert refusal(WrongArgument, op, x=X, cfg=dict(scal=1.0)) == (
        "OP (HERE): the op has no field 'cfg.scal'\n"
        "  fix: did you mean 'scale'? it has scale, inner, mode"
    )
    assert "did you mean 'cfg__inner__k'?" in refusal(WrongArgument, op, x=X, cfg__iner__k=1)


def test_every_missing_parameter_is_named_with_what_to_write(make_op):
    assert refusal(WrongArgument, make_op(rms_norm), x=X) == (
        "OP (HERE), parameter 'weight': nothing is declared for 'weight', and there is no default\n"
        "  fix: weight=native.tensor('m n', dtype='fp16')"
    )
    assert refusal(WrongArgument, make_op(many), x=X, parts=None) == (
        "OP (HERE): nothing is declared for 'n', 'flag', 'name', 'act', 'mode', 'dtype', 'sizes', "
        "'factor', and there is no default\n"
        "  fix: n=native.scalar('i64'); flag=native.scalar('bool'); name=native.choice('one', "
        "'other'), since C gets a number per value; act=native.choice('relu', 'silu'); "
        "mode=native.choice(Mode.FAST, Mode.SLOW); dtype=native.choice(torch.float16, "
        "torch.float32); sizes=native.choice((1, 2)); factor=native.scalar('fp32')"
    )


def test_missing_fields_are_named_by_their_path(make_op):
    text = refusal(WrongArgument, make_op(configured), x=X, cfg__scale=1.0)
    assert text == (
        "OP (HERE), parameter 'cfg.inner.k': nothing is declared for 'cfg.inner.k', and there is "
        "no default\n  fix: cfg__inner__k=native.scalar('i64')"
    )


def test_an_optional_record_without_a_default_must_be_declared(make_op):
    def windowed(x: Tensor, window: Optional[Window]) -> Tensor:
        return x * 1

    op = make_op(windowed)
    assert refusal(WrongArgument, op, x=X) == (
        "OP (HERE), parameter 'window': nothing is declared for 'window', and there is no default\n"
        "  fix: window=None"
    )
    native.declare(op, x=X, window=None)
    native.declare(op, x=X, window=dict(left=native.scalar()))
    assert refusal(WrongArgument, op, x=X, window=None, window__left=1) == (
        "OP (HERE), parameter 'window': declared both as None and field by field\n"
        "  found: window__left\n  fix: keep one of them, or write two declare calls with one each"
    )


THE_DTYPES = (
    "the dtypes are fp16, bf16, fp32, fp64, fp8e4nv, fp8e4b8, fp8e5, fp8e5b16, i8, i16, i32, i64, "
    "u8, u16, u32, u64 and bool"
)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (
            "complex64",
            (
                "'complex64' is a torch dtype that Triton cannot store\n"
                f"  fix: {THE_DTYPES}; pass a complex tensor as its real view"
            ),
        ),
        (
            torch.complex128,
            (
                "'complex128' is a torch dtype that Triton cannot store\n"
                f"  fix: {THE_DTYPES}; pass a complex tensor as its real view"
            ),
        ),
        ("qint8", f"'qint8' is a torch dtype that Triton cannot store\n  fix: {THE_DTYPES}"),
        ("fp61", f"'fp61' is not an element type\n  fix: did you mean 'fp64'? {THE_DTYPES}"),
        (("fp16", 3), f"3 is not an element type\n  fix: {THE_DTYPES}"),
        (
            None,
            f"no dtype is given\n  fix: a name such as dtype='fp16', or several; {THE_DTYPES}",
        ),
        ((), f"no dtype is given\n  fix: a name such as dtype='fp16', or several; {THE_DTYPES}"),
    ],
)
def test_a_dtype_that_triton_lacks_is_refused(make_op, dtype, message):
    text = refusal(BadDeclaration, make_op(silu), x=native.tensor("m", dtype=dtype))
    assert text == f"OP (HERE), parameter 'x': {message}"


def test_a_type_variable_without_types_is_refused(make_op):
    fix = (
        '  fix: give declare T=("fp16", "bf16") beside the parameters; a letter that names a '
        "parameter of the op cannot be a type variable"
    )
    assert refusal(BadDeclaration, make_op(silu), x=native.tensor("m", "T")) == (
        f"OP (HERE), parameter 'x': type variable 'T' has no types\n{fix}"
    )
    # A variable must not stand for a variable, either.
    with pytest.raises(BadDeclaration):
        native.declare(make_op(silu), x=native.tensor("m", "T"), T="S")


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
    assert refusal(BadDeclaration, make_op(silu), x=X, T=("fp16", "bf16")) == (
        "OP (HERE): type variable 'T' is not used by any parameter\n"
        '  fix: native.tensor(..., dtype="T"), or leave T= out'
    )


def test_a_type_variable_may_not_hold_what_triton_lacks(make_op):
    text = refusal(
        BadDeclaration, make_op(silu), x=native.tensor("m", "T"), T=("fp16", "complex32")
    )
    assert text.startswith("OP (HERE): 'complex32' is a torch dtype that Triton cannot store")


def test_mistakes_in_dims_ranks_and_bounds_name_the_op_and_the_parameter(make_op):
    op = make_op(silu)
    text = refusal(BadDeclaration, op, x=native.tensor("m;n", "fp16"))
    assert text.startswith("OP (HERE), parameter 'x': 'm;n' is not a dimension")
    text = refusal(BadDeclaration, op, x=native.tensor("...", "fp16"))
    assert text.startswith("OP (HERE), parameter 'x': \"...\" without ranks")
    text = refusal(BadDeclaration, op, x=native.tensor("m", "fp16", ranks=(1,)))
    assert text.startswith("OP (HERE), parameter 'x': ranks are for \"...\"")
    text = refusal(BadDeclaration, op, x=native.tensor("...", "fp16", ranks=(9,)))
    assert text.startswith("OP (HERE), parameter 'x': rank 9 is above 8")
    text = refusal(BadDeclaration, op, x=native.tensor("*s", "fp16"))
    assert text.startswith("OP (HERE), parameter 'x': no parameter with *s has ranks")
    text = refusal(BadDeclaration, op, x=X, dims={"m": (4, 1)})
    assert text.startswith("OP (HERE): dims={'m': (4, 1)}: the range is empty")
    text = refusal(BadDeclaration, op, x=X, dims={"q": 1})
    assert text.startswith("OP (HERE): dims= bounds 'q', but no parameter's dims have that name")


def test_a_name_that_is_a_size_and_a_shared_shape_is_refused(make_op):
    text = refusal(
        BadDeclaration,
        make_op(gemm),
        a=native.tensor("s", "fp16"),
        b=native.tensor("*s", "fp16", ranks=1),
    )
    assert text == (
        "OP (HERE), parameter 'a': 's' names a size here and is also *s\n"
        "  fix: give the size another name"
    )


def test_a_size_may_not_have_the_name_of_a_number_that_is_passed(make_op):
    def sliced(x: Tensor, n: int) -> Tensor:
        return x * 1

    op = make_op(sliced)
    assert refusal(BadDeclaration, op, x=X, n=native.scalar("i64")) == (
        "OP (HERE), parameter 'x': 'n' names a size here and is also a scalar parameter\n"
        "  fix: give the size another name"
    )
    native.declare(op, x=native.tensor("m", "fp16"), n=native.scalar("i64"), dims={"n": (1, 64)})


@pytest.mark.parametrize(
    ("parameter", "spec", "message"),
    [
        (
            "n",
            X,
            (
                "a tensor is declared for a parameter of type int\n"
                "  found: native.tensor('m n', dtype='fp16')\n  fix: n=native.scalar('i64')"
            ),
        ),
        (
            "x",
            native.scalar("fp32"),
            (
                "a scalar is declared for a parameter of type Tensor\n  found: "
                "native.scalar('fp32')\n  fix: x=native.tensor('m n', dtype='fp16')"
            ),
        ),
        (
            "x",
            native.choice(None),
            (
                "native.choice is not for tensors\n  found: native.choice(None)\n"
                "  fix: x=native.tensor('m n', dtype='fp16')"
            ),
        ),
        (
            "x",
            "m n",
            (
                "a tensor parameter is declared with native.tensor\n  found: 'm n'\n"
                "  fix: x=native.tensor('m n', dtype='fp16')"
            ),
        ),
        (
            "x",
            None,
            (
                "None is not a Tensor\n  found: a value of type NoneType\n"
                "  fix: annotate it as Tensor | None in the op, or x=native.tensor('m n', "
                "dtype='fp16')"
            ),
        ),
        (
            "x",
            native.optional(X),
            (
                "declared as optional, but the op's annotation has no None\n"
                "  found: native.optional(native.tensor('m n', dtype='fp16'))\n"
                "  fix: x: Tensor | None in the op, or native.tensor('m n', dtype='fp16') without "
                "native.optional"
            ),
        ),
        (
            "n",
            native.optional(native.scalar("i64")),
            (
                "native.optional takes a tensor\n  found: native.optional(native.scalar('i64'))\n"
                "  fix: native.optional(native.tensor(...)); for other values native.choice(None, "
                "...)"
            ),
        ),
        (
            "x",
            native.tensor("m n", "fp16", layout="channels_last"),
            (
                "layout 'channels_last' is unknown\n"
                "  fix: layout='contiguous' (compact, the default) or layout='strided' (any "
                "strides)"
            ),
        ),
        (
            "x",
            native.tensor("m n", "fp16", layout="strided", broadcast=True),
            (
                'only a strided tensor with dims "*s" can be broadcast\n'
                "  found: native.tensor('m n', dtype='fp16', layout='strided', broadcast=True)\n"
                '  fix: native.tensor("*s", ..., layout="strided", broadcast=True)'
            ),
        ),
        (
            "x",
            native.tensor("*s", "fp16", ranks=2, broadcast=True),
            (
                'only a strided tensor with dims "*s" can be broadcast\n'
                "  found: native.tensor('*s', dtype='fp16', ranks=2, broadcast=True)\n"
                '  fix: native.tensor("*s", ..., layout="strided", broadcast=True)'
            ),
        ),
        (
            "x",
            native.tensor("*s", "fp16", layout="strided", ranks=2, broadcast="y"),
            "broadcast is True or False\n  found: broadcast='y'",
        ),
        (
            "parts",
            X,
            (
                "a list of tensors has no place in a C function\n"
                "  found: native.tensor('m n', dtype='fp16')\n"
                "  fix: list the tensors one by one in the op's signature, or in a dataclass or a "
                "tuple of fixed length; a parameter with a default can be left out and is "
                "fixed at the default"
            ),
        ),
        (
            "parts",
            native.choice(1),
            (
                "a list of tensors has no place in a C function\n  found: native.choice(1)\n"
                "  fix: list the tensors one by one in the op's signature, or in a dataclass or a "
                "tuple of fixed length; a parameter with a default can be left out and is "
                "fixed at the default"
            ),
        ),
        (
            "name",
            native.scalar("fp32"),
            (
                "a scalar is declared for a parameter of type str\n  found: native.scalar('fp32')\n"
                "  fix: name=native.choice('one', 'other'), since C gets a number per value"
            ),
        ),
        (
            "name",
            native.scalar("str"),
            (
                "a scalar is declared for a parameter of type str\n  found: native.scalar('str')\n"
                "  fix: name=native.choice('one', 'other'), since C gets a number per value"
            ),
        ),
        (
            "mode",
            native.scalar("i32"),
            (
                "a scalar is declared for a parameter of type Mode\n  found: native.scalar('i32')\n"
                "  fix: mode=native.choice(Mode.FAST, Mode.SLOW)"
            ),
        ),
        (
            "sizes",
            native.scalar("i64"),
            (
                "a scalar is declared for a parameter of type list[int]\n"
                "  found: native.scalar('i64')\n  fix: sizes=native.choice((1, 2))"
            ),
        ),
        (
            "flag",
            native.scalar("i32"),
            (
                "a scalar is declared for a parameter of type bool\n  found: native.scalar('i32')\n"
                "  fix: flag=native.scalar('bool')"
            ),
        ),
        (
            "n",
            native.scalar("fp32"),
            (
                "type fp32 is declared for a parameter of type int\n  found: "
                "native.scalar('fp32')\n  fix: native.scalar of i8, i16, i32, i64, u8, u16, u32 or "
                "u64"
            ),
        ),
        (
            "factor",
            native.scalar("fp8e5"),
            (
                "fp8e5 exists only in memory; C has no scalar of that type\n"
                "  found: native.scalar('fp8e5')\n"
                "  fix: native.scalar of fp16, bf16, fp32, fp64, i8, i16, i32, i64, u8, u16, u32 "
                "or u64"
            ),
        ),
        ("n", native.choice(), "native.choice has no values\n  fix: n=native.scalar('i64')"),
        (
            "n",
            native.choice(1, "2"),
            "'2' is not a int\n  found: a value of type str\n  fix: n=native.scalar('i64')",
        ),
        (
            "n",
            True,
            "True is not a int\n  found: a value of type bool\n  fix: n=native.scalar('i64')",
        ),
        (
            "n",
            2**63,
            f"{2**63} is not a int\n  found: a value of type int\n  fix: n=native.scalar('i64')",
        ),
        (
            "n",
            native.choice(native.scalar("i64")),
            "found a spec where a value is expected\n  found: native.scalar('i64')",
        ),
        (
            "n",
            native.choice(None, 1),
            (
                "None is not a int\n  found: a value of type NoneType\n"
                "  fix: annotate it as int | None in the op, or n=native.scalar('i64')"
            ),
        ),
        (
            "act",
            native.choice("relu", "gelu"),
            "'gelu' is not one of the parameter's values\n  fix: one of 'relu', 'silu'",
        ),
        (
            "mode",
            "medium",
            "'medium' is not one of the parameter's values\n  fix: one of Mode.FAST, Mode.SLOW",
        ),
        (
            "sizes",
            3,
            (
                "3 is not a list[int]\n  found: a value of type int\n"
                "  fix: sizes=native.choice((1, 2))"
            ),
        ),
        (
            "dtype",
            "fp16",
            (
                "'fp16' is not a torch.dtype\n  found: a value of type str\n"
                "  fix: dtype=native.choice(torch.float16, torch.float32)"
            ),
        ),
    ],
)
def test_a_spec_that_does_not_fit_the_parameter_is_refused(make_op, parameter, spec, message):
    op = make_op(many)
    expected = f"OP (HERE), parameter '{parameter}': {message}"
    errors = (WrongArgument, BadOption, BadSignature)
    assert refusal(errors, op, **{**GIVEN, parameter: spec}) == expected


def test_a_scalar_of_no_type_is_refused(make_op):
    text = refusal(BadDeclaration, make_op(gemm), a=X, b=X, alpha=native.scalar("cfloat"))
    assert text.startswith("OP (HERE), parameter 'alpha': 'complex64' is a torch dtype")
    text = refusal(BadDeclaration, make_op(gemm), a=X, b=X, alpha=native.scalar("double_float"))
    assert text.startswith("OP (HERE), parameter 'alpha': 'double_float' is not an element type")


def test_a_list_of_tensors_without_a_default_cannot_be_declared(make_op):
    def summed(parts: list[Tensor]) -> Tensor:
        return parts[0] * 1

    op = make_op(summed)
    for specs in ({}, {"parts": X}, {"parts": [X]}):
        text = refusal(BadSignature, op, **specs)
        assert "parameter 'parts': a list of tensors has no place in a C function" in text


def test_a_record_is_declared_by_its_fields(make_op):
    assert refusal(WrongArgument, make_op(configured), x=X, cfg=native.scalar("fp32")) == (
        "OP (HERE), parameter 'cfg': Config is declared field by field\n"
        "  found: native.scalar('fp32')\n"
        "  fix: cfg=dict(scale=..., inner=..., mode=...), or field by field: "
        "cfg__scale=native.scalar('fp32')"
    )
    text = refusal(WrongArgument, make_op(configured), x=X, cfg=None)
    assert text.startswith("OP (HERE), parameter 'cfg': Config is declared field by field")


def test_a_tuple_is_declared_by_its_elements(make_op):
    def strided(x: Tensor, steps: tuple[int, int]) -> Tensor:
        return x * 1

    op = make_op(strided)
    native.declare(op, x=X, steps=(native.scalar("i32"), 2))
    assert refusal(WrongArgument, op, x=X, steps=(1, 2, 3)) == (
        "OP (HERE), parameter 'steps': tuple is declared field by field\n  found: (1, 2, 3)\n"
        "  fix: steps=(..., ...), a spec or a value per element"
    )
    assert [p.name for p in expand(op).params] == ["x", "steps__0"]


def test_a_field_that_is_given_twice_is_refused(make_op):
    text = refusal(WrongArgument, make_op(configured), x=X, cfg=dict(scale=1.0), cfg__scale=2.0)
    assert text == (
        "OP (HERE), parameter 'cfg.scale': declared twice in one call\n  found: 1.0 and 2.0\n"
        "  fix: keep one of them"
    )


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
    for alpha, found in [
        (native.scalar("fp64"), "native.scalar('fp64')"),
        (native.choice(1, 2.0), "native.choice(1.0, 2.0)"),
        (1.5, "fixed at 1.5"),
    ]:
        text = refusal(BadDeclaration, op, a=X, b=b, alpha=alpha)
        assert text == (
            "OP (HERE), parameter 'alpha': the declarations of this op give this parameter "
            f"different C types\n  found: native.scalar('fp32') at {first}; {found} at HERE\n"
            "  fix: declare it the same way in each; a parameter that is left out has its default "
            "for its only value"
        )


@pytest.mark.parametrize(
    ("annotation", "kind"), [(list[Tensor], "a list of tensors"), (int, "a number")]
)
def test_an_output_that_is_not_a_tensor_is_refused(make_op, annotation, kind):
    def fn(x: Tensor) -> annotation:
        return [x * 1]

    assert refusal(BadSignature, make_op(fn), x=X) == (
        f"OP (HERE), parameter 'return': the op returns {kind}, which a C function cannot return"
        "\n  fix: return individual tensors: Tensor, Tensor | None, or a tuple, NamedTuple or "
        "frozen dataclass of them"
    )


def test_too_many_cases_are_refused_with_what_multiplies(make_op):
    floats = ("fp16", "bf16", "fp32", "fp64")
    loose = native.tensor("...", floats, ranks=range(1, 9))
    text = refusal(
        BadDeclaration, make_op(rms_norm), x=loose, weight=loose, eps=native.choice(1, 2, 3, 4, 5)
    )
    assert text == (
        "OP (HERE): 5120 cases, more than 4096: each combination of dtypes, ranks and choices is "
        "traced and compiled by itself\n"
        "  found: x: 32, weight: 32, eps: 5; these multiply\n"
        "  fix: declare fewer values for x; several declare calls, each with the combinations you "
        "need, add up instead of multiplying; a type variable ties the dtypes of "
        "parameters together"
    )


def test_the_cases_of_all_declarations_count(make_op):
    op = make_op(rms_norm)
    loose = native.tensor("...", ("fp16", "bf16", "fp32", "fp64"), ranks=range(1, 9))
    for eps in range(4):
        native.declare(op, x=loose, weight=loose, eps=eps)
    assert "5120 cases" in refusal(BadDeclaration, op, x=loose, weight=loose, eps=4)
    assert len(expand(op).cases) == 4096


@pytest.mark.parametrize(
    ("value", "held"), [("a\0b", "a NUL character"), ("a\udcff", "a lone surrogate")]
)
def test_a_choice_that_is_no_text_of_c_is_refused(make_op, value, held):
    def routed(x: Tensor, route: str) -> Tensor:
        return x

    route = native.choice("a", value)
    assert refusal(WrongArgument, make_op(routed), x=X, route=route) == (
        f"OP (HERE), parameter 'route': a text with {held} cannot be a value in C\n"
        f"  found: {value!r}\n  fix: leave the value out, or give it another text in the op"
    )


def test_a_backward_is_wanted_or_not(make_op):
    op = make_op(silu)
    assert refusal(WrongArgument, op, x=X, backward="yes") == (
        "OP (HERE): backward= says whether the library has the op's backward\n"
        "  found: 'yes'\n"
        "  fix: backward=True, backward=False, or leave it out"
    )
    native.declare(op, x=X, backward=True)
    text = refusal(BadDeclaration, op, x=native.tensor("n", dtype="i8"), backward=False)
    assert text.startswith(
        "OP (HERE): one declaration asks for the op's backward, and one for none\n"
        f"  found: backward=True at {__file__}:"
    )
    assert text.endswith("; backward=False at HERE\n  fix: keep one of them")
    assert len(declarations(op)) == 1
