"""The parameters of the function that is asked about: callers give them, whatever the default."""

from __future__ import annotations

import enum
import functools
from typing import Literal, Optional, Union

import pytest
import torch

import opforge
from support import launch_siblings
from support.launch_patterns import double_kernel, triple_kernel, tuned_kernel


def eager(x):
    return x * 2


def doubled(x):
    double_kernel[(1,)](x)


def tripled(x):
    triple_kernel[(1,)](x)


def tuned(x):
    tuned_kernel[(1,)](x)


TABLE = {"eager": eager, "double": doubled, "triple": tripled, "tuned": tuned}
BY_FLAG = {False: eager, True: doubled, None: tripled}
KERNELS = {"double": double_kernel, "triple": triple_kernel}
Impl = Literal["eager", "double"]


class Choice(enum.Enum):
    EAGER = "eager"
    DOUBLE = "double"


def kernels_of(fn):
    return [found.kernel for found in opforge.find_kernels(fn)]


def lost(fn):
    return [(u.name, u.why) for u in opforge.find_kernels(fn).unresolved]


def by_text(x, impl: str = "eager"):
    return TABLE[impl](x)


def by_unannotated(x, impl="eager"):
    return TABLE[impl](x)


def by_keyword_only(x, *, impl: str = "eager"):
    return TABLE[impl](x)


def by_get(x, impl="eager"):
    run = TABLE.get(impl, eager)
    return run(x)


def by_none(x, impl: str | None = None):
    return TABLE[impl or "eager"](x)


def by_helper(x, impl="eager"):
    return by_text(x, impl=impl)


def by_value_of_an_enum(x, choice: Choice = Choice.EAGER):
    return TABLE[choice.value](x)


def by_keywords(x, **options):
    return TABLE[options.get("impl", "eager")](x)


def by_more(x, *more):
    return TABLE[more[0] if more else "eager"](x)


def passed_on(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


EVERY_ENTRY = [
    by_text,
    by_unannotated,
    by_keyword_only,
    by_get,
    by_none,
    by_helper,
    by_value_of_an_enum,
    by_keywords,
    by_more,
    passed_on(by_text),
    passed_on(passed_on(by_keyword_only)),
    torch.no_grad()(by_text),
    functools.partial(by_text, torch.ones(1)),
]


@pytest.mark.parametrize("host", EVERY_ENTRY, ids=lambda f: getattr(f, "__name__", "partial"))
def test_every_entry_is_followed_whatever_the_default(host):
    assert kernels_of(host) == [double_kernel, triple_kernel, tuned_kernel]
    assert lost(host) == []


def by_literal(x, impl: Literal["eager", "double"] = "eager"):
    return TABLE[impl](x)


def by_named_literal(x, impl: Impl = "eager"):
    return TABLE[impl](x)


def by_optional_literal(x, impl: Optional[Literal["double"]] = None):  # noqa: UP045
    return TABLE[impl or "eager"](x)


def by_literals(x, impl: Union[Literal["eager"], Impl] = "eager"):  # noqa: UP007
    return TABLE[impl](x)


def by_literal_without_default(x, impl: Literal["double"]):
    return TABLE[impl](x)


def by_flag(x, fast: bool = False):
    return BY_FLAG[fast](x)


@pytest.mark.parametrize(
    "host",
    [
        by_literal,
        by_named_literal,
        by_optional_literal,
        by_literals,
        by_literal_without_default,
        by_flag,
        passed_on(by_literal),
    ],
)
def test_only_what_the_annotation_allows_is_followed(host):
    assert kernels_of(host) == [double_kernel]
    assert lost(host) == []


def test_what_a_partial_gives_is_given():
    assert kernels_of(functools.partial(by_text, impl="triple")) == [triple_kernel]


def test_a_default_of_a_function_that_is_called_is_what_it_gets():
    def host(x):
        return by_text(x)

    assert kernels_of(host) == []
    assert lost(host) == []


def test_a_kernel_that_a_caller_may_replace_is_found_and_reported():
    def host(x, kernel=double_kernel):
        kernel[(1,)](x)

    assert kernels_of(host) == [double_kernel]
    assert lost(host) == [("kernel[(1,)]", "parameter 'kernel' is given by the caller")]


def test_an_attribute_by_a_name_with_a_default_is_found_and_reported():
    def host(x, name="scale_kernel"):
        getattr(launch_siblings, name)[(1,)](x)

    assert kernels_of(host) == [launch_siblings.scale_kernel]
    assert [why for _, why in lost(host)] == ["getattr with a name that is computed"]


def test_an_attribute_by_a_name_made_of_a_default_is_found_and_reported():
    def host(x, kind="scale"):
        getattr(launch_siblings, f"{kind}_kernel")[(1,)](x)

    assert kernels_of(host) == [launch_siblings.scale_kernel]
    assert [why for _, why in lost(host)] == ["getattr with a name that is computed"]


def test_what_cannot_be_called_is_not_reported():
    def host(x, weight: torch.Tensor | None = None, eps=1e-6, dtype: torch.dtype | None = None):
        rows = x.numel() // (weight.numel() if weight is not None else 1)
        double_kernel[(rows,)](x, weight, eps, dtype)

    assert lost(host) == []


def test_an_op_with_a_default_that_launches_nothing_is_transparent(op_name):
    @opforge.op(op_name())
    def op(x: torch.Tensor, impl: str = "plain") -> torch.Tensor:
        out = torch.empty_like(x)
        if impl in KERNELS:
            KERNELS[impl][(1,)](x, out)
        return out

    assert opforge.info(op).mode == "triton_op"
