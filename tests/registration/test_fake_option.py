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


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        (7, "fake=7 is neither a callable nor a list of parameter names"),
        (["cfg.weightt"], "did you mean 'cfg.weight'.*cfg.other"),
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


Two = tuple[Tensor, Tensor]


@pytest.mark.parametrize(
    ("annotation", "fake", "text"),
    [
        (
            Two,
            lambda x: (x + 1,) * 3,
            "returned a tuple of 3, but the op's annotation says a tuple of 2",
        ),
        (Two, torch.empty_like, "Tensor, but the op's annotation says a tuple of 2"),
        (Two, lambda x: None, "NoneType, but the op's annotation says a tuple of 2"),
        (
            Two,
            lambda x: (x + 1, None),
            "NoneType for return.1, but the op's annotation says Tensor",
        ),
        (Tensor, lambda x: None, "returned NoneType, but the op's annotation says Tensor"),
        (None, torch.empty_like, "returned a value, but the op's annotation says None"),
        (list[Tensor], lambda x: [x + 1, None], "returned NoneType for return"),
        (list[Tensor], torch.empty_like, "Tensor for return, but the op's annotation says a list"),
        (int, lambda x: "3", "returned str for return, but the op's annotation says SymInt"),
        (tuple[Tensor], lambda x: x + 1, "returned Tensor, but the op's annotation says a tuple"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*returns nothing and declares no writes")
@pytest.mark.parametrize("late", [False, True], ids=["fake=", "register_fake"])
def test_a_fake_is_held_to_each_kind_of_annotation(op_name, annotation, fake, text, late):
    def body(x):
        raise NotImplementedError

    body.__annotations__ = {"x": Tensor, "return": annotation}
    op = opforge.op(body, name=op_name(), fake=None if late else fake)
    if late:
        op.register_fake(fake)
    with pytest.raises(WrongReturn, match=f"the fake .*{text}") as caught:
        op(torch.ones(3, device="meta"))
    if fake is not torch.empty_like:
        assert f"({__file__}:{fake.__code__.co_firstlineno})" in str(caught.value)


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
