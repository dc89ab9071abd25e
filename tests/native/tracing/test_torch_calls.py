"""torch calls in a body become kernels that compute the same."""

import operator
import re

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from opforge import native
from opforge.errors import BadDeclaration, UnsupportedBody, WrongResult
from opforge.native.ir.cases import Launch
from opforge.native.ir.dtypes import DTYPES
from support.logs import heard
from support.native.torch_bodies import Program, agree
from support.native.torch_table import (
    BINARY,
    INDEXED,
    MOVED,
    PRODUCTS,
    REDUCED,
    UNARY,
    body_of_one,
    body_of_two,
)
from support.native.traced_kernels import take

SHAPE = (3, 5, 7)


def rows(dtype, seed=0, shape=SHAPE):
    generator = torch.Generator().manual_seed(seed)
    wanted = getattr(torch, DTYPES[dtype].torch)
    if dtype == "i1":
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not wanted.is_floating_point:
        low = 0 if dtype == "u8" else -50
        return torch.randint(low, 100, shape, generator=generator).to(wanted)
    return torch.randn(shape, generator=generator, dtype=torch.float64).mul_(3).to(wanted)


def inputs(dtype, seed=0):
    found = rows(dtype, seed, (67,))
    if found.is_floating_point():
        found[:6] = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan")])
    return found


# Where torch's CPU kernels differ from those for a GPU, which libraries follow: at infinity, or by
# the rounding of a number to half precision. tests/gpu holds these to the bit.
NOT_AT_INFINITY = {"gelu", "pow_half", "pow", "pow_odd"}
ROUNDED_EARLIER = {"add_alpha", "sub_alpha"}


def check(name, body, dtype, tensors, names):
    program = Program(body, **{n: native.tensor("n", dtype=dtype) for n in names})
    if name in NOT_AT_INFINITY:
        tensors = [t[6:] for t in tensors]
    found, wanted = program(*tensors), body(*tensors)
    assert found.dtype is wanted.dtype
    near = {"rtol": 1e-2, "atol": 1e-2} if name in ROUNDED_EARLIER else {}
    torch.testing.assert_close(found, wanted, equal_nan=True, **near)


@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_one_tensor(name):
    function, dtypes = UNARY[name]
    for dtype in two_of(name, dtypes):
        check(name, body_of_one(function), dtype, [inputs(dtype)], "x")


@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_tensors(name):
    function, dtypes = BINARY[name]
    for dtype in two_of(name, dtypes):
        tensors = [inputs(dtype), inputs(dtype, 1)]
        check(name, body_of_two(function), dtype, tensors, "xy")


def two_of(name, dtypes):
    """Single precision and one more, another for each test; tests/gpu takes them all."""
    more = [d for d in dtypes if d != "fp32"]
    return (
        {*{"fp32"} & set(dtypes), *more[sum(name.encode()) % len(more) :][:1]} if more else dtypes
    )


@pytest.mark.parametrize("name", REDUCED)
def test_a_reduction(name):
    function, dtypes = REDUCED[name]
    for dtype in two_of(name, dtypes):
        body, x = body_of_one(function), rows(dtype, shape=(2, 3, 5))
        found, wanted = Program(body, x=native.tensor("a b c", dtype=dtype))(x), body(x)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        near = {"rtol": 2e-2, "atol": 2e-2} if dtype in {"fp16", "bf16"} else {}
        torch.testing.assert_close(found, wanted, **near)


@pytest.mark.parametrize("name", MOVED)
def test_elements_that_move(name):
    agree(MOVED[name], rows("fp32"))


@pytest.mark.parametrize("name", INDEXED)
def test_elements_by_their_positions(name):
    body, x, at = body_of_two(INDEXED[name]), rows("fp32"), torch.tensor([[0, 4]]).expand(3, 2)
    specs = {"x": native.tensor("3 5 7", dtype="fp32"), "y": native.tensor("3 2", dtype="i64")}
    found, wanted = Program(body, **specs)(x, at.contiguous()), body(x, at)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_matrices(name):
    x, y = rows("fp32"), rows("fp32", 1).transpose(1, 2).contiguous()[..., :4].contiguous()
    agree(PRODUCTS[name], x, y)


