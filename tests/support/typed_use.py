"""What type checkers see of `opforge.op`: mypy reads this file, nothing runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import opforge

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import assert_type

    Tensor = torch.Tensor
    OneFloat = Callable[[Tensor, float], Tensor]

    def scale(x: Tensor, factor: float, /) -> Tensor: ...

    @opforge.op
    def bare(x: Tensor, factor: float, /) -> Tensor: ...

    @opforge.op("mylib::named", mutates_args=["x"], tags=torch.Tag.pointwise)
    def named(x: Tensor, factor: float, /) -> Tensor: ...

    @opforge.op(mode="custom_op", fake=["x"])
    def with_options(x: Tensor, factor: float, /) -> Tensor: ...

    assert_type(bare, OneFloat)
    assert_type(named, OneFloat)
    assert_type(with_options, OneFloat)
    assert_type(opforge.op(scale, name="mylib::scale"), OneFloat)

    opforge.op(mutate_args=["x"])  # type: ignore[call-overload]
    opforge.op(max_depth="5")  # type: ignore[call-overload]
    bare("text", 2.0)  # type: ignore[arg-type]
