"""The fakes and gradients of a package's operators, from the manifest of its library.

`opforge wheel` copies this file and what it imports into each wheel, below `_opforge`. What reads
the manifest is imported by the first trace or gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .._compat.transforms import INTO_LEVEL, around_level, is_differentiated

if TYPE_CHECKING:
    from ..loading.rules import Formula
    from ..native.library.manifest_reader import ManifestOp


_NO_DERIVATIVE = "but the operator has no derivative"
_DETACH = "call it with grad disabled, or on detached tensors"


def register_rules(
    torch: Any, manifest: Path, operators: Iterable[str], differentiable: Iterable[str]
) -> Any:
    """Give torch the fake of each operator, and the gradient of those that have one.

    Returns what holds the rest of the rules, for as long as torch has the operators.
    """
    rules = _Rules(manifest)
    with_gradient = set(differentiable)
    for name in operators:
        refused = None if name in with_gradient else torch
        torch.library.register_fake(name, rules.fake(name, refused))
    for name in with_gradient:
        formula = functools.partial(rules.formula, name)
        torch.library.register_autograd(name, _backward(formula), setup_context=_save(formula))
    return [
        _refuse_derivatives(torch, name, has_gradient=name in with_gradient) for name in operators
    ]


class _Rules:
    def __init__(self, manifest: Path) -> None:
        self._manifest = manifest

    @functools.cached_property
    def _ops(self) -> dict[str, ManifestOp]:
        from ..native.library.manifest_reader import Manifest  # noqa: PLC0415 - see above

        found = Manifest(self._manifest.read_bytes(), str(self._manifest))
        return {op.torch_name: op for op in found.ops}

    def fake(self, name: str, refused: Any) -> Callable[..., Any]:
        """With torch as `refused`, inputs that require grad are, as a real call refuses them."""

        @functools.cache
        def shapes() -> Callable[..., Any]:
            from ..loading.rules import Shapes  # noqa: PLC0415 - see above

            return Shapes(self._ops[name].op, self._ops[name].cases)

        def fake(*args: Any, **kwargs: Any) -> Any:
            if refused is not None and refused.is_grad_enabled():
                for value in (*args, *kwargs.values()):
                    if isinstance(value, refused.Tensor) and value.requires_grad:
                        raise RuntimeError(
                            f"{name}: an input requires grad, {_NO_DERIVATIVE}; {_DETACH}"
                        )
            return shapes()(*args, **kwargs)

        return fake

    @functools.cache  # noqa: B019 - one object, for as long as torch has the operators
    def formula(self, name: str) -> Formula:
        from ..loading.rules import Formula  # noqa: PLC0415 - see above

        return Formula(self._ops[name].op)


def _refuse_derivatives(torch: Any, name: str, *, has_gradient: bool) -> Any:
    """Let `torch.func` raise where it would take the operator's derivative as zero.

    It does so with every operator whose kernel at the Autograd key it cannot look into, and in
    forward mode also with a gradient that was given to `torch.library`.
    """
    no_derivative = f"{name}: torch.func would differentiate it, {_NO_DERIVATIVE}; {_DETACH}"
    if has_gradient:
        no_derivative = (
            f"{name}: torch.func does not differentiate the operators of a package\n"
            "  fix: use torch.autograd.grad, or opforge.load of the package's folder in place of "
            "importing it"
        )

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if any(map(is_differentiated, (*args, *kwargs.values()))):
                raise RuntimeError(no_derivative)
            return original(keyset, *args, **kwargs)

        return kernel

    def unknown(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(
            f"{name}: torch.func cannot call the operators of this package in torch "
            f"{torch.__version__}, which is newer than they are\n"
            "  fix: call it outside of torch.func, or build the package with a newer opforge"
        )

    space, _, op = name.partition("::")
    library = torch.library.Library(space, "FRAGMENT")
    try:
        around_level(library, name, INTO_LEVEL, make)
    except (AttributeError, TypeError):
        # A later torch may have other private APIs, and silent zeros are worse than an error.
        library.impl(op, unknown, INTO_LEVEL)
    return library


# Torch passes the arguments of the first by name, and keyword-only ones only where there are some.
def _save(formula: Callable[[], Formula]) -> Callable[..., None]:
    def save(
        ctx: Any,
        inputs: tuple[Any, ...],
        output: Any,
        keyword_only_inputs: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        ctx.opforge_positional = len(inputs)
        formula().save(ctx, (*inputs, *keyword_only_inputs.values()), output)

    return save


def _backward(formula: Callable[[], Formula]) -> Callable[..., Any]:
    def backward(ctx: Any, *grads: Any) -> Any:
        made = formula().backward(ctx, *grads)
        return made[: ctx.opforge_positional] if isinstance(made, tuple) else made

    return backward