@pytest.mark.parametrize("dtype", ["fp64", "i32", "fp8e4nv"])
@pytest.mark.parametrize(
    ("product", "name"),
    [
        (torch.mm, "aten.mm"),
        (lambda x, y: x @ y, ".matmul()"),
        (lambda x, y: functional.linear(x, y.t()), "torch.nn.functional.linear"),
    ],
)
def test_a_product_of_a_dtype_that_the_kernel_lacks_is_refused_with_it(product, name, dtype):
    body = body_of_two(product)
    specs = {"x": native.tensor("m k", dtype=dtype), "y": native.tensor("k n", dtype=dtype)}
    with pytest.raises(UnsupportedBody) as refused:
        _ = Program(body, **specs).body.built
    why = f": products are of fp16, bf16 and fp32, not {dtype}"
    assert refused.value.found.startswith(f"{name} at ")
    assert refused.value.found.endswith(why)


def test_stacks_of_as_many_matrices_are_multiplied_and_others_refused():
    def body(x: Tensor, y: Tensor) -> Tensor:
        return torch.bmm(x, y)

    specs = {"x": native.tensor("a m k", dtype="fp32"), "y": native.tensor("b k n", dtype="fp32")}
    program = Program(body, **specs)
    x, y = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    torch.testing.assert_close(program(x, y), torch.bmm(x, y))
    with pytest.raises(AssertionError, match="a matrices cannot be multiplied with b others"):
        program(x, torch.randn(3, 4, 5))


@pytest.mark.parametrize(
    "moved",
    [
        lambda x: x.cuda(),
        lambda x: x.to(x.device, None, True),
        lambda x: x.to(device="cuda:0"),
        lambda x: x.to(x),
    ],
)
def test_a_tensor_that_moves_to_the_gpu_is_the_same(moved):
    def body(x: Tensor) -> Tensor:
        moved(x).add_(1)
        return x * 2

    assert kernels_of(body, mutates=("x",), x=native.tensor("n", dtype="fp32")) == ["torch_add_mul"]


@pytest.mark.parametrize(
    "moved", [lambda x: x.cuda(1), lambda x: x.to("cuda:1"), lambda x: x.cpu()]
)
def test_a_tensor_that_moves_elsewhere_is_refused(moved):
    def body(x: Tensor) -> Tensor:
        return moved(x) * 2

    with pytest.raises(UnsupportedBody, match=r"found: \.(cuda|to|cpu)\(\) at "):
        _ = Program(body, x=native.tensor("n", dtype="fp32")).body.built


def test_len_is_told_from_a_size():
    def body(x: Tensor) -> Tensor:
        return x * len(x)

    with pytest.raises(BadDeclaration) as refused:
        _ = Program(body, x=native.tensor("n", dtype="fp32")).body.built
    assert refused.value.fix == (
        "write x.shape[0] for len(x), which Python wants as a plain number, or declare the values "
        "of n: dims={'n': [1024, 4096]}, or bound it: dims={'n': (1, 64)}"
    )
    bounded = Program(body, x=native.tensor("n", dtype="fp32"), dims={"n": [3, 5]})
    assert torch.equal(bounded(torch.ones(5)), torch.full((5,), 5.0))


def kernels_of(body, **specs):
    """The kernels of the only path."""
    (built,) = Program(body, **specs).body.built
    (path,) = built.case.paths
    return [step.kernel_name for step in path.steps if isinstance(step, Launch)]


X = {"x": native.tensor("m n", dtype="fp16")}


def test_calls_over_the_same_elements_are_one_kernel_with_several_results():
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y * 2

    assert kernels_of(body, **X) == ["torch_add_mul"]


