"""`native.implementations`: what it accepts and refuses, and what a build makes of it."""

from collections import Counter

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native
from opforge.errors import (
    BadDeclaration,
    BadOption,
    BadSignature,
    NotFound,
    WrongArgument,
)
from opforge.native.frontend.declaration import alternatives_of
from opforge.native.plan import plan
from opforge.native.targets import operators
from opforge.registry import registry


@triton.jit
def flat_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def strided_kernel(  # noqa: PLR0917 - a kernel's arguments
    x_ptr, y_ptr, out_ptr, n, x_step, y_step, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    total = tl.load(x_ptr + at * x_step, mask=mask) + tl.load(y_ptr + at * y_step, mask=mask)
    tl.store(out_ptr + at, total, mask=mask)


def add(x: Tensor, y: Tensor) -> Tensor:
    """The sum, of any strides."""
    out, n = x.new_empty(x.shape), x.shape[0]
    strided_kernel[(triton.cdiv(n, 128),)](x, y, out, n, x.stride(0), y.stride(0), BLOCK=128)
    return out


def flat_add(x: Tensor, y: Tensor) -> Tensor:
    """The sum of contiguous tensors."""
    out, n = torch.empty_like(x), x.numel()
    flat_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out


COMPACT = {"x": native.tensor("n", dtype="fp32"), "y": native.tensor("n", dtype="fp32")}
STRIDED = {n: native.tensor("n", dtype="fp32", layout="strided") for n in "xy"}


@pytest.fixture
def both(make_op):
    """The operator for any strides and one for contiguous tensors, declared."""
    general, flat = make_op(add), make_op(flat_add)
    native.declare(general, **STRIDED)
    native.declare(flat, **COMPACT)
    return general, flat


def short(op):
    return opforge.info(op).name.partition("::")[2]


def named(text, **ops):
    """A message with the ops' names and locations replaced."""
    for name, op in ops.items():
        info = opforge.info(op)
        text = text.replace(f"{info.name} ({info.location})", f"{name} (PLACE)")
        text = text.replace(info.name, name)
    return text


def test_a_build_has_one_operator_with_the_cases_of_all(both):
    general, flat = both
    native.implementations(general, flat, general)
    (op,) = plan([general, flat], (80,), name="several").ops
    assert op.name == short(general)
    assert [one.name for one in op.implementations] == [short(flat), short(general)]
    assert [case.implementation for case in op.cases] == [0, 1]
    assert [case.tensors[0].strides is None for case in op.cases] == [True, False]
    launched = [s.kernel_name for case in op.cases for p in case.paths for s in p.steps]
    assert Counter(launched).keys() == {"flat_kernel", "strided_kernel"}
    assert dict(op.implementations[0].takes)["x"] == "fp32, 1-d (n), compact"
    assert "compact; or fp32" in op.params[0].doc
    assert op.source_hash not in {one.source_hash for one in op.implementations}


def test_the_operator_itself_may_have_no_declaration(make_op):
    general, flat = make_op(add), make_op(flat_add)
    native.declare(flat, **COMPACT)
    native.implementations(general, flat)
    (op,) = plan([general, flat], (80,), name="several").ops
    assert op.torch_name == opforge.info(general).name
    assert [one.name for one in op.implementations] == [short(flat)]
    native.declare(general, **STRIDED)
    with pytest.raises(BadDeclaration, match="is not in its list of implementations") as refused:
        plan([general, flat], (80,), name="several")
    assert f"native.declare at {__file__}:" in str(refused.value)
    opforge.unregister(general)


def test_an_undeclared_implementation_is_refused(make_op):
    general, flat = make_op(add), make_op(flat_add)
    native.declare(general, **STRIDED)
    native.implementations(general, flat, general)
    with pytest.raises(NotFound) as refused:
        plan([general], (80,), name="several")
    text = named(str(refused.value), ADD=general, FLAT=flat)
    assert text.startswith(
        "FLAT (PLACE): it should implement ADD (PLACE) but has no native.declare"
    )


def clamp_(x: Tensor, limit: float, mode: str = "both") -> None:
    x.clamp_(-limit, limit)


def clamp_other(x: Tensor, bound: float, mode: str = "both") -> None:
    x.clamp_(-bound, bound)


def clamp_number(x: float, limit: float, mode: str = "both") -> Tensor:
    return torch.zeros(())


def clamp_read(x: Tensor, limit: float, mode: str = "both") -> Tensor:
    return x * limit


def clamp_longer(x: Tensor, limit: float, mode: str = "both", more: int = 0) -> None:
    x.clamp_(-limit, limit)


@pytest.mark.parametrize(
    ("other", "mutated", "parameter", "text"),
    [
        (clamp_other, ("x",), "limit", "the parameter is called 'bound' there"),
        (clamp_number, (), "x", "the parameter is Tensor here and float there"),
        (clamp_read, (), "x", "the parameter is changed here and only read there"),
        (clamp_longer, ("x",), "more", "OP has no such parameter"),
    ],
)
def test_another_signature_is_refused_where_they_are_listed(
    make_op, other, mutated, parameter, text
):
    op = make_op(clamp_, mutates_args=("x",), mode="custom_op")
    alternative = make_op(other, mutates_args=mutated, mode="custom_op")
    with pytest.raises(BadSignature) as refused:
        native.implementations(op, alternative, op)
    said = named(str(refused.value), OP=op, OTHER=alternative).splitlines()
    assert said[0] == (
        f"OP (PLACE), parameter '{parameter}': OTHER (PLACE) cannot implement this operator: {text}"
    )
    assert said[1].startswith("  fix: give the functions the same parameters")
    assert alternatives_of(registry.get(op)) is None


def test_another_number_of_outputs_is_refused(make_op):
    def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), torch.empty_like(y)

    with pytest.raises(BadSignature, match=r"has 1 output, and .* 2 outputs"):
        native.implementations(make_op(add), make_op(two))


