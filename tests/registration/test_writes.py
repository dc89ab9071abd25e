"""What a traced body writes, against what `mutates_args` says."""

import dataclasses
import warnings

import pytest
import torch
import torch._higher_order_ops.triton_kernel_wrap as wrap
import triton
import triton.language as tl

import opforge
from opforge.errors import OpforgeWarning, WrongResult
from support.launching import (
    blocks,
    double,
    double_in_place,
    graph_of,
    impure,
    kernel_names,
    launches,
)
from support.logs import heard

Tensor = torch.Tensor
x = torch.ones(8, 128)


def place_of(kernel):
    code = kernel.fn.__code__
    return f"kernel {kernel.fn.__name__} ({code.co_filename}:{code.co_firstlineno})"


@pytest.fixture
def refusal(op_name):
    """The text with which an undeclared write is refused."""

    def refuse(body, *args, **options):
        name = op_name()
        op = opforge.op(body, name=name, **options)
        with pytest.raises(WrongResult) as caught:
            graph_of(op, *(args or (x,)))
        assert f"{name} ({__file__}:{body.__code__.co_firstlineno})" in str(caught.value)
        return str(caught.value)

    return refuse


def in_place(x: Tensor) -> Tensor:
    double_in_place[(8,)](x, x.numel(), BLOCK=128)
    return torch.empty_like(x)


def in_place_on_a_view(x: Tensor) -> Tensor:
    double_in_place[(8,)](x.view(-1)[5:], 100, BLOCK=128)
    return torch.empty_like(x)


