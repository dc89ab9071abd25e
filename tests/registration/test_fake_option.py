"""The `fake` option: which callables and lists are accepted, and what is refused at decoration."""

import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import opforge
from opforge.errors import BadOption, BadSignature, WrongReturn

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Cfg:
    weight: Tensor
    other: Tensor
    scale: float = 1.0


def numpy_body(x):
    return torch.from_numpy(x.numpy() + 1)


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
    with pytest.raises(BadSignature, match=reason):

        @opforge.op(op_name(), fake=fake)
        def op(x: Tensor, y: Tensor, *, z: int = 1) -> Tensor:
            return x + y


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


def test_a_listed_name_that_does_not_exist_is_refused_with_the_valid_ones(op_name):
    with pytest.raises(BadOption) as caught:

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


WRONG = {
    "three tensors": lambda x: (torch.empty_like(x),) * 3,
    "one tensor": torch.empty_like,
    "nothing": lambda x: None,
    "a None": lambda x: (torch.empty_like(x), None),
}
RETURNED = {
    "three tensors": "a tuple of 3, but the op's annotation says a tuple of 2",
    "one tensor": "but the op's annotation says a tuple of 2",
    "nothing": "NoneType, but the op's annotation says a tuple of 2",
    "a None": "NoneType for return.1, but the op's annotation says Tensor",
}


def make_two(name, fake, *, late):
    @opforge.op(name, fake=None if late else fake)
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x + 2

    if late:
        two.register_fake(fake)
    return two


@pytest.mark.parametrize("late", [False, True], ids=["fake=", "register_fake"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_fake_that_returns_something_else_than_the_op_is_refused(op_name, wrong, late):
    name = op_name()
    two = make_two(name, WRONG[wrong], late=late)
    with pytest.raises(WrongReturn) as caught:
        two(torch.ones(3, device="meta"))
    text = str(caught.value)
    assert "the fake returned" in text
    assert RETURNED[wrong] in text
    if wrong != "one tensor":
        line = WRONG[wrong].__code__.co_firstlineno
        assert text.startswith(f"{name} ({__file__}:{line})")
    assert [t.tolist() for t in two(torch.ones(1))] == [[2.0], [3.0]]


@pytest.mark.parametrize(
    ("annotation", "fake", "text"),
    [
        (Tensor, lambda x: None, "returned NoneType, but the op's annotation says Tensor"),
        (None, torch.empty_like, "returned a value, but the op's annotation says None"),
        (list[Tensor], lambda x: [x + 1, None], "returned NoneType for return"),
        (list[Tensor], torch.empty_like, "Tensor for return, but the op's annotation says a list"),
        (int, lambda x: "3", "returned str for return, but the op's annotation says SymInt"),
        (tuple[Tensor], lambda x: x + 1, "returned Tensor, but the op's annotation says a tuple"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*returns nothing and declares no writes")
def test_a_fake_is_held_to_each_kind_of_annotation(op_name, annotation, fake, text):
    def op(x):
        raise NotImplementedError

    op.__annotations__ = {"x": Tensor, "return": annotation}
    op = opforge.op(op, name=op_name(), fake=fake)
    with pytest.raises(WrongReturn, match=text):
        op(torch.ones(3, device="meta"))


def test_a_fake_that_returns_its_input_is_refused(op_name):
    @opforge.op(op_name(), fake=lambda x: x)
    def double(x: Tensor) -> Tensor:
        return x * 2

    with pytest.raises(Exception, match="an output of the fake shares memory with an input"):
        torch.compile(lambda x: double(x) + x, backend="aot_eager")(torch.ones(3))


def test_a_body_that_returns_too_many_outputs_is_refused_when_compiled(op_name):
    @opforge.op(op_name())
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x + 2, x + 3

    with pytest.raises(Exception, match="the body returned a tuple of 3"):
        torch.compile(lambda x: two(x)[0], backend="aot_eager")(torch.ones(3))
