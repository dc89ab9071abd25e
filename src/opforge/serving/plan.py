"""From a recording to what is compiled: the variants that were seen, and general ones.

An instance is a kernel with its constants, options and the kinds of its arguments. Each has the
variants that were recorded, and general ones, which assume nothing of pointers and integers but
their widths. Triton gives each integer the width of its value, and arithmetic in another one gives
other results, so there is a general variant for each mix of widths that is to be expected.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _compat
from ..errors import NotFound, NotServable, OpforgeError
from ..native.ir.kernel_request import Request
from ..recording.constants import CannotRecord, ConstantChanged, decode, show
from ..recording.model import RecordedKernel, RecordedVariant, Recording
from .find import find, find_constant
from .gaps import undeclared
from .importing import importable_from
from .kinds import DESCRIPTOR, INTEGERS, MOST_DESCRIPTORS, OTHERS, PRINTED, kind_of
from .widen import Widening

_LONGEST = 128
# Elements of a block in Triton.
_LARGEST = 1 << 20
# Mixes of widths for one instance; beyond, only those that were seen and their neighbours.
_MIXES = 16


@dataclass(frozen=True)
class PlannedVariant:
    """`types` has an entry per parameter that is passed or could be: "p16", "i32:16", "1", ..."""

    types: tuple[str, ...]
    request: Request
    is_general: bool = False


@dataclass
class PlannedInstance:
    """`kinds` has an entry per parameter that is not a constant: "*fp32", "int", "fp32", "none"."""

    constants: dict[str, Any]
    kinds: tuple[tuple[str, str], ...]
    options: dict[str, Any]
    variants: dict[tuple[str, ...], PlannedVariant] = field(default_factory=dict)
    seen: list[RecordedVariant] = field(default_factory=list)


@dataclass
class PlannedKernel:
    """A recorded kernel, the jitted function that it is, and its instances."""

    recorded: RecordedKernel
    fn: Any
    instances: list[PlannedInstance] = field(default_factory=list)


@dataclass
class ServedPlan:
    """All that is compiled, and what is said about it."""

    kernels: list[PlannedKernel]
    notes: list[str]

    def variants(self) -> Iterator[PlannedVariant]:
        for kernel in self.kernels:
            for instance in kernel.instances:
                yield from instance.variants.values()


def plan(recording: Recording, widenings: Sequence[Widening] = ()) -> ServedPlan:
    """What to compile for a recording."""
    made = ServedPlan([], [])
    failed: list[OpforgeError] = []
    broken: dict[str, OpforgeError] = {}
    for recorded in recording.kernels:
        try:
            fn = _find_once(recorded, broken)
        except NotFound as error:
            # The others are worth building: what lacks is Triton's, or an error in strict mode.
            failed.append(error)
            made.notes.append(f"{recorded.name} is not built, and so not served: {error}")
            continue
        _refuse_others_names(recorded, fn)
        kernel = PlannedKernel(recorded, fn, _instances(recorded, fn, widenings, made.notes))
        if not widenings and not recorded.text:
            made.notes += [w for w in (_proposal(kernel),) if w]
        made.kernels.append(kernel)
    for widening in widenings:
        widening.refuse_unused(recording)
    if failed and not made.kernels:
        raise failed[0]
    return made


def _find_once(recorded: RecordedKernel, broken: dict[str, OpforgeError]) -> Any:
    """As `find`, but a module that cannot be imported is not run again for its other kernels."""
    if recorded.module in broken and not recorded.text:
        raise broken[recorded.module]
    try:
        return find(recorded)
    except NotFound as error:
        if error.__cause__ is not None:
            broken[recorded.module] = error
        raise


def _instances(
    recorded: RecordedKernel, fn: Any, widenings: Sequence[Widening], notes: list[str]
) -> list[PlannedInstance]:
    instances: dict[str, PlannedInstance] = {}
    for variant in recorded.variants:
        odd = (
            _unserved(recorded, variant)
            or _undeclared(fn, variant)
            or _lost_constant(recorded, variant)
        )
        if odd:
            notes.append(f"{recorded.name} is not served where {odd}")
            continue
        for tuned in _tuned(recorded, variant):
            for widened in _widened(recorded, tuned, widenings):
                _add(instances, recorded, fn, widened)
    for instance in instances.values():
        _generalize(instance, recorded, fn)
    return [*instances.values()]


def _refuse_others_names(recorded: RecordedKernel, fn: Any) -> None:
    """Raise if a recording, which anybody may edit, does not describe the kernel's parameters."""
    names = {param.name for param in fn.params}
    for variant in recorded.variants:
        described = {name for name, _ in (*variant.types, *variant.constants)}
        assumed = {*variant.ones, *variant.divisible}
        described = {root(name) for name in described}
        odd = sorted(described ^ names) or sorted(assumed - {name for name, _ in variant.types})
        if odd:
            raise NotServable(
                f"the recording does not fit {recorded.name}", found=f"its variant has {odd[0]!r}"
                if odd[0] not in names else f"nothing about {odd[0]!r}",
                location=recorded.location, fix="record again with `opforge record`",
            )  # fmt: skip


