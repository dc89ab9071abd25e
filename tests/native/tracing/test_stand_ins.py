"""A trace goes on after a call that a library cannot make, and lists the later ones, too."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from opforge import native
from opforge.errors import BadDeclaration, UnsupportedBody
from support.native.torch_bodies import Program

X = {"x": native.tensor("n", dtype="fp32"), "dims": {"n": (8, 4096)}}


def refused(body, **specs):
    """The calls that the error about a body lists, without their places."""
    with pytest.raises(UnsupportedBody) as raised:
        _ = Program(body, **(specs or X)).body.built
    listed = raised.value.found.splitlines()
    for line in listed:
        assert re.search(rf" at {re.escape(__file__)}:\d+$", line.strip())
    return [line.strip().partition(" at ")[0] for line in listed]


DEPEND_ON_DATA = {
    "nonzero": (lambda x: x.nonzero(as_tuple=True), "aten.nonzero"),
    "where": (lambda x: torch.where(x > 0), "aten.nonzero"),
    "unique": (lambda x: torch.unique(x, return_inverse=True), "torch.unique"),
    "masked_select": (lambda x: x.masked_select(x > 0), "aten.masked_select"),
    "index": (lambda x: x[x > 0], "aten.index.Tensor"),
    "item": (lambda x: x.sum().item(), ".item()"),
    "int": (lambda x: int(x.sum()), "int(tensor)"),
    "slice": (lambda x: x[: int(x.max())], "int(tensor)"),
    "tolist": (lambda x: x.tolist(), ".tolist()"),
    "str": (str, ".tolist()"),
    "bool": (lambda x: bool((x > 0).any()), "bool(tensor)"),
    "contains": (lambda x: 1.0 in x, "in"),
    "numpy": (lambda x: np.asarray(x).sum(), ".numpy()"),
    "equal": (lambda x: torch.equal(x, x), "aten.equal"),
}


@pytest.mark.parametrize("name", DEPEND_ON_DATA)
def test_a_result_that_depends_on_data_hides_no_later_call(name):
    call, listed = DEPEND_ON_DATA[name]

    def body(x: Tensor) -> Tensor:
        call(x)
        return x.sort().values

    assert refused(body) == [listed, "aten.sort"]


@pytest.mark.parametrize(
    ("goes_on", "asks"),
    [(lambda x: not x.any(), "bool(tensor)"), (lambda x: x.sum().item() > 1, ".item()")],
    ids=["bool", "number"],
)
def test_a_loop_that_data_ends_ends(goes_on, asks):
    def body(x: Tensor) -> Tensor:
        while goes_on(x):
            x = x - 1
        return x.sort().values

    assert refused(body) == [asks, "aten.sort"]


def test_a_loop_as_long_as_data_says_is_followed_for_a_while():
    rounds = []

    def body(x: Tensor) -> Tensor:
        y = x.sort().values
        for _ in range(int(x.max())):
            rounds.append(1)
            y = y + x.cummax(0).values
        return y

    assert refused(body) == ["aten.sort", "int(tensor)", "aten.cummax"]
    assert len(rounds) < 1000


def test_a_loop_without_end_is_left():
    def body(x: Tensor) -> Tensor:
        while len(x.tolist()) > 0:
            x = x - 1
        return x.clone()

    assert refused(body) == [".tolist()"]


def by_elif(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.sort().values
    if x.max() > 3:
        return torch.rand_like(x)
    if x.min() > 3:
        return x.cummax(0).values
    return x.cummin(0).values


def by_a_number(x: Tensor) -> Tensor:
    k = x.sum().item()
    if k > 10:
        return x.sort().values
    if k == 0:
        return torch.rand_like(x)
    return x.cummax(0).values if k < 0 else x.cummin(0).values


@pytest.mark.parametrize(
    ("body", "listed"),
    [
        (by_elif, {"bool(tensor)", "aten.sort", "aten.rand_like", "aten.cummax", "aten.cummin"}),
        (by_a_number, {".item()", "aten.sort", "aten.rand_like", "aten.cummax", "aten.cummin"}),
    ],
)
def test_every_way_that_data_may_take_is_listed(body, listed):
    assert set(refused(body)) == listed


def vector(size):
    return native.tensor(size, dtype="fp32")


def test_calls_before_a_size_that_must_be_a_constant_are_listed_with_it():
    def body(x: Tensor) -> Tensor:
        z = x.sort().values
        for _ in range(x.shape[0]):
            z = z + 1
        return z

    with pytest.raises(BadDeclaration) as raised:
        _ = Program(body, x=vector("m")).body.built
    assert raised.value.what.startswith("m must be a constant")
    lines = [line.strip() for line in raised.value.found.splitlines()]
    assert all(f" at {__file__}:" in line for line in lines)
    assert [line.partition(" at ")[0] for line in lines] == ["used", "aten.sort"]
    assert "dims={'m': [1024, 4096]}" in raised.value.fix
    assert raised.value.fix.endswith("lists; move the rest into a kernel")


def test_a_function_that_wants_plain_sizes_is_a_call_like_others():
    def body(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2.0).sort().values

    image = {"x": native.tensor("a b c", dtype="fp32")}
    assert refused(body, **image) == ["torch.nn.functional.interpolate", "aten.sort"]


FOREIGN = "a library has no data of its own; make it a parameter"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x: x.new_tensor([1.0, 2.0]), ".new_tensor()"),
        (lambda x: torch.tensor([1.0, 2.0], device=x.device), "torch.tensor"),
    ],
)
def test_data_that_the_body_brings_is_named_where_it_is_made(make, name):
    def body(x: Tensor) -> Tensor:
        return x * make(x).sum()

    with pytest.raises(UnsupportedBody) as raised:
        _ = Program(body, **X).body.built
    assert re.fullmatch(
        rf"{re.escape(name)} at {re.escape(__file__)}:\d+: {FOREIGN}", raised.value.found
    )


@pytest.mark.parametrize("turn_on", [lambda: torch.autocast("cuda"), torch.cuda.amp.autocast])
@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp.autocast")
def test_autocast_is_refused(turn_on):
    def body(x: Tensor) -> Tensor:
        with turn_on():
            return x * 2

    with pytest.raises(
        UnsupportedBody, match="a library does not cast as autocast does; cast with"
    ):
        _ = Program(body, **X).body.built


def test_autocast_that_is_turned_off_is_not():
    def body(x: Tensor) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            return x.sort().values

    assert refused(body) == ["aten.sort"]


@pytest.mark.parametrize("limit", [0, 3])
def test_both_ways_that_a_size_which_depends_on_data_decides_are_listed(limit):
    def body(x: Tensor) -> Tensor:
        at = x.nonzero()
        if at.shape[0] <= limit:
            return x.sort().values
        return torch.rand_like(x)

    assert set(refused(body)) == {"aten.nonzero", "aten.sort", "aten.rand_like"}


@pytest.mark.parametrize(
    "used",
    [lambda z, y: z + y, lambda z, y: z.view(8) + y, lambda z, y: torch.stack([z, y])],
    ids=["add", "view", "stack"],
)
def test_a_size_that_depends_on_data_and_must_be_a_declared_one_hides_no_later_call(used):
    def body(x: Tensor, y: Tensor) -> Tensor:
        z = used(x[x > 0], y)
        return z.sort().values + torch.rand_like(y)

    specs = {"x": native.tensor("n", dtype="fp32"), "y": native.tensor("8", dtype="fp32")}
    assert refused(body, **specs) == ["aten.index.Tensor", "aten.sort", "aten.rand_like"]
