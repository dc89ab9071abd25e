"""What a user may give an op besides its body: rules for vmap, autocast and sharding; records."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption, first_line
from ..model import Leaf, Lowered, Node, Record, leaves_of
from .generated import Generated


def check_call(
    option: str, fn: Any, positional: Sequence[str], keyword: Sequence[str] = ()
) -> list[str]:
    """The names of a callback's parameters; BadOption if it does not accept these arguments."""
    form = f"{option}({', '.join([*positional, *(f'{name}={name}' for name in keyword)])})"
    if not callable(fn):
        raise BadOption(f"{option}={fn!r} is not callable", fix=f"give a function {form}")
    try:
        signature = inspect.signature(fn)
    except ValueError:
        # A builtin has no signature; its first call will tell.
        return []
    try:
        signature.bind(*positional, **dict.fromkeys(keyword))
    except TypeError as error:
        raise BadOption(
            f"{option} cannot be called as {form}: {error}", found=f"{option}{signature}"
        ) from None
    return list(signature.parameters)


def names_of(fn: Callable[..., Any], *, required: bool = False) -> tuple[list[str], list[str]]:
    """The op's arguments by position and by keyword; `required`: those without a default."""
    found = [
        p for p in inspect.signature(fn).parameters.values() if not required or p.default is p.empty
    ]
    positional = [p.name for p in found if p.kind is not p.KEYWORD_ONLY]
    return positional, [p.name for p in found if p.kind is p.KEYWORD_ONLY]