def _unserved(kernel: RecordedKernel, variant: RecordedVariant) -> str:
    known = (*INTEGERS, *OTHERS, *(PRINTED if kernel.text else ()))
    for name, kind in variant.types:
        if not kind.startswith("*") and kind not in known and not _compat.tma.rank(kind):
            return f"{name} is {'passed' if kernel.text else 'annotated'} as {kind}"
    described = sum(_compat.tma.rank(kind) > 0 for _, kind in variant.types)
    if described > MOST_DESCRIPTORS:
        return f"it takes {described} tensor descriptors; the most are {MOST_DESCRIPTORS}"
    return ""


def _undeclared(fn: Any, variant: RecordedVariant) -> str:
    """Which constant a served launch could not tell from None: nothing says that it is one."""
    declared = {param.name for param in fn.params if param.is_constexpr}
    for name, value in variant.constants:
        if name not in declared and value is not None:
            found = undeclared(name)
            return f"{name} is {show(value)}: {found.reason}; {found.fix}"
    return ""


def _lost_constant(recorded: RecordedKernel, variant: RecordedVariant) -> str:
    """Which constant of a variant is not there any more."""
    for name, value in variant.constants:
        try:
            _decoded(recorded, name, value)
        except NotFound as error:  # noqa: PERF203  # few constants
            return f"{name} is {show(value)}: {error}"
    return ""


def _tuned(kernel: RecordedKernel, variant: RecordedVariant) -> Iterator[RecordedVariant]:
    """A variant, and the same with each configuration that the kernel's autotuner chose.

    Sizes that were not recorded take the nearest choice, with constants of other sizes.
    """
    yield variant
    constants, options = dict(variant.constants), dict(variant.options)
    for choice in kernel.choices:
        config = dict(choice.config)
        types = _with_blocks(kernel, variant, config)
        if types and config.keys() <= constants.keys() | options.keys():
            yield dataclasses.replace(
                variant,
                types=types,
                constants=tuple((name, config.get(name, v)) for name, v in constants.items()),
                options=tuple((name, config.get(name, v)) for name, v in options.items()),
            )


def _with_blocks(
    kernel: RecordedKernel, variant: RecordedVariant, config: Mapping[str, Any]
) -> tuple[tuple[str, str], ...]:
    """The types of a variant under another configuration, whose hook may set other blocks.

    They are those that were recorded with it; empty if there are none.
    """
    if not any(_compat.tma.rank(kind) for _, kind in variant.types):
        return variant.types
    for other in kernel.variants:
        if config.items() <= {**dict(other.options), **dict(other.constants)}.items():
            blocks = {name: kind for name, kind in other.types if _compat.tma.rank(kind)}
            return tuple((name, blocks.get(name, kind)) for name, kind in variant.types)
    return ()


def _widened(
    kernel: RecordedKernel, variant: RecordedVariant, widenings: Sequence[Widening]
) -> Iterator[RecordedVariant]:
    """A variant, and the same with other values of a constant."""
    yield variant
    for widening in widenings:
        given = dict(variant.constants)
        if widening.names(kernel) and widening.constant in given:
            for value in widening.values:
                changed = {widening.constant: value}
                yield dataclasses.replace(
                    variant,
                    constants=tuple({**given, **changed}.items()),
                    # A parameter may be an option, too.
                    options=tuple((name, changed.get(name, v)) for name, v in variant.options),
                )


def _add(
    instances: dict[str, PlannedInstance],
    recorded: RecordedKernel,
    fn: Any,
    variant: RecordedVariant,
) -> None:
    kinds = tuple((name, kind_of(kind)) for name, kind in variant.types)
    if not recorded.text:
        told = _compat.served.told_options(fn, dict(variant.options))
        variant = dataclasses.replace(variant, options=tuple(sorted(told.items())))
    key = repr((variant.constants, kinds, variant.options))
    if key not in instances:
        instances[key] = PlannedInstance(dict(variant.constants), kinds, dict(variant.options))
    instances[key].seen.append(variant)
    _take(instances[key], recorded, fn, variant)


def _generalize(instance: PlannedInstance, recorded: RecordedKernel, fn: Any) -> None:
    """Add variants that assume nothing but widths."""
    first, seen = instance.seen[0], [dict(variant.types) for variant in instance.seen]
    free = {param.name for param in fn.params if not param.annotation_type}
    numbers = [name for name, kind in first.types if kind in INTEGERS and root(name) in free]
    # Inductor decides the width of integers, and prints other code for another.
    mixes = [] if recorded.text else _mixes([tuple(types[n] for n in numbers) for types in seen])
    for types in [{**seen[0], **dict(zip(numbers, mix, strict=True))} for mix in mixes] or seen:
        general = dataclasses.replace(first, types=(*types.items(),), ones=(), divisible=())
        _take(instance, recorded, fn, general, is_general=True)


