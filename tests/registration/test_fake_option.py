"""The `fake` option: which callables and lists are accepted, and what is refused at decoration."""

import dataclasses
import pathlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import opforge
from opforge.errors import BadOption, FakeSignature, UnknownArgument

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Cfg:
    weight: Tensor
    other: Tensor
    scale: float = 1.0


def numpy_body(x):
    return torch.from_numpy(x.numpy() + 1)


def test_a_fake_with_other_parameters_is_refused(op_name):
    name = op_name()
    with pytest.raises(FakeSignature) as caught:

        @opforge.op(name, fake=lambda x, z: torch.empty_like(x))
        def op(x: Tensor, y: Tensor) -> Tensor:
            return x + y

    text = str(caught.value)
    assert name in text
    assert pathlib.Path(__file__).name in text
    assert "the fake's signature does not match the op's: it has 'z' where the op has 'y'" in text
    assert "fix: fake(x, y)" in text


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        (lambda x: x, "too many positional arguments"),
        (lambda x, y, z, w: x, "missing a required argument: 'w'"),
        (lambda y, x, *, z: x, "it has 'y' where the op has 'x'"),
        (lambda x, y: x, "unexpected keyword argument 'z'|got an unexpected keyword"),
    ],
    ids=["too few", "too many", "swapped", "no keyword"],
)
def test_a_fake_is_refused_because_of(op_name, fake, reason):
    with pytest.raises(FakeSignature, match=reason):

        @opforge.op(op_name(), fake=fake)
        def op(x: Tensor, y: Tensor, *, z: int = 1) -> Tensor:
            return x + y


def test_a_refused_fake_leaves_the_name_free(op_name):
    name = op_name()

    def body(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(FakeSignature):
        opforge.op(name, fake=lambda z: z)(body)
    assert opforge.op(name, fake=lambda x: x.new_empty(1))(body)(torch.ones(1)).item() == 2.0


def test_a_fake_may_be_a_builtin_that_has_no_signature(op_name):
    @opforge.op(op_name(), fake=torch.empty_like)
    def op(x: Tensor) -> Tensor:
        return numpy_body(x)

    with FakeTensorMode():
        assert op(torch.empty(2)).shape == (2,)
    assert opforge.info(op).fake_source == "given"


def test_a_fake_may_take_anything(op_name):
    @opforge.op(op_name(), fake=lambda *args, **kwargs: torch.empty_like(args[0]))
    def op(x: Tensor, y: Tensor, *, z: int = 1) -> Tensor:
        return numpy_body(x)

    with FakeTensorMode():
        assert op(torch.empty(2), torch.empty(3), z=3).shape == (2,)


def test_a_fake_that_is_neither_callable_nor_list_is_refused(op_name):
    with pytest.raises(
        BadOption, match="fake=7 is neither a callable nor a list of parameter names"
    ):

        @opforge.op(op_name(), fake=7)
        def op(x: Tensor) -> Tensor:
            return x + 1


def test_a_string_is_refused_with_the_list_to_write(op_name):
    with pytest.raises(BadOption, match=r"fake must be a function or a list, got 'x'") as caught:

        @opforge.op(op_name(), fake="x")
        def op(x: Tensor) -> Tensor:
            return x + 1

    assert "fake=['x']" in str(caught.value)


def test_a_listed_name_that_does_not_exist_is_refused_with_the_valid_ones(op_name):
    with pytest.raises(UnknownArgument) as caught:

        @opforge.op(op_name(), fake=["cfg.wieght"])
        def op(x: Tensor, cfg: Cfg) -> Tensor:
            return x + 1

    text = str(caught.value)
    assert "fake names 'cfg.wieght', which does not match any parameter" in text
    assert "did you mean 'cfg.weight'?" in text
    assert "cfg.other" in text


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        (["n"], "which holds no tensor"),
        (["cfg"], "which holds 2 tensors"),
        (["items"], "which is a list of tensors"),
        (["x", "x"], "fake lists 2 parameters, but the op returns Tensor"),
        ([], "fake lists 0 parameters, but the op returns Tensor"),
        ([3], "must list parameter names"),
    ],
    ids=str,
)
def test_a_list_is_refused_because(op_name, listed, reason):
    with pytest.raises(BadOption, match=reason):

        @opforge.op(op_name(), fake=listed)
        def op(x: Tensor, n: int, cfg: Cfg, items: list[Tensor]) -> Tensor:
            return x + 1


def test_a_list_is_refused_for_an_op_that_returns_a_list(op_name):
    with pytest.raises(BadOption, match=r"but the op returns Tensor\[\]"):

        @opforge.op(op_name(), fake=["x"])
        def op(x: Tensor) -> list[Tensor]:
            return [x + 1]
