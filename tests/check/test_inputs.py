"""From --input texts to arguments: expressions, records, choices, defaults, and what is missing."""

import dataclasses
import enum
from types import ModuleType
from typing import Literal, NamedTuple

import pytest
import torch
from torch import Tensor

import opforge
from opforge.check.inputs import arguments_from
from opforge.errors import BadOption, TargetFailed
from opforge.native.targets import Place
from opforge.registry import registry


class Rounding(enum.Enum):
    INPUT = "input"
    FLOAT32 = "float32"


class Level(enum.Enum):
    LOW = (1, 2)
    HIGH = (3, 4)


@dataclasses.dataclass(frozen=True)
class Config:
    weight: Tensor
    eps: float = 1e-6
    rounding: Rounding = Rounding.FLOAT32


class Pair(NamedTuple):
    left: Tensor
    right: int = 2


WIDTH = 5


def ones(*_):
    """Not torch's: expressions take torch's, as the docs show them."""


def norm(x: Tensor, cfg: Config, *, how: Literal["a", "b"] = "a") -> Tensor:
    return x + 1


def many(  # noqa: PLR0917  # a parameter of every kind
    items: list[Tensor],
    pair: Pair,
    size: tuple[int, int],
    bias: Tensor | None = None,
    cfg: Config | None = None,
    level: Level = Level.LOW,
    dtype: torch.dtype = torch.float32,
    device: torch.device = torch.device("cpu"),  # noqa: B008
) -> Tensor:
    return items[0] + 1


def plain(x: Tensor) -> Tensor:
    return x + 1


@pytest.fixture
def arguments(op_name):
    def made(fn, *texts, **options):
        return arguments_from(registry.get(opforge.op(op_name())(fn)), texts, **options)

    return made


@pytest.fixture
def tensor(arguments):
    """The tensor that an expression makes."""
    return lambda text, **options: arguments(plain, f"x={text}", **options)[0][0]


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("randn(8,128,bf16)", (8, 128), torch.bfloat16),
        ("randn((8, 128), dtype=f16)", (8, 128), torch.float16),
        ("zeros(2, 0, i32)", (2, 0), torch.int32),
        ("ones(4, bool)", (4,), torch.bool),
        ("ones(4, int)", (4,), torch.int64),
        ("arange(1, 2, 0.5)", (2,), torch.float32),
        ("randint(0, 9, 4, 5)", (4, 5), torch.int64),
        ("randint(0, 9, (4, 5), u8, cpu)", (4, 5), torch.uint8),
        ("randn(2, float8_e4m3fn)", (2,), torch.float8_e4m3fn),
        ("randn(2, complex64)", (2,), torch.complex64),
        ("zeros(2, fp16)", (2,), torch.float16),
        ("full((2, 3), inf)", (2, 3), torch.float32),
        ("tensor([[1, 2]], f32)", (1, 2), torch.float32),
        ("torch.eye(WIDTH).double().t()[:2]", (2, 5), torch.float64),
    ],
)
def test_an_expression_makes_a_tensor(tensor, text, shape, dtype):
    made = tensor(text)
    assert (tuple(made.shape), made.dtype, made.device.type) == (shape, dtype, "cpu")


def test_random_values_are_the_same_every_time_and_differ_between_inputs(arguments, tensor):
    before = torch.get_rng_state()
    assert torch.equal(tensor("randn(4)"), tensor("randn(4)"))
    (one, two), *_ = arguments(many, "items=[randn(4), randn(4)]", "pair.left=1", "size=(2, 3)")[0]
    assert not torch.equal(one, two)
    assert torch.equal(before, torch.get_rng_state())


def test_the_device_comes_from_the_expression_or_else_from_the_default(tensor):
    assert tensor("ones(2, 'meta')").device.type == "meta"
    assert tensor("ones(2)", device="meta").device.type == "meta"
    assert tensor("ones(2, device='cpu')", device="meta").device.type == "cpu"


def test_an_input_may_require_grad(tensor):
    assert tensor("randn(2, bf16, requires_grad=True)").requires_grad


def test_the_names_of_a_module_that_holds_the_op_are_known(tensor):
    module = ModuleType("holder")
    module.batch = 7
    assert tensor("ones(batch)", places=[Place(module, "op")]).shape == (7,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x=randn(8,128", "SyntaxError: '(' was never closed"),
        ("x=", "SyntaxError: invalid syntax"),
        ("x=foo(3)", "NameError: name 'foo' is not defined"),
        ("x=ones(3, device='nope')", "RuntimeError: Expected one of cpu, cuda"),
        ("x=randn(-1)", "RuntimeError: Trying to create tensor with negative dimension -1"),
        ("x=ones(8, i32, requires_grad=True)", "only Tensors of floating point"),
        ("x='\udcff'", "'utf-8' codec can't encode"),
        ("x=1/0", "ZeroDivisionError: division by zero"),
    ],
)
def test_an_expression_that_fails_is_refused_with_pythons_reason(arguments, text, reason):
    with pytest.raises(BadOption) as caught:
        arguments(plain, text)
    assert text in caught.value.what
    assert reason in caught.value.found