def test_a_number_of_another_type_is_refused(make_op):
    op = make_op(clamp_, mutates_args=("x",), mode="custom_op")
    other = make_op(clamp_, mutates_args=("x",), mode="custom_op")
    x = native.tensor("n", dtype="fp32")
    native.declare(op, x=x, limit=native.scalar("fp32"))
    native.implementations(op, other, op)
    native.declare(other, x=x, limit=native.scalar("fp64"))
    with pytest.raises(BadDeclaration, match=r"parameter 'limit': .* different C types") as refused:
        plan([op], (80,), name="several")
    assert f"native.scalar('fp64') at {__file__}:" in str(refused.value)
    assert f"; native.scalar('fp32') at {__file__}:" in str(refused.value)


def pick(x: Tensor, mode: str = "sum") -> Tensor:
    out, n = torch.empty_like(x), x.numel()
    block = {"sum": 128, "both": 256, "fast": 512}[mode]
    flat_kernel[(triton.cdiv(n, block),)](x, x, out, n, BLOCK=block)
    return out


def test_choices_of_the_implementations_add_up(make_op):
    first, second = make_op(pick), make_op(pick)
    x = native.tensor("n", dtype="fp32")
    native.declare(first, x=x, mode="fast")
    native.declare(second, x=x, mode=native.choice("sum", "both", "fast"))
    native.implementations(second, first, second)
    (op,) = plan([second], (80,), name="several").ops
    (mode,) = [p for p in op.params if p.name == "mode"]
    assert mode.labels == ("FAST", "SUM", "BOTH")
    taken = [(case.implementation, mode.labels[dict(case.choices)["mode"]]) for case in op.cases]
    assert taken == [(0, "FAST"), (1, "SUM"), (1, "BOTH"), (1, "FAST")]
    blocks = [dict(s.constants)["BLOCK"] for c in op.cases for p in c.paths for s in p.steps]
    assert list(dict.fromkeys(blocks)) == ["512", "128", "256"]


def biased(x: Tensor, bias: Tensor | None = None) -> Tensor:
    out, n = torch.empty_like(x), x.numel()
    other = x if bias is None else bias
    flat_kernel[(triton.cdiv(n, 128),)](x, other, out, n, BLOCK=128)
    return out