def test_a_copy_of_a_transposed_result_reads_what_the_result_is_made_of():
    def body(x: Tensor) -> Tensor:
        return (x + 1).t().clone(memory_format=torch.contiguous_format)

    assert kernels_of(body, **X) == ["torch_add_clone"]


def test_a_launch_sees_what_calls_before_it_computed():
    def body(x: Tensor) -> Tensor:
        y = x * 2
        out = torch.empty_like(x)
        take[(1,)](y, out, 1, 2)
        return out.add_(y)

    assert kernels_of(body, **X) == ["torch_mul", "take", "torch_add"]


def test_a_write_in_between_keeps_the_order():
    def body(x: Tensor) -> Tensor:
        y = x + 1
        z = y.t() * 2
        y.mul_(3)
        return z + y.t()

    agree(body, torch.randn(4, 6))


def flipped_in_place(x: Tensor) -> Tensor:
    x.copy_(x.flip(0))
    return x[:1] + 1


def transposed_in_place(x: Tensor) -> Tensor:
    x.copy_((x + 1).t())
    return x[:1] + 1


def column_of_sums(x: Tensor) -> Tensor:
    x[:, 0].copy_(x.amax(0) * 2)
    return x[:1] + 1


@pytest.mark.parametrize(
    ("body", "made", "written"),
    [
        (flipped_in_place, "torch_flip", "torch_copy"),
        (transposed_in_place, "torch_add", "torch_copy"),
        (column_of_sums, "torch_amax_mul", "torch_copy"),
    ],
)
def test_a_kernel_does_not_read_elsewhere_what_its_other_programs_write(body, made, written):
    names = kernels_of(body, mutates=("x",), x=native.tensor("8 8", dtype="fp32"))
    assert names == [made, written, "torch_add"]


def test_a_result_that_nothing_needs_is_not_computed():
    def body(x: Tensor) -> Tensor:
        x.exp().log()
        return x + 1

    assert kernels_of(body, **X) == ["torch_add"]


def test_an_in_place_call_of_an_undeclared_parameter_is_refused():
    def body(x: Tensor) -> Tensor:
        return x.mul_(2) + 1

    with pytest.raises(WrongResult, match=r"torch_mul_add .* writes to 'x'"):
        _ = Program(body, **X).body.built


CONVERTED = {
    "torch.complex64": lambda x: x.to(torch.complex64).to(torch.float32),
    "torch.float8_e8m0fnu": lambda x: x.to(torch.float8_e8m0fnu).to(torch.float32),
}


@pytest.mark.parametrize("dtype", CONVERTED)
def test_a_conversion_that_triton_lacks_is_a_call_that_no_library_makes(dtype):
    def body(x: Tensor) -> Tensor:
        if x.shape[0] > 100:
            x = x + CONVERTED[dtype](x).sum().to(torch.float32)
        return x * 2

    with pytest.raises(UnsupportedBody) as refused:
        _ = Program(body, x=native.tensor("n", dtype="fp32")).body.built
    assert refused.value.what == "it cannot be built for x fp32 1-d where 100 < n"
    found = rf"\.to\(\) at {re.escape(__file__)}:\d+: a kernel has no {dtype}"
    assert re.fullmatch(found, refused.value.found)


def test_all_conditions_that_lead_to_refused_calls_are_named():
    def body(x: Tensor) -> Tensor:
        if x.shape[0] > 100:
            return x.sort().values
        if x.shape[0] < 20 and x.shape[1] > 3:
            return x.cummax(0).values
        return x * 2

    with pytest.raises(UnsupportedBody) as refused:
        _ = Program(body, **X).body.built
    where = "where m < 20 and 3 < n or 100 < m"
    assert refused.value.what == f"it cannot be built for x fp16 2-d {where}"


