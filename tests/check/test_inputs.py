"""From --input texts to arguments: records, choices, defaults, and what is missing."""

import dataclasses
import enum
from typing import Literal, NamedTuple

import pytest
import torch
from torch import Tensor

import opforge
from opforge.check.inputs import arguments_from
from opforge.errors import BadOption, TargetFailed
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


@pytest.fixture
def arguments(op_name):
    def made(fn, *texts):
        return arguments_from(registry.get(opforge.op(op_name())(fn)), texts)

    return made


def test_fields_of_a_dataclass_are_given_by_path_and_defaults_filled_in(arguments):
    (x, cfg), kwargs = arguments(norm, "x=randn(4, 3)", "cfg.weight=ones(3)")
    assert x.shape == (4, 3)
    assert type(cfg) is Config
    assert torch.equal(cfg.weight, torch.ones(3))
    assert (cfg.eps, cfg.rounding) == (1e-6, Rounding.FLOAT32)
    assert kwargs == {"how": "a"}


@pytest.mark.parametrize("text", ["'input'", "'INPUT'"])
def test_an_enum_member_is_given_by_value_or_name(arguments, text):
    (_, cfg), _ = arguments(norm, "x=ones(3)", "cfg.weight=ones(3)", f"cfg.rounding={text}")
    assert cfg.rounding is Rounding.INPUT


def test_a_member_whose_value_is_a_tuple_is_given_by_value_or_name(arguments):
    common = ("items=[ones(2)]", "pair.left=ones(1)", "size=(2, 3)")
    assert arguments(many, *common, "level=(3, 4)")[0][5] is Level.HIGH
    assert arguments(many, *common, "level='HIGH'")[0][5] is Level.HIGH


def test_literals_ints_for_floats_and_keywords_fit(arguments):
    (_, cfg), kwargs = arguments(norm, "x=ones(3)", "cfg.weight=ones(3)", "cfg.eps=1", "how='b'")
    assert (cfg.eps, type(cfg.eps)) == (1.0, float)
    assert kwargs == {"how": "b"}


def test_lists_tuples_namedtuples_none_dtypes_and_devices_fit(arguments):
    texts = ["items=[ones(2), zeros(3)]", "pair.left=ones(1)", "size=(2, 3)"]
    texts += ["bias=None", "cfg=None", "dtype=bf16", "device='cuda:1'"]
    (items, pair, size, bias, cfg, _, dtype, device), _ = arguments(many, *texts)
    assert [t.numel() for t in items] == [2, 3]
    assert type(pair) is Pair
    assert pair.right == 2
    assert (size, bias, cfg, dtype) == ((2, 3), None, None, torch.bfloat16)
    assert device == torch.device("cuda:1")


def test_a_tuple_may_be_given_by_its_elements(arguments):
    texts = ["items=[ones(2)]", "pair.left=ones(1)", "size.0=2", "size.1=3"]
    assert arguments(many, *texts)[0][2] == (2, 3)


def test_an_optional_record_is_built_once_a_field_is_given(arguments):
    texts = ["items=[ones(2)]", "pair.left=ones(1)", "size=(2, 3)", "cfg.weight=ones(2)"]
    assert type(arguments(many, *texts)[0][4]) is Config


def test_a_missing_input_lists_the_parameters_with_their_types(arguments):
    with pytest.raises(BadOption) as caught:
        arguments(norm, "cfg.eps=1e-3")
    text = str(caught.value)
    assert "no input for 'x', 'cfg.weight'" in text
    assert "    x: Tensor\n" in text
    assert "    cfg.eps: float = 1e-06\n" in text
    assert "    how: one of 'a', 'b' = 'a'\n" in text
    assert text.endswith("fix: --input x='randn(8, 128)'")


def test_an_unknown_parameter_is_refused_with_a_close_one(arguments):
    with pytest.raises(BadOption, match=r"did you mean cfg\.weight\?") as caught:
        arguments(norm, "cfg.wight=ones(3)")
    assert "the op has no 'cfg.wight'" in str(caught.value)
    with pytest.raises(BadOption, match="choose one of these"):
        arguments(norm, "zzz=3")


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (["x=1"], "x is Tensor, not 1"),
        (["x=None"], "x cannot be None"),
        (["x=ones(1)", "x=ones(2)"], "'x' is given twice"),
        (["x=ones(1)", "cfg=3"], "cfg is a Config"),
        (["x=ones(1)", "cfg.weight=ones(1)", "cfg.eps='a'"], "cfg.eps is float, not 'a'"),
        (["x=ones(1)", "cfg.weight=ones(1)", "cfg.eps=True"], "cfg.eps is float, not True"),
        (["x=ones(1)", "cfg.weight=ones(1)", "how='c'"], "how cannot be 'c'"),
        (["x=ones(1)", "cfg=None", "cfg.eps=1"], "'cfg' is given both whole and by its fields"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_a_caret(arguments, texts, what):
    with pytest.raises(BadOption) as caught:
        arguments(norm, *texts)
    lines = str(caught.value).splitlines()
    assert lines[0] == what
    assert lines[2].strip() == "^"


def test_an_invalid_choice_lists_the_valid_ones(arguments):
    with pytest.raises(BadOption, match="one of 'input', 'float32'"):
        arguments(norm, "x=ones(1)", "cfg.weight=ones(1)", "cfg.rounding='half'")


def test_a_list_must_be_one(arguments):
    with pytest.raises(BadOption, match="items is a list"):
        arguments(many, "items=ones(1)", "pair.left=ones(1)", "size=(1, 2)")


def test_a_function_in_mode_none_has_a_signature_as_well(op_name):
    inner = opforge.op(op_name(), mode="custom_op")(norm)
    assert inner is not None

    entry = dataclasses.replace(registry.get(inner), lowered=None)
    (x, _), _ = arguments_from(entry, ["x=ones(2)", "cfg.weight=ones(2)"])
    assert x.shape == (2,)


def test_inputs_have_the_names_that_the_op_is_called_by(op_name):
    op = opforge.op(
        lambda x, s=2.5: x * s, name=op_name(), schema="(Tensor a, float t=2.5) -> Tensor"
    )
    args, kwargs = arguments_from(registry.get(op), ["a=ones(2)", "t=3"])
    assert args[0].tolist() == [1.0, 1.0]
    assert (args[1:], kwargs) == ((3.0,), {})
    with pytest.raises(BadOption, match="it takes a, t"):
        arguments_from(registry.get(op), ["x=ones(2)"])


@pytest.mark.parametrize("device", ["nope", "cpu:-1", "cuda:x"])
def test_a_text_that_is_no_device_is_refused(arguments, device):
    given = ("items=[ones(1)]", "pair.left=ones(1)", "size=(1, 2)", f"device={device!r}")
    with pytest.raises(BadOption, match=f"device cannot be '{device}'") as refused:
        arguments(many, *given)
    assert "cpu, cuda, or 'cuda:1'" in str(refused.value)


def test_an_integer_that_no_float_holds_is_refused(arguments):
    with pytest.raises(BadOption, match=r"cfg\.eps is a number that no float can hold"):
        arguments(norm, "x=ones(1)", "cfg.weight=ones(1)", f"cfg.eps={10**400}")


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
