"""The fakes and gradients of a package's operators, from the manifest of its library.

`opforge wheel` copies this file and what it imports into each wheel, below `_opforge`. All but this
file is imported by the first trace or gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..loading.formula import Formula
    from ..native.library.manifest_reader import ManifestOp


def register_rules(
    torch: Any, manifest: Path, operators: Iterable[str], differentiable: Iterable[str]
) -> None:
    """Give torch the fake of each operator, and the gradient of those that have one."""
    rules = _Rules(manifest)
    with_gradient = set(differentiable)
    for name in operators:
        refused = None if name in with_gradient else torch
        torch.library.register_fake(name, rules.fake(name, refused))
    for name in with_gradient:
        formula = functools.partial(rules.formula, name)
        torch.library.register_autograd(name, _backward(formula), setup_context=_save(formula))


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
            from ..loading.fake import Shapes  # noqa: PLC0415 - see above

            return Shapes(self._ops[name].op, self._ops[name].cases)

        def fake(*args: Any, **kwargs: Any) -> Any:
            if refused is not None and refused.is_grad_enabled():
                for value in (*args, *kwargs.values()):
                    if isinstance(value, refused.Tensor) and value.requires_grad:
                        raise RuntimeError(
                            f"{name}: an input requires grad, but the operator has no derivative; "
                            "call it with grad disabled, or on detached tensors"
                        )
            return shapes()(*args, **kwargs)

        return fake

    @functools.cache  # noqa: B019 - one object, for as long as torch has the operators
    def formula(self, name: str) -> Formula:
        from ..loading.formula import Formula  # noqa: PLC0415 - see above

        return Formula(self._ops[name].op)


# Torch passes the arguments of the first by name.
def _save(formula: Callable[[], Formula]) -> Callable[..., None]:
    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        formula().save(ctx, inputs, output)

    return save


def _backward(formula: Callable[[], Formula]) -> Callable[..., Any]:
    def backward(ctx: Any, *grads: Any) -> Any:
        return formula().backward(ctx, *grads)

    return backward
