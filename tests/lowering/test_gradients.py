"""What `backward` may return for each parameter, and how anything else is refused."""

import dataclasses
import types
from typing import NamedTuple

import pytest

from opforge.errors import BadGradient, WrongReturn
from opforge.lowering.gradients import flatten_gradients, fold_needs
from opforge.model import Field, Leaf, Parameter, Record, Signature


class Grad:
    """Looks like a tensor to this room."""

    def __init__(self, name):
        self.name = name
        self.requires_grad = False

    def __repr__(self):
        return self.name


@dataclasses.dataclass(frozen=True)
class Inner:
    bias: object = None


@dataclasses.dataclass(frozen=True)
class Config:
    scale: object = None
    weight: object = None
    inner: object = None


class Pair(NamedTuple):
    left: object
    right: object


G, H, K = Grad("g"), Grad("h"), Grad("k")

INNER = Record("cfg.inner", "dataclass", Inner, (Field("bias", Leaf("cfg.inner.bias", "Tensor")),))
CONFIG = Record(
    "cfg",
    "dataclass",
    Config,
    (
        Field("scale", Leaf("cfg.scale", "float")),
        Field("weight", Leaf("cfg.weight", "Tensor")),
        Field("inner", INNER),
    ),
)
PAIR = Record(
    "pair",
    "namedtuple",
    Pair,
    (Field("left", Leaf("pair.left", "Tensor")), Field("right", Leaf("pair.right", "SymInt"))),
)
TUPLE = Record(
    "t", "tuple", tuple, (Field("0", Leaf("t.0", "Tensor")), Field("1", Leaf("t.1", "Tensor")))
)


def signature(*nodes):
    parameters = [Parameter(n.path.partition(".")[0], "positional-or-keyword", n) for n in nodes]
    return Signature(tuple(parameters), None)


X, N = Leaf("x", "Tensor"), Leaf("n", "SymInt")
FULL = signature(X, CONFIG, N)


def test_leaves_take_their_gradients_in_order():
    assert flatten_gradients(signature(X, N, Leaf("y", "Tensor")), (G, None, H)) == [G, None, H]


def test_a_single_gradient_needs_no_tuple():
    assert flatten_gradients(signature(X), G) == [G]
    assert flatten_gradients(signature(X), None) == [None]
    assert flatten_gradients(signature(X), (G,)) == [G]


@pytest.mark.parametrize(
    ("grad", "flat"),
    [
        (None, [None, None, None]),
        (Config(None, G, Inner(H)), [None, G, H]),
        (Config(None, None, None), [None, None, None]),
        (Config(2.5, G, None), [None, G, None]),
        ({}, [None, None, None]),
        ({"weight": G}, [None, G, None]),
        ({"weight": G, "scale": None}, [None, G, None]),
        ({"inner": {"bias": H}}, [None, None, H]),
        ({"inner": Inner(H)}, [None, None, H]),
        ({"inner": types.SimpleNamespace(bias=H)}, [None, None, H]),
        (types.SimpleNamespace(weight=G), [None, G, None]),
        (types.SimpleNamespace(weight=G, inner=Inner(H), scale=3.0), [None, G, H]),
        (Config(2.5, G, {"bias": H}), [None, G, H]),
    ],
    ids=repr,
)
def test_a_record_takes_nothing_an_instance_a_dict_or_attributes(grad, flat):
    assert flatten_gradients(FULL, (K, grad, None)) == [K, *flat, None]


def test_an_optional_record_s_flag_has_no_gradient():
    optional = signature(dataclasses.replace(CONFIG, optional=True), X)
    assert flatten_gradients(optional, ({"weight": G}, H)) == [None, None, G, None, H]
    assert flatten_gradients(optional, (None, H)) == [None, None, None, None, H]


@pytest.mark.parametrize(
    ("grad", "flat"),
    [
        (None, [None, None]),
        (Pair(G, None), [G, None]),
        (Pair(G, 7), [G, None]),
        ((G, None), [G, None]),
        ([G, None], [G, None]),
        ({"left": G}, [G, None]),
        (types.SimpleNamespace(left=G), [G, None]),
    ],
    ids=repr,
)
def test_a_named_tuple_takes_nothing_an_instance_a_tuple_or_a_dict(grad, flat):
    assert flatten_gradients(signature(X, PAIR), (K, grad)) == [K, *flat]


@pytest.mark.parametrize(
    ("grad", "flat"), [(None, [None, None]), ((G, H), [G, H]), ([G, None], [G, None])], ids=repr
)
def test_a_tuple_takes_nothing_or_as_many(grad, flat):
    assert flatten_gradients(signature(X, TUPLE), (K, grad)) == [K, *flat]


def test_the_gradients_of_an_only_tuple_parameter_may_stand_alone_or_in_a_tuple():
    assert flatten_gradients(signature(TUPLE), (G, H)) == [G, H]
    assert flatten_gradients(signature(TUPLE), ((G, H),)) == [G, H]


def test_a_tuple_of_one_as_the_only_parameter_takes_its_gradient():
    one = Record("t", "tuple", tuple, (Field("0", Leaf("t.0", "Tensor")),))
    assert flatten_gradients(signature(one), ((G,),)) == [G]