def test_fields_of_a_dataclass_are_given_by_path_and_defaults_filled_in(arguments):
    (x, cfg), kwargs = arguments(norm, "x=randn(4, 3)", "cfg.weight=ones(3)")
    assert x.shape == (4, 3)
    assert type(cfg) is Config
    assert torch.equal(cfg.weight, torch.ones(3))
    assert (cfg.eps, cfg.rounding) == (1e-6, Rounding.FLOAT32)
    assert kwargs == {"how": "a"}


def test_a_record_may_be_given_whole(arguments):
    (_, cfg), kwargs = arguments(norm, "x=ones(3)", "cfg=Config(ones(3), eps=1e-3)", "how='b'")
    assert (type(cfg), cfg.eps, kwargs) == (Config, 1e-3, {"how": "b"})


@pytest.mark.parametrize("text", ["'input'", "'INPUT'", "Rounding.INPUT"])
def test_an_enum_member_is_given_by_value_or_name(arguments, text):
    (_, cfg), _ = arguments(norm, "x=ones(3)", "cfg.weight=ones(3)", f"cfg.rounding={text}")
    assert cfg.rounding is Rounding.INPUT


COMMON = ("items=[ones(2), zeros(3)]", "pair.left=ones(1)", "size=(2, 3)")


def test_lists_tuples_namedtuples_none_dtypes_and_devices_fit(arguments):
    texts = ["bias=None", "cfg=None", "level=(3, 4)", "dtype=bf16", "device='cuda:1'"]
    (items, pair, size, bias, cfg, level, dtype, device), _ = arguments(many, *COMMON, *texts)
    assert [t.numel() for t in items] == [2, 3]
    assert (type(pair), pair.right) == (Pair, 2)
    assert (size, bias, cfg, level, dtype) == ((2, 3), None, None, Level.HIGH, torch.bfloat16)
    assert device == torch.device("cuda:1")


def test_a_tuple_may_be_given_by_its_elements_and_an_optional_record_by_its_fields(arguments):
    texts = [*COMMON[:2], "size.0=2", "size.1=3", "cfg.weight=ones(2)"]
    args, _ = arguments(many, *texts)
    assert (args[2], type(args[4])) == ((2, 3), Config)


def test_a_missing_input_lists_the_parameters(arguments):
    with pytest.raises(BadOption) as caught:
        arguments(norm, "cfg.eps=1e-3")
    assert "no input for 'x', 'cfg.weight'" in caught.value.what
    assert caught.value.found == "it takes x, cfg, cfg.weight, cfg.eps, cfg.rounding, how"
    assert caught.value.fix.startswith('--input "x=')


@pytest.mark.parametrize(
    ("texts", "text"),
    [
        (["cfg.weightz=ones(3)"], "did you mean cfg.weight?"),
        (["zzz=3"], "choose one of these"),
        (["3x"], "is not path=expression"),
        (["x=ones(1)", "x=ones(2)"], "a part of 'x' was given already"),
        (["x=ones(1)", "cfg=None", "cfg.eps=1"], "a part of 'cfg.eps' was given already"),
        (["x=ones(1)", "cfg.rounding='half'"], "'half' is not a valid Rounding"),
    ],
)
def test_a_path_or_value_that_does_not_fit_is_refused(arguments, texts, text):
    with pytest.raises(BadOption) as caught:
        arguments(norm, *texts)
    assert text in str(caught.value)


def test_inputs_have_the_names_that_the_op_is_called_by(op_name):
    op = opforge.op(
        lambda x, s=2.5: x * s, name=op_name(), schema="(Tensor a, float t=2.5) -> Tensor"
    )
    args, kwargs = arguments_from(registry.get(op), ["a=torch.ones(2)", "t=3.0"])
    assert args[0].tolist() == [1.0, 1.0]
    assert (args[1:], kwargs) == ((3.0,), {})
    with pytest.raises(BadOption, match="it takes a, t"):
        arguments_from(registry.get(op), ["x=ones(2)"])


@dataclasses.dataclass(frozen=True)
class Positive:
    scale: float

    def __post_init__(self):
        if self.scale <= 0:
            raise ValueError("scale must be positive")


def scaled(x: Tensor, cfg: Positive) -> Tensor:
    return x * cfg.scale


def test_a_record_that_refuses_its_fields_is_named(arguments):
    with pytest.raises(TargetFailed, match=r"Positive\(\.\.\.\), for cfg, raised") as refused:
        arguments(scaled, "x=ones(1)", "cfg.scale=-1")
    assert "ValueError: scale must be positive" in str(refused.value)