def _mixes(seen: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Widths of integers that a launch may have, going by those that were seen.

    [("i64", "i32")]  ->  [("i32", "i32"), ("i64", "i32")]: the second was never wide. An integer
    that is alone may become so.
    """
    count = len(seen[0])
    each = [{"i32", *column} for column in zip(*seen, strict=True)]
    each = [widths | {"i64"} if len(widths) > 1 or count == 1 else widths for widths in each]
    if math.prod(map(len, each)) <= _MIXES:
        return [*itertools.product(*map(sorted, each))]
    narrow = ("i32",) * count
    one_wide = [(*narrow[:i], "i64", *narrow[i + 1 :]) for i in range(count) if len(each[i]) > 1]
    return [*dict.fromkeys([narrow, *seen, *one_wide])]


def _take(
    instance: PlannedInstance,
    recorded: RecordedKernel,
    fn: Any,
    variant: RecordedVariant,
    *,
    is_general: bool = False,
) -> None:
    types = tuple(_assumed(name, kind, variant) for name, kind in variant.types)
    if is_general or types not in instance.variants:
        request = _request(recorded, fn, variant)
        instance.variants[types] = PlannedVariant(types, request, is_general)


def _assumed(name: str, kind: str, variant: RecordedVariant) -> str:
    if name in variant.ones:
        return "1"
    divisible = name in variant.divisible
    if _compat.tma.rank(kind):
        return DESCRIPTOR
    if kind.startswith("*"):
        return "p16" if divisible else "p"
    return f"{kind}:16" if divisible else kind


def most_specialized_first(variants: Mapping[Any, PlannedVariant]) -> list[PlannedVariant]:
    """The order in which a launch tries them: what assumes most, and 32 bits before 64."""

    def rank(variant: PlannedVariant) -> tuple[int, int, tuple[str, ...]]:
        assumed = sum(t == "1" or t.endswith("16") for t in variant.types)
        wide = sum(t.startswith(("i64", "u64")) for t in variant.types)
        return wide, -assumed, variant.types

    return sorted(variants.values(), key=rank)


def _request(recorded: RecordedKernel, fn: Any, variant: RecordedVariant) -> Request:
    types, constants = dict(variant.types), dict(variant.constants)
    values = {name: _decoded(recorded, name, value) for name, value in constants.items()}
    values |= dict.fromkeys(variant.ones, 1)
    order = in_order(fn, {**types, **values})
    return Request(
        fn=fn,
        # It begins the name of a file, and Inductor's names list all that is fused.
        name=_compat.kernels.kernel_name(fn)[:_LONGEST],
        location=recorded.location,
        qualified_name=f"{recorded.module}.{recorded.name}",
        source=recorded.source,
        signature=tuple((n, "constexpr" if n in values else types[n]) for n in order),
        constants=tuple((n, values[n]) for n in order if n in values),
        divisible=tuple(i for i, n in enumerate(order) if n in variant.divisible),
        options=tuple(
            (name, _decoded(recorded, name, value))
            for name, value in variant.options
            if value is not None
        ),
    )


def root(name: str) -> str:
    """The parameter of an argument, which may be an item of a tuple, `xs.0`."""
    return name.partition(".")[0]


def in_order(fn: Any, names: Iterable[str]) -> list[str]:
    """Arguments in the order in which a launch passes them."""
    places = {param.name: at for at, param in enumerate(fn.params)}

    def place(name: str) -> list[int]:
        parameter, *items = name.split(".")
        return [places[parameter], *map(int, items)]

    return sorted(names, key=place)


def _decoded(recorded: RecordedKernel, name: str, value: Any) -> Any:
    try:
        with importable_from(recorded.path):
            return decode(value, find_constant)
    except ConstantChanged as error:
        raise NotFound(
            f"a constant of {recorded.name} is not the one that was recorded",
            found=f"{name} is {error}",
            location=recorded.location,
            fix="record again with `opforge record`",
        ) from None
    except CannotRecord as error:
        raise NotServable(
            f"the recording of {recorded.name} cannot be read",
            found=f"{name} is {error}",
            fix="record again with `opforge record`",
        ) from None


def _proposal(kernel: PlannedKernel) -> str:
    """For constants that follow sizes: the line that covers more of them."""
    seen: dict[str, set[int]] = {}
    for instance in kernel.instances:
        for name, value in instance.constants.items():
            if type(value) is int and 0 < value <= _LARGEST and value & (value - 1) == 0:
                seen.setdefault(name, set()).add(value)
    # An autotuner passes nothing but its own configurations.
    tuned = {name for choice in kernel.recorded.choices for name, _ in choice.config}
    names = [
        n for n, values in seen.items() if len(values) > 1 and max(values) > 2 and n not in tuned
    ]
    if not names:
        return ""
    name = kernel.recorded.name
    lines = [
        f'--widen "{name}:{n}={min(seen[n])}..{min(4 * max(seen[n]), _LARGEST)}"' for n in names
    ]
    shown = "; ".join(f"{n} was {', '.join(map(str, sorted(seen[n])))}" for n in names)
    return f"{name}: {shown}; {' '.join(lines)} covers more values"