def test_a_named_tuple_as_the_only_parameter_takes_an_instance():
    assert flatten_gradients(signature(PAIR), Pair(G, None)) == [G, None]
    assert flatten_gradients(signature(PAIR), (Pair(G, None),)) == [G, None]


def test_a_list_of_tensors_takes_a_list():
    tensors = Leaf("xs", "Tensor", container="list")
    assert flatten_gradients(signature(tensors, N), ([G, None], None)) == [[G, None], None]


def test_a_list_of_tensors_as_the_only_parameter_takes_a_bare_list():
    tensors = Leaf("xs", "Tensor", container="list")
    assert flatten_gradients(signature(tensors), [G, H]) == [[G, H]]


@pytest.mark.parametrize(
    ("result", "count"),
    [
        ((G,), "1 gradient"),
        ((G, None), "2 gradients"),
        ((G, None, None, H), "4 gradients"),
        (G, "1 gradient"),
        ((), "no gradients"),
    ],
)
def test_a_wrong_count_is_refused_with_the_right_form(result, count):
    with pytest.raises(BadGradient) as caught:
        flatten_gradients(FULL, result)
    text = str(caught.value)
    assert f"backward returned {count}, but the op has 3 parameters" in text
    assert "return (grad_x, grad_cfg, grad_n), with None" in text
    assert isinstance(caught.value, ValueError)


def test_no_gradients_at_all_for_several_parameters_are_refused():
    with pytest.raises(BadGradient, match="returned 1 gradient, but the op has 3 parameters"):
        flatten_gradients(FULL, None)


def test_a_tuple_of_the_wrong_length_is_refused_by_name():
    with pytest.raises(
        BadGradient, match="one gradient per element of t: expected 2, got 3"
    ) as caught:
        flatten_gradients(signature(X, TUPLE), (G, (G, H, K)))
    assert caught.value.parameter == "t"


def test_a_misspelt_field_is_refused_with_a_close_one():
    with pytest.raises(BadGradient) as caught:
        flatten_gradients(FULL, (G, {"wieght": H}, None))
    text = str(caught.value)
    assert text.startswith("parameter 'cfg': backward returned a gradient for 'wieght'")
    assert "which is not a field of Config" in text
    assert "did you mean 'weight'? fields: scale, weight, inner" in text


def test_a_misspelt_field_deep_inside_is_named_by_its_path():
    with pytest.raises(BadGradient, match=r"parameter 'cfg\.inner'.*'bais'"):
        flatten_gradients(FULL, (G, {"inner": {"bais": H}}, None))


def test_a_misspelt_field_with_none_is_refused_too():
    with pytest.raises(BadGradient, match="'wieght'"):
        flatten_gradients(FULL, (G, {"wieght": None}, None))


def test_a_gradient_for_an_int_is_refused_by_name():
    with pytest.raises(BadGradient) as caught:
        flatten_gradients(FULL, (G, None, H))
    text = str(caught.value)
    assert text.startswith("parameter 'n': backward returned a gradient for SymInt n")
    assert "which is not differentiable" in text
    assert "fix: return None there" in text
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("grad", [{"scale": G}, Config(G, None, None), {"scale": 1.0}], ids=repr)
def test_a_gradient_for_a_field_that_is_not_a_tensor_is_refused_by_path(grad):
    with pytest.raises(BadGradient, match=r"parameter 'cfg\.scale'.*float cfg\.scale"):
        flatten_gradients(FULL, (G, grad, None))


@pytest.mark.parametrize(
    "grad", [1.0, "g", [G], {"a": G}, object()], ids=["float", "str", "list", "dict", "object"]
)
def test_something_other_than_a_tensor_for_a_tensor_is_refused_by_name(grad):
    with pytest.raises(WrongReturn, match="as the gradient of x") as caught:
        flatten_gradients(FULL, (grad, None, None))
    assert caught.value.parameter == "x"
    assert caught.value.fix == "return a tensor or None"
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    "grad", [G, 1.0, (G, H), [G], object()], ids=["tensor", "float", "tuple", "list", "object"]
)
def test_something_other_than_its_fields_for_a_record_is_refused_by_name(grad):
    with pytest.raises(WrongReturn, match=r"backward returned a \w+ for cfg") as caught:
        flatten_gradients(FULL, (G, grad, None))
    assert caught.value.parameter == "cfg"
    assert "None, a Config, or a dict of fields" in caught.value.fix


@pytest.mark.parametrize("grad", [G, {"0": G}, 3], ids=["tensor", "dict", "int"])
def test_something_other_than_a_tuple_for_a_tuple_is_refused_by_name(grad):
    with pytest.raises(WrongReturn, match=r"for t(.|\n)*return None or a tuple of 2"):
        flatten_gradients(signature(X, TUPLE), (G, grad))


def test_a_record_needs_a_gradient_when_any_of_its_tensors_does():
    flat = (False, False, True, False, False)
    assert fold_needs(FULL, flat) == (False, True, False)
    assert fold_needs(FULL, (True, False, False, False, False)) == (True, False, False)


def test_a_presence_flag_counts_when_needs_are_folded():
    optional = signature(dataclasses.replace(CONFIG, optional=True), X)
    assert fold_needs(optional, (False, False, False, False, True)) == (False, True)
