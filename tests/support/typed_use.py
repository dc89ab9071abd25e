"""What type checkers see of `opforge.op`: mypy reads this file, nothing runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import opforge

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import assert_type

    from opforge.typed import Op

    Tensor = torch.Tensor
    OneFloat = Op[[Tensor, float], Tensor]

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

    function: Callable[[Tensor, float], Tensor] = bare
    assert_type(bare(torch.ones(1), 2.0), Tensor)
    assert_type(bare.register_fake(scale), Callable[[Tensor, float], Tensor])
    assert_type(bare.register_kernel("cpu")(scale), Callable[[Tensor, float], Tensor])

    opforge.op(mutate_args=["x"])  # type: ignore[call-overload]
    opforge.op(max_depth="5")  # type: ignore[call-overload]
    bare("text", 2.0)  # type: ignore[arg-type]