def test_sizes_that_do_not_fit_are_refused_and_the_others_built():
    def body(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    specs = {"x": native.tensor("m", dtype="fp32"), "y": native.tensor("n", dtype="fp32")}
    program = Program(body, **specs)
    for m, n in [(3, 3), (1, 4), (4, 1), (1, 1)]:
        x, y = torch.randn(m), torch.randn(n)
        assert torch.equal(program(x, y), x + y)
    with pytest.raises(AssertionError, match="must be equal, or one of them 1"):
        program(torch.randn(3), torch.randn(4))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1)])
def test_tensors_without_elements(shape):
    agree(lambda x: torch.cat([x * 2, x.sum(0, keepdim=True)], 0).mean(), torch.ones(shape))


def test_strided_tensors_are_read_and_written_where_they_are():
    def body(x: Tensor, y: Tensor) -> Tensor:
        y.add_(x.t())
        return (y * 2).sum(0)

    layout = {"dtype": "fp32", "layout": "strided"}
    specs = {"x": native.tensor("m n", **layout), "y": native.tensor("n m", **layout)}
    x, y = torch.randn(4, 10)[:, ::2], torch.randn(9, 5).t()[:5, :4]
    expected = y + x.t()
    found = Program(body, mutates=("y",), **specs)(x, y)
    assert torch.equal(y, expected)
    torch.testing.assert_close(found, (expected * 2).sum(0))


def test_a_call_that_would_read_what_it_writes_is_refused_as_torch_refuses_it():
    def body(x: Tensor) -> Tensor:
        x[1:].add_(x[:-1])
        return x + 1

    flat = {"x": native.tensor("n", dtype="fp32"), "dims": {"n": (4, 4096)}}
    with pytest.raises(UnsupportedBody, match="refer to a single memory location"):
        _ = Program(body, mutates=("x",), **flat).body.built


def test_the_note_has_the_line_of_each_call():
    def body(x: Tensor) -> Tensor:
        y = x.float() * 2
        z = y + 1
        return z.exp()

    (built,) = Program(body, **X).body.built
    line = body.__code__.co_firstlineno
    (note,) = built.notes
    assert note == (
        f".float(), aten.mul.Tensor at {__file__}:{line + 1}, aten.add.Tensor at "
        f"{__file__}:{line + 2}, aten.exp at {__file__}:{line + 3} became kernel "
        "torch_to_copy_mul_add_exp"
    )


def test_a_reduction_finishes_what_is_made_of_its_result():
    def body(x: Tensor) -> Tensor:
        return torch.rsqrt((x.float() ** 2).amax(-1, keepdim=True) + 1e-5) * 2

    wide = {"x": native.tensor("m 64", dtype="fp16")}
    assert kernels_of(body, **wide) == ["torch_to_copy_pow_amax_add_and_2_more"]
    x = torch.randn(3, 64).half()
    torch.testing.assert_close(Program(body, **wide)(x), body(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.argmax(0),
        lambda x: x.min(0).indices,
        lambda x: x.logsumexp(0),
        lambda x: torch.var_mean(x, 0)[0],
        lambda x: torch.var_mean(x, 0)[1],
    ],
)
def test_programs_that_share_a_result_tell_each_other_all_they_found(function):
    body = body_of_one(function)
    columns = {"x": native.tensor("m 4", dtype="fp32"), "dims": {"m": (1025, 4096)}}
    assert len(kernels_of(body, **columns)) == 2
    # Ties in several parts, an infinity, and NaN.
    x = torch.randint(-8, 9, (1100, 4)).float()
    x[700, 1], x[[300, 900], 2] = -torch.inf, torch.nan
    found = Program(body, **columns)(x)
    torch.testing.assert_close(found, body(x), equal_nan=True)


INFINITE = torch.tensor(
    [[-torch.inf] * 3, [torch.inf, 0, 1], [-torch.inf, 0, 1], [torch.nan, 0, 1]]
)


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax, torch.logsumexp])
def test_rows_with_infinities(function):
    agree(lambda x: function(x, -1), INFINITE)


