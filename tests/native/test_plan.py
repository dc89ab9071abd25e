"""What a library gets of an op's declared backward."""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native
from opforge.errors import BadOption, BuildFailed, UnsupportedBody
from opforge.native.ir.places import shortened
from opforge.native.plan import check_name, plan, refuse_namesakes
from opforge.registry import registry
from support.archs import sm

N = native.tensor("n", dtype="fp32")


def exp(x: Tensor) -> Tensor:
    return torch.exp(x)


def save_output(ctx, inputs, output):
    ctx.save_for_backward(output)


def times_output(ctx, grad):
    return grad * ctx.saved_tensors[0]


def sorts(ctx, grad):
    return grad.sort().values


@pytest.fixture
def declared(op_name):
    """An op with a backward, declared; and its name."""

    def make(fn=exp, backward=times_output, name=None, asked=None):
        name = name or op_name()
        callbacks = {"backward": backward, "setup_context": save_output} if backward else {}
        op = opforge.op(fn, name=name, mode="custom_op", **callbacks)
        specs = {p: N for p in fn.__annotations__ if p != "return"}
        native.declare(op, backward=asked, **specs)
        return op, name

    return make


def test_a_note_about_a_call_that_opforge_adds_names_the_backward(declared):
    def added(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def both(ctx, grad):
        return grad, grad

    op, _ = declared(added, both)
    (note,) = [n for n in plan([op], sm(90)).notes if "aten.clone" in n]
    assert f"aten.clone at {__file__}:{both.__code__.co_firstlineno} became kernel" in note


@triton.jit
def wide_kernel(x_ptr, n: tl.int64):
    tl.static_assert(False, "not today")


def test_a_kernel_of_64_bits_at_all_sizes_is_not_left_out(op_name, tmp_path):
    """Those that only sizes beyond 32 bits need are, if they do not compile."""

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        wide_kernel[(1,)](out, 3)
        return out

    op = opforge.op(body, name=op_name(), mode="custom_op")
    native.declare(op, x=N)
    with pytest.raises(BuildFailed, match="not today") as caught:
        native.build([op], tmp_path, archs=[80], cache=None, jobs=1)
    assert f"{__file__}:" in str(caught.value)


def test_a_backward_is_an_operator_of_the_library(declared):
    op, name = declared()
    own = name.partition("::")[2]
    heard = []
    forward, backward = plan([op], (90,), traced=lambda *told: heard.append(told)).ops
    assert heard == [(name, 1), (f"{name}_backward", 1)]
    assert (forward.name, backward.name) == (own, f"{own}_backward")
    assert [p.name for p in backward.params] == ["grad_out", "out"]
    assert backward.outputs == ("grad_x",)
    assert backward.schema == f"{name}_backward(Tensor grad_out, Tensor out) -> Tensor"
    assert backward.location == f"{__file__}:{times_output.__code__.co_firstlineno}"
    assert backward.source_hash
    assert forward.formula == (("call", f"{name}_backward", ("grad", 0), ("output", 0)),)
    assert backward.formula == ()


def sorts_x(x: Tensor) -> Tensor:
    return x.sort().values


def goes_round(x: Tensor) -> Tensor:
    if x.dtype is torch.float64:
        return x.cummax(0).values
    for _ in range(x.shape[0] if x.dtype is torch.float16 else 1):
        x = x + 1
    return x


def line_of(fn, number):
    return f"{__file__}:{fn.__code__.co_firstlineno + number}"


@pytest.fixture
def of_dtypes(op_name):
    def make(fn, *dtypes):
        op = opforge.op(fn, name=op_name(), mode="custom_op")
        native.declare(op, x=native.tensor("n", dtype=dtypes))
        return op

    return make


def test_all_cases_that_cannot_be_built_are_named(of_dtypes):
    with pytest.raises(UnsupportedBody) as raised:
        plan([of_dtypes(sorts_x, "fp16", "fp32")], (90,))
    assert raised.value.what == "it cannot be built for x fp16 1-d; x fp32 1-d"
    assert raised.value.found == f"aten.sort at {line_of(sorts_x, 1)}"
    many = ("fp16", "bf16", "fp32", "fp64", "i8", "i16")
    with pytest.raises(UnsupportedBody, match=r"x fp64 1-d \(and 2 similar cases\)"):
        plan([of_dtypes(sorts_x, *many)], (90,))


def test_cases_that_cannot_be_built_for_several_reasons_are_grouped(of_dtypes):
    op = of_dtypes(goes_round, "fp32", "fp16", "fp64")
    with pytest.raises(UnsupportedBody, match="2 of its 3 cases cannot be built") as raised:
        plan([op], (90,))
    text = str(raised.value)
    assert "found: x fp16 1-d: n must be a constant, for a constexpr" in text
    assert f"kernels\n      used at {line_of(goes_round, 3)}\n    x fp64 1-d:" in text
    assert f"x fp64 1-d:\n      aten.cummax at {line_of(goes_round, 2)}\n  fix: " in text


def test_all_operators_that_cannot_be_built_are_named(of_dtypes):
    ops = [of_dtypes(sorts_x, "fp32"), of_dtypes(exp, "fp32"), of_dtypes(goes_round, "fp16")]
    with pytest.raises(UnsupportedBody) as raised:
        plan(ops, (90,))
    assert raised.value.what == "2 of 3 operators cannot be built"
    sort, _, loop = (registry.get(op).name for op in ops)
    assert raised.value.found.startswith(
        f"{sort} ({line_of(sorts_x, 0)}): it cannot be built for x fp32 1-d\n"
        f"      aten.sort at {line_of(sorts_x, 1)}\n"
        f"    {loop} ({line_of(goes_round, 0)}): n must be a constant, "
    )


def test_the_first_of_several_implementations_hides_no_other(of_dtypes):
    op, other = of_dtypes(sorts_x, "fp32"), of_dtypes(goes_round, "fp64")
    native.implementations(op, op, other)
    with pytest.raises(UnsupportedBody) as raised:
        plan([op], (90,))
    assert raised.value.what == "2 of its 2 implementations cannot be built"
    assert f"aten.sort at {line_of(sorts_x, 1)}" in raised.value.found
    assert f"aten.cummax at {line_of(goes_round, 2)}" in raised.value.found


def test_architectures_are_named_as_for_a_build(of_dtypes):
    op = of_dtypes(exp, "fp32")
    assert plan([op], archs=["sm_90", "sm_80"]).archs == sm(80, 90)
    assert plan([op], "sm_80").archs == sm(80)
    assert plan([op]).archs == sm(90)
    with pytest.raises(BadOption, match="'fast' is not a GPU architecture"):
        plan([op], archs=["fast"])


def test_a_note_says_why_a_backward_is_not_built(declared):
    op, name = declared(backward=sorts)
    made = plan([op], (90,))
    assert [each.torch_name for each in made.ops] == [name]
    (note,) = [note for note in made.notes if "_backward" in note]
    line = sorts.__code__.co_firstlineno + 1
    assert note.startswith(f"{name}: the library has no {name.partition('::')[2]}_backward")
    assert f"aten.sort at {__file__}:{line}; a native library can hold" in note
    assert not made.requests.keys() - plan([declared(backward=None)[0]], (90,)).requests.keys()
    assert shortened(note).endswith("_backward, because it cannot be built")


def test_a_backward_that_is_asked_for_is_an_error_where_it_cannot_be_built(declared):
    op, name = declared(backward=sorts, asked=True)
    with pytest.raises(
        UnsupportedBody, match=rf"{name}_backward \(.*it cannot be built for grad_out"
    ):
        plan([op], (90,))
    op, name = declared(backward=None, asked=True)
    with pytest.raises(UnsupportedBody, match="says backward=True, and it has none"):
        plan([op], (90,))
    op, _ = declared(asked=True)
    assert len(plan([op], (90,)).ops) == 2


def test_a_backward_that_is_not_wanted_is_left_out_without_a_note(declared):
    for backward in (times_output, sorts):
        op, name = declared(backward=backward, asked=False)
        made = plan([op], (90,))
        assert [each.torch_name for each in made.ops] == [name]
        assert not [note for note in made.notes if "_backward" in note]


def by_hand(grad: Tensor, out: Tensor) -> Tensor:
    return grad * out * 1


def test_an_operator_of_that_name_is_the_backward(declared):
    op, name = declared()
    other, _ = declared(by_hand, None, f"{name}_backward")
    made = plan([op, other], (90,))
    assert [each.torch_name for each in made.ops] == [name, f"{name}_backward"]
    assert [p.name for p in made.ops[1].params] == ["grad", "out"]
    assert [each.torch_name for each in plan([op], (90,)).ops] == [name]


def test_beside_an_operator_of_that_name_without_a_declaration_it_is_for_c_only(declared):
    op, name = declared()
    opforge.op(by_hand, name=f"{name}_backward", mode="custom_op")
    forward, backward = plan([op], (90,)).ops
    assert backward.name == f"{forward.name}_backward"
    assert (backward.torch_name, backward.schema, forward.formula) == ("", "", ())


def test_the_backward_of_several_implementations_has_the_cases_of_all(declared, op_name):
    op, _ = declared()
    wide = opforge.op(exp, name=op_name(), mode="custom_op")
    native.declare(wide, x=native.tensor("n", dtype=("fp64", "fp32")))
    native.implementations(op, op, wide)
    _, backward = plan([op], (90,)).ops
    assert [case.tensors[0].dtype for case in backward.cases] == ["fp32", "fp64"]
    assert {case.implementation for case in backward.cases} == {0}


def scaled(x: Tensor, factor: float, y: Tensor) -> Tensor:
    return x * factor * y


def test_several_gradients_are_items_of_the_call(op_name):
    def save(ctx, inputs, output):
        x, ctx.factor, y = inputs
        ctx.save_for_backward(x, y)

    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y * ctx.factor, None, grad * x * ctx.factor

    name = op_name()
    op = opforge.op(scaled, name=name, mode="custom_op", backward=backward, setup_context=save)
    native.declare(op, x=N, y=N, factor=native.scalar("fp32"))
    forward, backward = plan([op], (90,)).ops
    call = ("call", f"{name}_backward", ("grad", 0), ("input", 0), ("input", 1), ("input", 2))
    assert forward.formula == (("item", call, 0), None, ("item", call, 1))
    assert backward.schema == (
        f"{name}_backward(Tensor grad_out, Tensor x, float factor, Tensor y) -> (Tensor, Tensor)"
    )


def with_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x.abs().amax(0)


def test_a_backward_that_marks_an_output_is_not_carried(op_name):
    def save(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])

    name = op_name()
    op = opforge.op(
        with_norm, name=name, mode="custom_op", backward=lambda ctx, grad, _: grad * 2,
        setup_context=save,
    )  # fmt: skip
    native.declare(op, x=N)
    forward, backward = plan([op], (90,)).ops
    assert forward.formula == ()
    assert [p.name for p in backward.params] == ["grad_out0"]


def test_the_backward_of_an_op_that_broadcasts_is_not_carried(op_name):
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    op = opforge.op(add, name=op_name(), mode="custom_op", backward=lambda ctx, g: (g, g))
    s = native.tensor("*s", dtype="fp32", layout="strided", ranks=(1,), broadcast=True)
    native.declare(op, x=s, y=native.tensor("*s", dtype="fp32", layout="strided", broadcast=True))
    forward, backward = plan([op], (90,)).ops
    assert (forward.formula, backward.outputs) == ((), ("grad_x", "grad_y"))


def test_names_that_no_file_could_have_are_refused(op_name):
    check_name("a" * 200)
    with pytest.raises(BadOption, match="the library's name has 300 characters"):
        check_name("a" * 300)
    long = opforge.op(exp, name=op_name() + "a" * 300, mode="custom_op")
    with pytest.raises(BadOption, match="an operator's name has 3") as caught:
        refuse_namesakes([registry.get(long)])
    assert "test_plan.py" in caught.value.found
    opforge.unregister(long)
