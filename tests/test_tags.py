"""tags=: what is on the op, and the tags that make it return what it mutates."""

import dataclasses

import pytest
import torch
from torch import Tensor

import opforge
from opforge.errors import BadOption, MissingBackward, WrongReturn

if not hasattr(torch.Tag, "inplace"):
    pytest.skip("this torch has no torch.Tag.inplace", allow_module_level=True)

INPLACE, OUT = torch.Tag.inplace, torch.Tag.out


@dataclasses.dataclass(frozen=True)
class Scale:
    by: float


def make_add_(name, **options):
    @opforge.op(name, mutates_args=["x"], tags=INPLACE, **options)
    def add_(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(y)

    return add_


def make_add_out(name, **options):
    @opforge.op(name, mutates_args=["out"], tags=[OUT], **options)
    def add_out(x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
        return torch.add(x, y, out=out)

    return add_out


def test_a_tag_is_on_the_op_once(op_name):
    given = [torch.Tag.pt2_compliant_tag, torch.Tag.pointwise, torch.Tag.pointwise]

    @opforge.op(op_name(), tags=given)
    def copied(x: Tensor) -> Tensor:
        return x.clone()

    assert sorted(copied.tags, key=str) == [torch.Tag.pointwise, torch.Tag.pt2_compliant_tag]


def test_an_inplace_op_returns_its_first_argument_itself(op_name):
    add_ = make_add_(op_name())
    assert opforge.info(add_).schema.endswith("(Tensor(a0!) x, Tensor y) -> Tensor(a0!)")
    assert INPLACE in add_.tags
    x = torch.ones(2)
    assert add_(x, x.clone()) is x
    assert x.tolist() == [2, 2]
    assert x._version > 0


def test_an_out_op_returns_its_outs_themselves(op_name):
    @opforge.op(op_name(), mutates_args=["low", "high"], tags=OUT)
    def bounds(x: Tensor, *, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        return low.copy_(x.min()), high.copy_(x.max())

    schema = "(Tensor x, *, Tensor(a1!) low, Tensor(a2!) high) -> (Tensor(a1!), Tensor(a2!))"
    assert opforge.info(bounds).schema.endswith(schema)
    low, high = torch.zeros(()), torch.zeros(())
    result = bounds(torch.arange(3.0), low=low, high=high)
    assert result[0] is low
    assert result[1] is high
    assert (low.item(), high.item()) == (0, 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_they_compile(op_name, backend):
    add_, add_out = make_add_(op_name()), make_add_out(op_name())

    @torch.compile(backend=backend, fullgraph=True)
    def both(x, y, out):
        return add_(x, y), add_out(x, y, out=out)

    x, y, out = torch.ones(2), torch.ones(2), torch.empty(2)
    results = both(x, y, out)
    assert [t.tolist() for t in (x, out, *results)] == [[2, 2], [3, 3], [2, 2], [3, 3]]


def test_their_gradient_raises(op_name):
    add_, add_out = make_add_(op_name()), make_add_out(op_name())
    leaf = torch.ones(2, requires_grad=True)
    for result in (add_(leaf * 1, leaf), add_out(leaf, leaf, out=torch.empty(2))):
        with pytest.raises(MissingBackward):
            result.sum().backward()


@pytest.mark.parametrize(
    ("tag", "mutated", "options"),
    [
        (INPLACE, ["x"], {}),
        (INPLACE, ["x"], {"schema": "(Tensor(a!) x, *, Tensor out) -> Tensor(a!)"}),
        (OUT, ["out"], {}),
    ],
)
def test_another_tensor_than_the_tag_says_is_refused(op_name, tag, mutated, options):
    @opforge.op(op_name(), mutates_args=mutated, tags=tag, **options)
    def wrong(x: Tensor, *, out: Tensor) -> Tensor:
        return torch.zeros(2)

    with pytest.raises(WrongReturn, match=f"did not return {mutated[0]}"):
        wrong(torch.ones(2), out=torch.ones(2))


def positional(x: Tensor, out: Tensor) -> Tensor:
    return out


def keyword(*, x: Tensor) -> Tensor:
    return x


def silent(x: Tensor, *, out: Tensor) -> None:
    pass


def paired(x: Tensor, *, out: Tensor) -> tuple[Tensor, Tensor]:
    return out, out


def boxed(x: Tensor, *, out: Tensor) -> tuple[Tensor]:
    return (out,)


def listed(x: Tensor, *, out: list[Tensor]) -> Tensor:
    return out[0]


def scaled(x: Tensor, scale: Scale, *, out: Tensor) -> Tensor:
    return out


@pytest.mark.parametrize(
    ("fn", "mutated", "tag", "text"),
    [
        (positional, ["out"], OUT, "keyword-only tensors"),
        (positional, ["out"], INPLACE, "first parameter"),
        (positional, ["x", "out"], INPLACE, "first parameter"),
        (keyword, ["x"], INPLACE, "first parameter"),
        (silent, ["out"], OUT, "returns the tensors that it mutates: out"),
        (paired, ["out"], OUT, "returns the tensors that it mutates: out"),
        (boxed, ["out"], OUT, "needs parameters"),
        (listed, ["out"], OUT, "keyword-only tensors"),
        (silent, [], OUT, "keyword-only tensors"),
        (scaled, ["out"], OUT, "needs parameters"),
        (positional, ["x"], [INPLACE, OUT], "exclude each other"),
    ],
)
def test_a_function_that_does_not_fit_its_tag_is_refused(op_name, fn, mutated, tag, text):
    name = op_name()
    with pytest.raises(BadOption, match=text) as caught:
        opforge.op(fn, name=name, mutates_args=mutated, tags=tag)
    assert name in str(caught.value)


@pytest.mark.parametrize("vmap", [None, "sequential"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_an_inplace_op_maps_over_its_slices(op_name, vmap):
    add_ = make_add_(op_name(), vmap=vmap)
    x, y = torch.zeros(3, 2), torch.arange(6.0).view(3, 2)
    assert torch.vmap(add_)(x, y).tolist() == y.tolist() == x.tolist()
    x = torch.zeros(2, 3, 2)
    assert torch.vmap(torch.vmap(add_), in_dims=(0, None))(x, y).tolist() == [y.tolist()] * 2
    assert x.tolist() == [y.tolist()] * 2
    x = torch.zeros(3, 2)
    assert torch.vmap(lambda x, y: add_(x, y).mul_(2))(x, y).tolist() == x.tolist()
    assert x.tolist() == (y * 2).tolist()


def test_torch_func_goes_past_an_inplace_op_but_not_through_it(op_name):
    add_, add_out = make_add_(op_name()), make_add_out(op_name())
    one = torch.ones(2)

    def written(z):
        x = torch.zeros(2)
        add_(x, one).mul_(z)
        return x.sum()

    def written_out(z):
        out = torch.zeros(2)
        add_out(one, one, out=out).mul_(z)
        return out.sum()

    assert torch.func.grad(written)(one).tolist() == [1, 1]
    assert torch.func.grad(written_out)(one).tolist() == [2, 2]
    with pytest.raises(MissingBackward):
        torch.func.grad(lambda y: add_(torch.zeros(2), y).sum())(one)
    with pytest.raises(MissingBackward):
        torch.func.grad(lambda y: add_out(one, y, out=torch.zeros(2)).sum())(one)


def test_compiled_gradients_of_an_inplace_op_raise(op_name):
    add_ = make_add_(op_name())
    leaf = torch.ones(2, requires_grad=True)
    out = torch.compile(lambda y: add_(y * 1, y) * 2, backend="aot_eager")(leaf)
    assert out.tolist() == [4, 4]
    with pytest.raises(MissingBackward):
        out.sum().backward()