@pytest.mark.parametrize(
    ("dtype", "function"),
    [
        ("u8", lambda x: x * -3),
        ("u8", lambda x: (x % -3) + (x // -3)),
        ("u8", lambda x: torch.where(x > 3, x, -1)),
        ("u8", lambda x: torch.full_like(x, -1) - x),
        ("u8", lambda x: x == -1),
        ("i8", lambda x: x + 200),
        ("i8", lambda x: x == 255),
        ("i32", lambda x: x * (2**40 + 3)),
    ],
)
def test_numbers_beyond_a_type_wrap_around(dtype, function):
    agree(function, torch.tensor([0, 1, 2, 5, 100, -1]).to(getattr(torch, DTYPES[dtype].torch)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(0),
        lambda x: x.argmax(-1),
        lambda x: x.max(0)[0],
        lambda x: x.softmax(0),
        lambda x: x.cumsum(-1),
    ],
)
def test_dimension_0_of_a_tensor_without_dimensions(function):
    agree(function, torch.tensor(2.5))


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (2, 3, 0), (0, 3, 4)])
def test_a_product_without_elements_is_zero(shape):
    agree(operator.matmul, torch.randn(shape), torch.randn(shape[-1], 5))


def test_tensors_of_other_sizes_are_not_concatenated():
    def body(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], 1)

    program = Program(
        body, x=native.tensor("m n", dtype="fp32"), y=native.tensor("k l", dtype="fp32")
    )
    x, y = torch.randn(3, 4), torch.randn(3, 2)
    with heard("torch") as said:
        assert torch.equal(program(x, y), body(x, y))
    # torch's fakes log what they raise.
    assert not said
    with pytest.raises(AssertionError, match="of dimension 0 must be equal"):
        program(x, torch.randn(1, 2))


def test_an_index_that_is_wider_than_its_tensor_is_refused_and_others_built():
    def body(x: Tensor, y: Tensor) -> Tensor:
        return x.gather(1, y)

    program = Program(
        body, x=native.tensor("m n", dtype="fp32"), y=native.tensor("k l", dtype="i64")
    )
    x, y = torch.randn(3, 4), torch.tensor([[3, 0, 1, 1, 2], [0, 1, 2, 3, 0]])
    assert torch.equal(program(x, y), body(x, y))
    with pytest.raises(AssertionError, match="of the index exceeds"):
        program(x[:1], y)


def test_a_tensor_full_of_a_size_holds_integers():
    agree(lambda x: torch.full((x.shape[0], 3), x.shape[1], device=x.device) + 1, torch.randn(2, 5))


def test_an_expanded_operand_leaves_the_order_of_dimensions_to_the_others():
    x, y = torch.randn(3, 5).half(), torch.randn(3).half()
    agree(lambda x, y: y.expand(x.shape[1], x.shape[0]) + x.t(), x, y)


def test_a_number_is_assigned_to_a_part():
    def body(x: Tensor) -> Tensor:
        y = x * torch.tensor(0.5)
        y[:, 0] = 3
        y[1] = torch.inf
        return y

    agree(body, torch.randn(3, 4))


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax, torch.cumsum])
def test_a_dimension_that_is_declared_as_1_leaves_nothing_to_reduce(function):
    def body(x: Tensor) -> Tensor:
        return function(x, 1)

    column = {"x": native.tensor("m 1", dtype="fp32")}
    # A reduction's blocks have a place for each element of a row, of which there are none.
    (name,) = kernels_of(body, **column)
    (built,) = Program(body, **column).body.built
    (fn,) = {request.fn for request, _ in built.requests.values()}
    assert "ROWS" not in fn.arg_names, name
    x = torch.tensor([[2.0], [torch.inf], [-torch.inf], [torch.nan]])
    torch.testing.assert_close(Program(body, **column)(x), body(x), equal_nan=True)
