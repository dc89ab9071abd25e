"""Drop-in for MagiCompiler's `magi_register_custom_op`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .errors import BadOption
from .model import Dialect, Mode
from .op import Options, make_op

_DIALECT = Dialect(fake="infer_output_meta_fn", backward="backward_fn", lenient=True)
_MODES: dict[str | None, Mode] = {
    None: "auto", "custom_op": "custom_op", "triton_op": "triton_op", "none": "none"
}  # fmt: skip


def magi_register_custom_op(  # noqa: PLR0917  # the parameters and their order are MagiCompiler's
    name: str | None = None,
    mutates_args: str | Iterable[str] = (),
    infer_output_meta_fn: Callable[..., Any] | Sequence[str] | None = None,
    setup_context_fn: Callable[..., Any] | None = None,
    backward_fn: Callable[..., Any] | None = None,
    is_compute_sensitive: bool = False,  # noqa: FBT001, FBT002  # as above
    is_subgraph_boundary: bool = False,  # noqa: FBT001, FBT002  # as above
    extra_triton_kernels: Sequence[Any] | None = (),
    force_register_mode: str | None = None,
    max_introspect_depth: int = 5,
) -> Any:
    """Register a function as an operator, with MagiCompiler's parameters.

        @magi_register_custom_op("mylib::scale")
        def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
            return x * factor

    Without `infer_output_meta_fn`, the body itself runs on fake tensors. Where it cannot, the i-th
    output is assumed to look like the i-th tensor input, and a real call that differs warns.
    """
    if force_register_mode not in _MODES:
        raise BadOption(
            f"force_register_mode={force_register_mode!r} is unknown",
            fix=f"one of {', '.join(repr(m) for m in _MODES)}",
        )
    options = Options(
        name=None if callable(name) else name,
        mutates_args=mutates_args,
        fake=infer_output_meta_fn,
        # As with MagiCompiler, it is for the backward alone.
        setup_context=setup_context_fn if backward_fn is not None else None,
        backward=backward_fn,
        mode=_MODES[force_register_mode],
        kernels=tuple(extra_triton_kernels or ()),
        max_depth=max_introspect_depth,
        compute_sensitive=is_compute_sensitive,
        subgraph_boundary=is_subgraph_boundary,
    )
    if callable(name):
        return make_op(name, options, _DIALECT)
    return lambda fn: make_op(fn, options, _DIALECT)