def test_a_tensor_that_one_implementation_lacks_may_be_left_out(make_op):
    plain, full = make_op(biased), make_op(biased)
    x = native.tensor("n", dtype="fp32")
    native.declare(plain, x=x)
    native.declare(full, x=x, bias=x)
    native.implementations(full, plain, full)
    (op,) = plan([full], (80,), name="several").ops
    (bias,) = [p for p in op.params if p.name == "bias"]
    assert bias.optional
    assert [c.tensors[1].present for c in op.cases] == [False, True]
    assert [dict(one.takes).get("bias") for one in op.implementations] == [
        None, "fp32, 1-d (n), compact"
    ]  # fmt: skip


def test_invalid_lists_are_refused(both, make_op):
    general, flat = both
    third = make_op(add)
    with pytest.raises(BadDeclaration, match="no implementation is listed"):
        native.implementations(general)
    with pytest.raises(BadDeclaration, match="an op is listed twice"):
        native.implementations(general, flat, flat)
    with pytest.raises(WrongArgument, match="is not an opforge op"):
        native.implementations(general, len)
    native.implementations(general, flat, general)
    with pytest.raises(BadDeclaration, match="a different list of its implementations") as refused:
        native.implementations(general, general, flat)
    assert refused.value.location.startswith(__file__)
    with pytest.raises(BadDeclaration, match=r"implements .* already"):
        native.implementations(flat, third)
    with pytest.raises(BadDeclaration, match=r"implements .* already"):
        native.implementations(third, flat, third)
    with pytest.raises(BadDeclaration, match="is an operator with implementations of its own"):
        native.implementations(third, general)
    native.implementations(general, flat, general)


def test_an_implementation_that_is_gone_is_refused(both):
    general, flat = both
    native.implementations(general, flat, general)
    opforge.unregister(flat)
    with pytest.raises(WrongArgument, match="is not an opforge op"):
        plan([general], (80,), name="several")


OPERATOR = '''
import torch
import opforge
from opforge import native
import triton, triton.language as tl

@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)

def run(x):
    out, n = torch.empty_like(x), x.numel()
    kernel[(triton.cdiv(n, 128),)](x, out, n, BLOCK=128)
    return out

@opforge.op("several_tree::copy")
def copy(x: torch.Tensor) -> torch.Tensor:
    """A copy."""
    return run(x)

@opforge.op("several_fast::copy")
def fast_copy(x: torch.Tensor) -> torch.Tensor:
    return run(x)

native.declare(copy, x=native.tensor("n", dtype=("fp16", "fp32"), layout="strided"))
native.declare(fast_copy, x=native.tensor("n", dtype="fp32"))
LISTED
'''


@pytest.fixture
def written(tmp_path):
    """A tree with one operator, whose alternative has the same name in another namespace."""

    def write(listed):
        folder = tmp_path / "several_operators"
        (folder / "copy").mkdir(parents=True)
        (folder / "copy" / "op.py").write_text(OPERATOR.replace("LISTED", listed))
        return folder

    yield write
    for entry in registry:
        if entry.name.startswith("several_"):
            opforge.unregister(entry.name)


LISTED = "native.implementations(copy, fast_copy, copy)"


def test_an_alternative_in_a_tree_is_not_a_separate_operator(written):
    folder = written(LISTED)
    found = operators([f"{folder}/"])
    (op,) = plan(found, (80,)).ops
    assert (op.name, op.torch_name) == ("copy", "several_tree::copy")
    assert [one.name for one in op.implementations] == ["several_fast::copy", "several_tree::copy"]
    assert operators([f"{folder}/"], ("copy",)) == found
    with pytest.raises(NotFound, match="it is an implementation of copy"):
        operators([f"{folder}/"], ("several_fast::copy",))


def test_namesakes_that_are_not_listed_are_still_refused(written):
    folder = written("")
    with pytest.raises(BadOption, match="two operators would become the C function copy"):
        plan(operators([f"{folder}/"]), (80,), name="several")
