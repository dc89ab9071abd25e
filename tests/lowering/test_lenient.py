"""Lenient signatures: the same leaves, which take more."""

import dataclasses
import enum
from typing import Literal

import torch

from opforge.analysis.signature.parameter_tree import read_signature
from opforge.lowering.choices import ChoiceValues
from opforge.lowering.lenient import lenient
from opforge.lowering.plan import lower
from opforge.model import leaves_of

Tensor = torch.Tensor


class Act(enum.Enum):
    SILU = "silu"
    GELU = "gelu"


class Text(str, enum.Enum):
    A = "a"


class Number(enum.Enum):
    ONE = 1


class Dotted(enum.Enum):
    A = "Dotted.A"


@dataclasses.dataclass(frozen=True)
class Inner:
    act: Act
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    acts: list[Act]


def op(
    x: Tensor, outer: Outer | None, text: Text, number: Number, word: Literal["a"] = "a"
) -> tuple[Tensor, Tensor]:
    return x + 1, x + 2


def nodes():
    return {p.name: p.node for p in lenient(read_signature(op, {})).parameters}


def test_only_records_that_are_dataclasses_take_anything_with_their_attributes():
    outer = nodes()["outer"]
    assert outer.duck
    assert outer.fields[0].node.duck
    assert not lenient(read_signature(op, {})).returns.duck


def test_only_enums_of_texts_that_are_no_texts_are_passed_on_as_given():
    by = {
        leaf.path: leaf.codec.by
        for node in nodes().values()
        for leaf in leaves_of(node)
        if leaf.codec
    }
    assert by == {
        "outer.inner.act": "given",
        "outer.acts": "given",
        "text": "value",
        "number": "value",
        "word": "value",
    }


def test_the_schema_is_the_same():
    strict = read_signature(op, {})
    assert lower(lenient(strict)).schema == lower(strict).schema


def choices(cls):
    def one(kind: cls) -> None: ...

    (parameter,) = lenient(read_signature(one, {})).parameters
    return ChoiceValues(parameter.node.codec, "kind", "mylib::one", "ops.py:1")


def test_a_member_has_a_mark_in_the_schema():
    values = choices(Act)
    assert dict(values) == {
        "Act.SILU": Act.SILU,
        "Act.GELU": Act.GELU,
        "silu": "silu",
        "gelu": "gelu",
    }


def test_no_value_begins_with_the_mark():
    assert dict(choices(Dotted)) == {".Dotted.A": Dotted.A, "Dotted.A": "Dotted.A"}
