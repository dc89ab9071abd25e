"""One gradient per original parameter -> one per flat argument.

backward returns   (grad_q, {"weight": grad_w}, None)
for parameters     q: Tensor, cfg: Cfg(scale: float, weight: Tensor), mode: str
flat               [grad_q, None, grad_w, None]
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from ..errors import BadGradient, WrongReturn
from ..model import MISSING, Leaf, Node, Parameter, Record, Signature, flat_width
from ..notebook import counted


def flatten_gradients(
    signature: Signature,
    result: Any,
    option: str = "backward",
    needed: Sequence[bool] | None = None,
) -> list[Any]:
    """Flatten what `backward` returned; a tensor list's gradients stay one list.

    `option` is what the user's decorator calls `backward`.

    `needed`, per parameter: where no gradient is, those of the last parameters may be left out if
    these have defaults or are keyword-only. torch expects gradients of positional arguments that
    were passed, and of no others.
    """
    parameters = signature.parameters
    grads = result if type(result) is tuple else (result,)
    if len(parameters) == 1 and len(grads) != 1 and isinstance(parameters[0].node, Record):
        grads = (result,)
    rest = slice(len(grads), None)
    if grads and needed is not None and not any(needed[rest]) and _optional(parameters[rest]):
        grads = (*grads, *(None for _ in parameters[rest]))
    if len(grads) != len(parameters):
        raise BadGradient(
            f"{option} returned {counted(len(grads), 'gradient')}, but the op has "
            f"{counted(len(parameters), 'parameter')}",
            found="a list, which counts as one gradient; return a tuple"
            if isinstance(result, list)
            else None,
            fix=f"return ({', '.join('grad_' + p.name for p in parameters)}), "
            "with None where a parameter has no gradient",
        )
    flat: list[Any] = []
    for parameter, grad in zip(parameters, grads, strict=True):
        _flatten(parameter.node, grad, flat, own=False)
    return flat


def _optional(parameters: Sequence[Parameter]) -> bool:
    return all(p.default is not MISSING or p.keyword_only for p in parameters)


def _flatten(node: Node, grad: Any, flat: list[Any], *, own: bool) -> None:
    """`own`: it is inside an instance of the user's class, whose other fields hold values."""
    if isinstance(node, Leaf):
        flat.append(_leaf(node, grad, own=own))
        return
    if node.optional:
        flat.append(None)
    if grad is None:
        flat += [None] * (flat_width(node) - int(node.optional))
        return
    own = own or (not isinstance(grad, dict) and node.kind != "tuple")
    for item, part in zip(node.fields, _parts(node, grad), strict=True):
        _flatten(item.node, part, flat, own=own)


def _leaf(leaf: Leaf, grad: Any, *, own: bool) -> Any:
    if grad is None:
        return None
    if not leaf.is_tensor:
        if own and not _is_tensor(grad):
            return None
        raise BadGradient(
            f"backward returned a gradient for {leaf.schema_type()} {leaf.path}, "
            "which is not differentiable",
            parameter=leaf.path,
            found=type(grad).__name__,
            fix="return None there",
        )
    if not _is_tensor(grad) and not (leaf.container and isinstance(grad, (list, tuple))):
        raise WrongReturn(
            f"backward returned a {type(grad).__name__} as the gradient of {leaf.path}",
            parameter=leaf.path,
            fix="return a list of tensors or None" if leaf.container else "return a tensor or None",
        )
    return grad


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "requires_grad")


def _parts(node: Record, grad: Any) -> list[Any]:
    names = [item.name for item in node.fields]
    if isinstance(grad, dict) and node.kind != "tuple":
        unknown = [key for key in grad if key not in names]
        if unknown:
            close = difflib.get_close_matches(str(unknown[0]), names, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise BadGradient(
                f"backward returned a gradient for {unknown[0]!r}, which is not a field of "
                f"{node.cls.__name__}",
                parameter=node.path,
                fix=f"{hint}fields: {', '.join(names)}",
            )
        return [grad.get(name) for name in names]
    if (
        isinstance(grad, (tuple, list))
        and (node.kind != "dataclass")
        and type(grad) in (tuple, list, node.cls)
    ):
        if len(grad) != len(names):
            raise BadGradient(
                f"backward must return one gradient per element of {node.path}: "
                f"expected {len(names)}, got {len(grad)}",
                parameter=node.path,
                fix="return None for elements that have no gradient",
            )
        return list(grad)
    # A plain tuple or list has attributes too: `count` and `index`.
    by_name = node.kind != "tuple" and not _is_tensor(grad) and type(grad) not in (tuple, list)
    if by_name and any(hasattr(grad, n) for n in names):
        return [getattr(grad, name, None) for name in names]
    raise WrongReturn(
        f"backward returned a {type(grad).__name__} for {node.path}",
        parameter=node.path,
        fix=f"return None, a {node.cls.__name__}, or a dict of fields"
        if node.kind != "tuple"
        else f"return None or a tuple of {len(names)}",
    )


def fold_needs(signature: Signature, flat: tuple[bool, ...]) -> tuple[bool, ...]:
    """`needs_input_grad` per flat argument -> per parameter: true when any part needs one."""
    folded, start = [], 0
    for parameter in signature.parameters:
        width = flat_width(parameter.node)
        folded.append(any(flat[start : start + width]))
        start += width
    return tuple(folded)