def written_as_an_output(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[(8,)](out, x, x.numel(), BLOCK=128)
    return out


@pytest.mark.parametrize(
    ("body", "kernel"),
    [
        (in_place, double_in_place),
        (in_place_on_a_view, double_in_place),
        (written_as_an_output, double),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_kernel_that_writes_an_input_is_refused_by_name(refusal, body, kernel):
    text = refusal(body)
    assert f"{place_of(kernel)} writes to 'x', which mutates_args does not name" in text
    assert "parameter 'x'" in text
    assert "fix: mutates_args=['x'], or write to a copy" in text


def add_in_place(x: Tensor) -> Tensor:
    x.add_(1)
    return launch_double(x)


def second_of_three(x: Tensor, y: Tensor, z: Tensor | None) -> Tensor:
    double_in_place[(8,)](y, y.numel(), BLOCK=128)
    return x + 1


@pytest.mark.parametrize(
    ("body", "args", "text"),
    [
        (add_in_place, (x,), "an in-place operation writes to 'x', which mutates_args"),
        (second_of_three, (x, x, None), "writes to 'y'"),
    ],
)
def test_an_operation_in_place_or_of_another_input_is_refused_too(refusal, body, args, text):
    assert text in refusal(body, *args)


@dataclasses.dataclass(frozen=True)
class State:
    step: Tensor
    total: Tensor
    scale: float = 1.0


def test_a_field_is_named_by_its_path(op_name):
    @opforge.op(op_name(), mutates_args=("state.step",))
    def op(x: Tensor, state: State) -> Tensor:
        double_in_place[(8,)](state.step, x.numel(), BLOCK=128)
        double_in_place[(8,)](state.total, x.numel(), BLOCK=128)
        return x + 1

    with pytest.raises(WrongResult, match=r"writes to 'state\.total'") as caught:
        graph_of(lambda x, y, z: op(x, State(y, z)), x, x, x)
    assert "mutates_args=['state.step', 'state.total']" in str(caught.value)


def test_a_write_inside_of_a_nested_op_is_one_of_the_outer_op(op_name, refusal):
    @opforge.op(op_name(), mutates_args=("x",))
    def inner(x: Tensor) -> None:
        double_in_place[(8,)](x, x.numel(), BLOCK=128)

    def body(x: Tensor) -> Tensor:
        inner(x)
        return x + 1

    assert "writes to 'x'" in refusal(body, mode="triton_op")


@pytest.mark.parametrize("declared", [("x",), ["x"], "unknown"], ids=str)
def test_a_declared_write_is_fine(op_name, declared):
    op = opforge.op(in_place, name=op_name(), mutates_args=declared)
    [launch] = launches(graph_of(op, x))
    assert launch.cloned == ["x_ptr"]
    assert not any("wrote nothing" in note for note in opforge.info(op).notes)


@triton.jit
def first_of(index_ptr, IS_INDEXED: tl.constexpr):
    first = 0
    if IS_INDEXED:
        first = tl.load(index_ptr)
    return first


@triton.jit
def scatter(x_ptr, index_ptr, out_ptr, IS_INDEXED: tl.constexpr):
    tl.store(out_ptr + first_of(index_ptr, IS_INDEXED), tl.load(x_ptr))


@pytest.mark.parametrize("is_indexed", [True, False], ids=["read", "passed"])
def test_a_tensor_that_an_index_is_read_from_is_not_written(op_name, is_indexed):
    @opforge.op(op_name())
    def op(x: Tensor, index: Tensor) -> Tensor:
        out = torch.empty_like(x)
        scatter[(1,)](x, index, out, IS_INDEXED=is_indexed)
        return out

    [launch] = launches(graph_of(op, x, torch.zeros(1, dtype=torch.int32)))
    assert launch.cloned == ["out_ptr"]


def test_an_input_given_twice_may_be_written_through_the_declared_one(op_name):
    @opforge.op(op_name(), mutates_args=("x",))
    def op(x: Tensor, y: Tensor) -> None:
        double_in_place[(8,)](x, x.numel(), BLOCK=128)

    assert kernel_names(graph_of(lambda x: op(x, x), x)) == ["double_in_place"]


def launch_impure(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    impure[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


def launch_double(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


@triton.jit
def reads_only(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.load(x_ptr + offs, mask=offs < n)


def launch_reads_only(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    reads_only[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


class Analysis:
    """torch's analysis of kernels, which can be made to fail, and its log."""

    def __init__(self, monkeypatch, records):
        self.monkeypatch = monkeypatch
        self.records = records

    def fail(self):
        def generate_ttir(*_args):
            raise RuntimeError("no analysis today\nand more of it")

        self.monkeypatch.setattr(wrap, "generate_ttir", generate_ttir)

    def logged(self):
        return [record.getMessage() for record in self.records]


@pytest.fixture
def analysis(monkeypatch):
    with heard(wrap.log.name) as records:
        yield Analysis(monkeypatch, records)


@pytest.mark.parametrize(
    ("body", "kernel", "why"),
    [
        (launch_impure, impure, "RuntimeError: ttir analysis hit an op we do not know"),
        (launch_double, double, "RuntimeError: no analysis today)"),
        (launch_reads_only, reads_only, "it shows no write at all"),
    ],
    ids=["inline assembly", "analysis raises", "no write"],
)
def test_a_kernel_that_cannot_be_analysed_is_assumed_to_write_all(
    op_name, analysis, body, kernel, why
):
    if kernel is double:
        analysis.fail()
    name = op_name()
    op = opforge.op(body, name=name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graphs = [graph_of(op, x) for _ in range(2)]
    for graph in graphs:
        [launch] = launches(graph)
        assert launch.cloned == ["x_ptr", "out_ptr"]
    [warning] = [str(w.message) for w in caught if issubclass(w.category, OpforgeWarning)]
    assert warning.startswith(f"{name} ({__file__}:{body.__code__.co_firstlineno}): ")
    assert f"cannot tell what {place_of(kernel)} writes" in warning
    assert why in warning
    assert "assumed to write every tensor it is given" in warning
    assert analysis.logged() == []


def test_a_known_write_is_refused_even_beside_an_assumed_one(op_name):
    @opforge.op(op_name())
    def op(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        impure[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
        double_in_place[(8,)](y, y.numel(), BLOCK=128)
        return out

    with (
        pytest.warns(OpforgeWarning, match="kernel impure"),
        pytest.raises(WrongResult, match=r"kernel double_in_place .* writes to 'y'"),
    ):
        graph_of(op, x, x)


def test_torchs_own_log_line_is_kept_outside_of_opforge(analysis, op_name):
    graph_of(opforge.op(launch_double, name=op_name()), x)
    analysis.fail()

    def plain(x):
        out = torch.empty_like(x)
        torch.library.wrap_triton(double)[(8,)](x, out, x.numel(), BLOCK=128)
        return out

    graph_of(plain, x)
    [line] = analysis.logged()
    assert "assuming every input is mutated" in line