def make_vmap_kernel(
    generated: Generated, overload: Any, rule: Callable[..., Any] | str
) -> Callable[..., Any]:
    """A kernel for the FuncTorchBatched key; its rule gets every flat argument by position."""
    lowered = generated.lowered
    call = _by_position(overload, lowered)
    flat_rule = sequential(call) if rule == "sequential" else _structured(generated, rule)

    def kernel(_keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if call is not overload:
            args, kwargs = tuple(lowered.by_name(args, kwargs).values()), {}
        # Of an op that returns what it mutates, the rule's result would be a copy.
        return lowered.itself(_compat.vmap_dispatch(flat_rule, call, args), args, kwargs)

    return kernel


def _by_position(function: Any, lowered: Lowered) -> Callable[..., Any]:
    """A function of flat arguments that takes even the keyword-only ones by position."""
    keyword_only = [a.name for a in lowered.arguments if a.keyword_only]
    if not keyword_only:
        return function  # type: ignore[no-any-return]

    def call(*flat: Any) -> Any:
        at = len(flat) - len(keyword_only)
        return function(*flat[:at], **dict(zip(keyword_only, flat[at:], strict=True)))

    return call


def check_vmap(rule: Any, fn: Callable[..., Any], lowered: Lowered) -> None:
    """Refuse at registration what would fail on the first call under torch.vmap."""
    if isinstance(rule, str) and rule == "sequential":
        return
    if not callable(rule):
        raise BadOption(
            f"vmap={rule!r} is neither a rule nor 'sequential'",
            fix="vmap='sequential', or a function (info, in_dims, *args) -> (output, out_dims)",
        )
    positional, keyword = names_of(fn)
    try:
        check_call("vmap", rule, ["info", "in_dims", *positional], keyword)
    except BadOption as error:
        # torch leaves out arguments that have their defaults, and so may such a rule.
        if not _takes_flat(lowered):
            raise
        shortest, _ = names_of(fn, required=True)
        try:
            check_call("vmap", rule, ["info", "in_dims", *shortest])
        except BadOption:
            raise error from None


def _takes_flat(lowered: Lowered) -> bool:
    """Whether a rule gets what the dispatcher passes, as it is."""
    return lowered.path == "direct" and not any(a.keyword_only for a in lowered.arguments)


def sequential(call: Callable[..., Any]) -> Callable[..., Any]:
    """Call the op once per slice and stack the results."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        results = [
            call(*[_slice(a, d, i) for a, d in zip(args, in_dims, strict=True)])
            for i in range(info.batch_size)
        ]
        if all(r is None for r in results):
            return None, None
        if not isinstance(results[0], (tuple, list)):
            return _stack(results), 0
        stacked = [_stack(list(column)) for column in zip(*results, strict=True)]
        return type(results[0])(stacked), type(results[0])([0] * len(stacked))

    return rule


def _slice(value: Any, dim: Any, index: int) -> Any:
    if isinstance(value, (list, tuple)):
        dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
        return [_slice(v, d, index) for v, d in zip(value, dims, strict=True)]
    return value if dim is None else value.select(dim, index)


def _stack(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.stack(values)
    if isinstance(values[0], (list, tuple)):
        return [torch.stack(list(column)) for column in zip(*values, strict=True)]
    raise TypeError(f"vmap='sequential' cannot stack outputs of type {type(values[0]).__name__}")


def _structured(generated: Generated, rule: Any) -> Callable[..., Any]:
    """A rule on original arguments, as a rule on flat ones."""
    lowered = generated.lowered
    if _takes_flat(lowered):
        return rule  # type: ignore[no-any-return]
    parameters = lowered.signature.parameters

    def flat_rule(info: Any, in_dims: Any, *flat: Any) -> Any:
        values = _by_position(generated.structure("_of_inputs"), lowered)(*flat)
        dims = [*in_dims, *[None] * (len(lowered.arguments) - len(in_dims))]
        structured = tuple(rebuild_plain(p.node, dims) for p in parameters)
        positional = [v for v, p in zip(values, parameters, strict=True) if not p.keyword_only]
        keyword = {p.name: v for v, p in zip(values, parameters, strict=True) if p.keyword_only}
        output, out_dims = rule(info, structured, *positional, **keyword)
        return generated.structure("_of_flat")(output), _flat_dims(lowered, out_dims)

    return flat_rule


def rebuild_plain(node: Node, flat: list[Any]) -> Any:
    """Values such as batch dimensions, structured like the parameter (consumes `flat`)."""
    if isinstance(node, Leaf):
        return flat.pop(0)
    if node.optional:
        flat.pop(0)
    return node.holding([rebuild_plain(item.node, flat) for item in node.fields])


def _flat_dims(lowered: Lowered, out_dims: Any) -> Any:
    returns = lowered.signature.returns
    if not isinstance(returns, Record):
        return out_dims
    flat = _flatten_plain(returns, out_dims)
    return flat[0] if len(flat) == 1 else tuple(flat)


def _flatten_plain(node: Node, value: Any) -> list[Any]:
    if isinstance(node, Leaf) or value is None or isinstance(value, int):
        return [value for _ in leaves_of(node)]
    flat: list[Any] = []
    for index, item in enumerate(node.fields):
        part = value[index] if isinstance(value, tuple) else getattr(value, item.name)
        flat += _flatten_plain(item.node, part)
    return flat


def read_device_types(option: Any) -> tuple[str, ...]:
    """`"cpu"` -> ("cpu",); None -> ()."""
    listed = () if option is None else (option,) if isinstance(option, str) else option
    if not isinstance(listed, (list, tuple, set, frozenset)):
        raise BadOption(
            f"device_types={option!r} is not a list of device types", fix='device_types="cpu"'
        )
    for name in listed:
        _check_device_type(name)
    return tuple(dict.fromkeys(listed))


def _check_device_type(name: Any) -> None:
    try:
        _compat.backend_key(name)
    except (RuntimeError, TypeError) as error:
        raise BadOption(
            f"{name!r} is not a device type", found=first_line(error), fix='"cpu" or "cuda"'
        ) from None


def check_device_types(device_types: Sequence[str], lowered: Lowered) -> None:
    """Refuse an op whose calls do not say which device they are for."""
    by_device = lowered.tensors or any(a.type in {"Device", "Device?"} for a in lowered.arguments)
    if device_types and not by_device:
        raise BadOption(
            "the op takes neither a tensor nor a device, so no call tells which kernel to run",
            fix="give it a parameter `device: torch.device`, or drop device_types and the kernels",
        )


def read_autocast(option: Any) -> dict[str, torch.dtype]:
    """`torch.float16` -> CUDA and CPU; `{"cuda": torch.bfloat16}` -> CUDA only."""
    if option is None:
        return {}
    chosen = dict(option) if isinstance(option, Mapping) else {"cuda": option, "cpu": option}
    for device, dtype in chosen.items():
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise BadOption(
                f"autocast={option!r}: {dtype!r} is not a floating-point dtype",
                fix="autocast=torch.float16, or autocast={'cuda': torch.bfloat16}",
            )
        if not _has_autocast(device):
            raise BadOption(
                f"autocast={option!r}: no autocast for device {device!r}",
                fix="use a device type such as 'cuda' or 'cpu'",
            )
    return chosen


def _has_autocast(device: Any) -> bool:
    try:
        # torch has it for "cuda:0" as well, and fails when it is to be used.
        return torch.device(device).index is None and torch.amp.is_autocast_available(device)
    except (RuntimeError, TypeError):
        # torch raises for what is not a device type.
        return False


def make_autocast_kernel(overload: Any, device_type: str, dtype: torch.dtype) -> Callable[..., Any]:
    key = _compat.autocast_key(device_type)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _compat.without_key(key):
            cast = [_cast(a, device_type, dtype) for a in args]
            return overload(*cast, **{k: _cast(v, device_type, dtype) for k, v in kwargs.items()})

    return kernel


def _cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        eligible = (
            value.is_floating_point()
            and value.device.type == device_type
            and value.dtype is not torch.float64
        )
        return value.to(dtype) if eligible else value
    if isinstance(value, (list, tuple)):
        return [_cast(v, device_type, dtype) for v in value]
    return value


def register_sharding(overload: Any, rule: Callable[..., Any], lowered: Lowered) -> None:
    """`rule` takes the op's arguments and returns (output, input) placements."""
    if not callable(rule):
        raise BadOption(
            f"sharding={rule!r} is not a rule",
            fix="sharding=rule with rule(*args) -> [(output placements, input placements), ...]",
        )
    if not torch.distributed.is_available():
        raise BadOption(
            "sharding= needs torch.distributed, which this build of torch lacks",
            fix="leave sharding out, or install a build of torch with distributed support",
        )
    # DTensor takes a third of a second to import.
    from torch.distributed.tensor import experimental  # noqa: PLC0415

    experimental.register_sharding(overload)(_completed(rule, lowered))


def _completed(rule: Callable[..., Any], lowered: Lowered) -> Callable[..., Any]:
    """The rule, given all arguments: the dispatcher omits those that equal their default."""
    keyword_only = [a.name for a in lowered.arguments if a.keyword_only]

    @functools.wraps(rule)
    def complete(*args: Any, **kwargs: Any) -> Any:
        given = lowered.by_name(args, kwargs)
        keywords = {name: given.pop(name) for name in keyword_only}
        return rule(*given.values(), **keywords)

    return complete


# What a tracer accepts as an input; anything else (an Enum, a dtype) is part of the structure.
_INPUTS = {"Tensor", "SymInt", "int", "float", "bool", "str", "Scalar"}


def register_records(node: Node | None) -> None:
    """Register every record below a node as a pytree node, so that export and vmap see inside.

    Of a NamedTuple torch needs only the name under which a saved program refers to it.
    """
    if not isinstance(node, Record):
        return
    for item in node.fields:
        register_records(item.node)
    if node.kind == "dataclass":
        _register_dataclass(node)
    elif node.kind == "namedtuple":
        _compat.register_namedtuple(node.cls, _class_name(node.cls))


def _register_dataclass(record: Record) -> None:
    cls = record.cls
    children = [f.name for f in record.fields if _is_child(f.node)]
    constants = [f.name for f in record.fields if f.name not in children]

    def flatten(value: Any) -> tuple[list[Any], Any]:
        return [getattr(value, n) for n in children], tuple(getattr(value, n) for n in constants)

    def unflatten(parts: Any, context: Any) -> Any:
        value = object.__new__(cls)
        for name, part in zip((*children, *constants), (*parts, *context), strict=True):
            object.__setattr__(value, name, part)
        return value

    functions: dict[str, Any] = {}
    enums = [_enum_of(f.node) for f in record.fields if f.name in constants]
    if all(enums):
        functions["serialized_type_name"] = _class_name(cls)
        functions["to_dumpable_context"] = lambda context: [
            None if m is None else m.name for m in context
        ]
        functions["from_dumpable_context"] = lambda names: tuple(
            None if n is None else e[n] for e, n in zip(enums, names, strict=True) if e is not None
        )
    _compat.register_pytree(cls, flatten, unflatten, children, **functions)


def _class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _is_child(node: Node) -> bool:
    if isinstance(node, Record):
        return True
    return node.base in _INPUTS and (node.codec is None or node.codec.cls is None)


def _enum_of(node: Node) -> type[enum.Enum] | None:
    return node.codec.cls if isinstance(node, Leaf) and node.codec and not node.container else None
