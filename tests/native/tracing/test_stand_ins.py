"""A trace goes on after a call that a library cannot make, and lists the later ones, too."""

import logging
import re

import pytest
import torch
from torch import Tensor

from opforge import native
from opforge.errors import CannotTrace
from support.native.torch_bodies import Program

X = {"x": native.tensor("n", dtype="fp32"), "dims": {"n": (8, 4096)}}


def refused(body, **specs):
    """The calls that the error about a body lists, without their places."""
    with pytest.raises(CannotTrace) as raised:
        _ = Program(body, **(specs or X)).body.built
    listed = raised.value.found.splitlines()
    for line in listed:
        assert re.search(rf" at {re.escape(__file__)}:\d+$", line.strip())
    return [line.strip().partition(" at ")[0] for line in listed]


ITEM = "aten._local_scalar_dense"
DEPEND_ON_DATA = {
    "nonzero": (lambda x: x.nonzero(), "aten.nonzero"),
    "nonzero_as_tuple": (lambda x: x.nonzero(as_tuple=True), "aten.nonzero"),
    "where": (lambda x: torch.where(x > 0), "aten.nonzero"),
    "argwhere": (torch.argwhere, "aten.nonzero"),
    "unique": (torch.unique, "aten._unique2"),
    "unique_with_counts": (
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        "aten._unique2",
    ),
    "unique_consecutive": (torch.unique_consecutive, "aten.unique_consecutive"),
    "unique_rows": (lambda x: torch.unique(x, dim=0), "aten.unique_dim"),
    "masked_select": (lambda x: x.masked_select(x > 0), "aten.masked_select"),
    "index": (lambda x: x[x > 0], "aten.index.Tensor"),
    "index_put": (lambda x: x.clone().__setitem__(x > 0, 1.0), "aten.index_put_"),
    "repeat_interleave": (
        lambda x: torch.repeat_interleave(x, x.long()),
        "aten.repeat_interleave.Tensor",
    ),
    "bincount": (lambda x: torch.bincount(x.long()), "aten.bincount"),
    "item": (lambda x: x.sum().item(), ITEM),
    "int": (lambda x: int(x.sum()), ITEM),
    "float": (lambda x: float(x.sum()), ITEM),
    "format": (lambda x: f"{x.sum().item():.3f}", ITEM),
    "empty": (lambda x: x.new_empty(int(x.max())), ITEM),
    "slice": (lambda x: x[: int(x.max())], ITEM),
    "tolist": (lambda x: x.tolist(), "Tensor.tolist"),
    "bool": (lambda x: bool((x > 0).any()), ITEM),
    "contains": (lambda x: 1.0 in x, ITEM),
    "equal": (lambda x: torch.equal(x, x), "aten.equal"),
    "allclose": (lambda x: torch.allclose(x, x), "aten.allclose"),
}


@pytest.mark.parametrize("name", DEPEND_ON_DATA)
def test_a_result_that_depends_on_data_hides_no_later_call(name):
    call, listed = DEPEND_ON_DATA[name]

    def body(x: Tensor) -> Tensor:
        call(x)
        return x.sort().values

    assert refused(body) == [listed, "aten.sort"]


def test_what_is_made_of_such_a_result_is_listed_as_well():
    def body(x: Tensor) -> Tensor:
        at = x.nonzero().squeeze(-1)
        return (x[at].sort().values * 2).cummax(0).values

    assert refused(body) == ["aten.nonzero", "aten.sort", "aten.cummax"]


def test_both_ways_that_data_may_take_are_listed():
    def body(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x.sort().values
        return torch.rand_like(x)

    assert refused(body) == [ITEM, "aten.sort", "aten.rand_like"]


@pytest.mark.parametrize("is_bad", [lambda x: x.isnan().any(), lambda x: not (x < 9).all()])
def test_a_check_of_data_hides_no_later_call(is_bad):
    def body(x: Tensor) -> Tensor:
        if is_bad(x):
            raise ValueError("x is not a number")
        return x.sort().values

    assert refused(body) == [ITEM, "aten.sort"]


@pytest.mark.parametrize(
    "goes_on",
    [lambda x: x.any(), lambda x: not x.any(), lambda x: x.sum().item() > 1],
    ids=["any", "not_any", "number"],
)
def test_a_loop_that_data_ends_ends(goes_on):
    def body(x: Tensor) -> Tensor:
        while goes_on(x):
            x = x - 1
        return x.clone()

    assert refused(body) == [ITEM]


def test_a_list_of_a_huge_tensor_takes_little_memory():
    def body(x: Tensor) -> Tensor:
        assert len(x.tolist()) > 1
        return x.sort().values

    huge = {"x": native.tensor(f"{2**40}", dtype="i8")}
    assert refused(body, **huge) == ["Tensor.tolist", "aten.sort"]


@pytest.mark.parametrize(
    "text",
    [lambda x: len(str(x)), lambda x: repr(x).count("1"), lambda x: float(f"{x.sum():.3f}")],
    ids=["str", "repr", "format"],
)
def test_the_text_of_a_tensor_is_data(text):
    def body(x: Tensor) -> Tensor:
        return x.sort().values * text(x)

    assert refused(body) == ["aten.sort", "Tensor.tolist"]


@pytest.mark.parametrize("turn_on", [lambda: torch.autocast("cuda"), torch.cuda.amp.autocast])
@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp.autocast")
def test_autocast_is_refused(turn_on):
    def body(x: Tensor) -> Tensor:
        with turn_on():
            return x * 2

    with pytest.raises(CannotTrace, match="a library does not cast as autocast does; cast with"):
        _ = Program(body, **X).body.built


def test_autocast_that_is_turned_off_is_not():
    def body(x: Tensor) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            return x.sort().values

    assert refused(body) == ["aten.sort"]


def test_a_call_that_fails_on_fakes_logs_nothing(monkeypatch):
    def body(x: Tensor) -> Tensor:
        return x.topk(10**6).values

    logged = []
    log = logging.getLogger("torch._subclasses.fake_tensor")
    monkeypatch.setattr(log, "callHandlers", logged.append)
    with pytest.raises(CannotTrace):
        _ = Program(body, **X).body.built
    assert logged == []
