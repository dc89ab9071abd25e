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
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _compat
from ..arch import HOPPER
from ..errors import BadOption, NotFound, OpforgeError
from ..native.ir.kernel_request import Request, want
from ..native.ir.kernels import ServedFunction, ServedInstance, ServedVariant
from ..native.ir.program import Archs, Plan
from ..recording.constants import CannotRecord, decode, show
from ..recording.model import RecordedKernel, RecordedVariant, Recording
from .find import find, find_constant, importable_from
from .manifest import DESCRIPTOR, INTEGERS, OTHERS, PRINTED, kind_of
from .served_folder import undeclared

_LONGEST = 128
# Up to the elements of a block in Triton.
_POWERS = tuple(1 << power for power in range(21))
# 1 and 2 are often flags.
_FLAG = 2
_WIDENING = re.compile(r"(?P<kernel>[\w.:]+):(?P<constant>\w+)=(?P<values>[\d.,]+)")
# Mixes of widths for one instance; beyond, only those that were seen and their neighbours.
_MIXES = 16


@dataclass
class PlannedInstance:
    """Kernels by what they assume; `seen` are the variants that were recorded.

    `names` and `kinds` have an entry for each non-constexpr parameter: "*fp32", "int".
    """

    constants: dict[str, Any]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    options: dict[str, Any]
    kernels: dict[tuple[str, ...], str] = field(default_factory=dict)
    seen: list[RecordedVariant] = field(default_factory=list)

    def written(self) -> ServedInstance:
        return ServedInstance(
            tuple(self.constants.items()),
            self.kinds,
            tuple(self.options.items()),
            tuple(ServedVariant(t, self.kernels[t]) for t in most_specialized_first(self.kernels)),
            self.names if any("." in name for name in self.names) else (),
        )


@dataclass
class PlannedKernel:
    """A recorded kernel, the jitted function that it is, and its instances in a plan."""

    recorded: RecordedKernel
    fn: Any
    plan: Plan
    instances: dict[str, PlannedInstance] = field(default_factory=dict)

    def written(self) -> ServedFunction:
        recorded = self.recorded
        return ServedFunction(
            recorded.module,
            recorded.name,
            recorded.source,
            recorded.location,
            tuple(instance.written() for instance in self.instances.values()),
            recorded.choices,
        )

    def add(self, variant: RecordedVariant) -> None:
        if not self.recorded.text:
            told = _compat.served.told_options(self.fn, dict(variant.options))
            variant = dataclasses.replace(variant, options=tuple(sorted(told.items())))
        types, constants = dict(variant.types), dict(variant.constants)
        free = {param.name for param in self.fn.params if not param.is_constexpr}
        names = tuple(n for n in in_order(self.fn, {**types, **constants}) if root(n) in free)
        instance = PlannedInstance(
            # A parameter that is None is a constant for Triton, but not one by its annotation.
            {name: value for name, value in constants.items() if name not in names},
            names,
            tuple(kind_of(types.get(name, "none")) for name in names),
            dict(variant.options),
        )
        # By text: 1, True and 1.0 are different constants.
        instance = self.instances.setdefault(repr(instance), instance)
        instance.seen.append(variant)
        self._take(instance, variant)

    def generalize(self, instance: PlannedInstance) -> None:
        """Add variants that assume nothing but widths."""
        first, seen = instance.seen[0], [dict(variant.types) for variant in instance.seen]
        free = {param.name for param in self.fn.params if not param.annotation_type}
        numbers = [name for name, kind in first.types if kind in INTEGERS and root(name) in free]
        general = [
            seen[0] | dict(zip(numbers, mix, strict=True))
            for mix in _mixes([tuple(types[n] for n in numbers) for types in seen])
        ]
        # Inductor decides the width of integers, and prints other code for another.
        for types in seen if self.recorded.text else general:
            plain = dataclasses.replace(first, types=(*types.items(),), ones=(), divisible=())
            self._take(instance, plain, is_general=True)

    def _take(
        self, instance: PlannedInstance, variant: RecordedVariant, *, is_general: bool = False
    ) -> None:
        kinds = dict(variant.types)
        types = tuple(_assumed(n, kinds.get(n, "none"), variant) for n in instance.names)
        if is_general or types not in instance.kernels:
            request = self._request(variant)
            want(self.plan.requests, request, self.plan.archs)
            instance.kernels[types] = request.key
            if is_general:
                self.plan.spare.add(request.key)

    def _request(self, variant: RecordedVariant) -> Request:
        recorded, types = self.recorded, dict(variant.types)
        values = {name: _decoded(recorded, name, value) for name, value in variant.constants}
        values |= dict.fromkeys(variant.ones, 1)
        options = [(n, _decoded(recorded, n, v)) for n, v in variant.options if v is not None]
        order = in_order(self.fn, {**types, **values})
        return Request(
            fn=self.fn,
            # It begins the name of a file, and Inductor's names list all that is fused.
            name=_compat.kernels.kernel_name(self.fn)[:_LONGEST],
            location=recorded.location,
            qualified_name=f"{recorded.module}:{recorded.name}",
            source=recorded.source,
            signature=tuple((n, "constexpr" if n in values else types[n]) for n in order),
            constants=tuple((n, values[n]) for n in order if n in values),
            divisible=tuple(i for i, n in enumerate(order) if n in variant.divisible),
            options=tuple(options),
        )


def plan(
    recording: Recording, widenings: Sequence[Widening] = (), archs: Archs = (HOPPER,)
) -> Plan:
    """What to compile for a recording."""
    planned = Plan("served", [], archs, settings=_compat.settings.current())
    failed: list[OpforgeError] = []
    broken: dict[str, OpforgeError] = {}
    for recorded in recording.kernels:
        try:
            fn = _find_once(recorded, broken)
        except NotFound as error:
            # The others are worth building: what lacks is Triton's, or an error in strict mode.
            failed.append(error)
            planned.notes.append(f"{recorded.name} is not built, and so not served: {error}")
            continue
        kernel = PlannedKernel(recorded, fn, planned)
        planned.notes += _fill(kernel, widenings)
        planned.functions.append(kernel.written())
        if not widenings and not recorded.text:
            planned.notes += _proposal(kernel)
    for widening in widenings:
        widening.refuse_unused(recording)
    if failed and not planned.functions:
        raise failed[0]
    return planned


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


def _fill(kernel: PlannedKernel, widenings: Sequence[Widening]) -> Iterator[str]:
    """Add the instances of a kernel; why some launches of it are not served."""
    for variant in kernel.recorded.variants:
        odd = _unserved(kernel.recorded, kernel.fn, variant)
        if odd:
            yield f"{kernel.recorded.name} is not served where {odd}"
            continue
        for tuned in _tuned(kernel.recorded, variant):
            for widened in _widened(kernel.recorded, tuned, widenings):
                kernel.add(widened)
    for instance in kernel.instances.values():
        kernel.generalize(instance)


def _unserved(recorded: RecordedKernel, fn: Any, variant: RecordedVariant) -> str:
    """Where launches of a variant cannot be served; empty if they can."""
    known = (*INTEGERS, *OTHERS, *(PRINTED if recorded.text else ()))
    for name, kind in variant.types:
        if not kind.startswith("*") and kind not in known and not _compat.tma.rank(kind):
            return f"{name} is {'passed' if recorded.text else 'annotated'} as {kind}"
    declared = {param.name for param in fn.params if param.is_constexpr}
    for name, value in variant.constants:
        # Nothing would tell such a launch from one with None.
        if name not in declared and value is not None:
            gap = undeclared(name)
            return f"{name} is {show(value)}: {gap.reason}; {gap.fix}"
        try:
            _decoded(recorded, name, value)
        except NotFound as error:
            return f"{name} is {show(value)}: {error}"
    return ""


def _tuned(kernel: RecordedKernel, variant: RecordedVariant) -> Iterator[RecordedVariant]:
    """A variant, and the same with each configuration that the kernel's autotuner chose.

    Sizes that were not recorded take the nearest choice, with constants of other sizes.
    """
    yield variant
    names = {name for name, _ in (*variant.constants, *variant.options)}
    for choice in kernel.choices:
        config = dict(choice.config)
        types = _with_blocks(kernel, variant, config)
        if types and config.keys() <= names:
            yield dataclasses.replace(_changed(variant, config), types=types)


def _changed(variant: RecordedVariant, values: Mapping[str, Any]) -> RecordedVariant:
    """A variant with other values; a parameter may be an option, too."""
    return dataclasses.replace(
        variant,
        constants=tuple((name, values.get(name, v)) for name, v in variant.constants),
        options=tuple((name, values.get(name, v)) for name, v in variant.options),
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
        if widening.names(kernel) and widening.constant in dict(variant.constants):
            for value in widening.values:
                yield _changed(variant, {widening.constant: value})


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


def _assumed(name: str, kind: str, variant: RecordedVariant) -> str:
    if name in variant.ones:
        return "1"
    divisible = name in variant.divisible
    if _compat.tma.rank(kind):
        return DESCRIPTOR
    if kind.startswith("*"):
        return "p16" if divisible else "p"
    return f"{kind}:16" if divisible else kind


def most_specialized_first(variants: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The order in which a launch tries them: what assumes most, and 32 bits before 64."""

    def rank(types: tuple[str, ...]) -> tuple[int, int, tuple[str, ...]]:
        assumed = sum(t == "1" or t.endswith("16") for t in types)
        wide = sum(t.startswith(("i64", "u64")) for t in types)
        return wide, -assumed, types

    return sorted(variants, key=rank)


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
    except CannotRecord as error:
        raise NotFound(
            f"a constant of {recorded.name} is not the one that was recorded",
            found=f"{name} is {error}",
            location=recorded.location,
            fix="record again with `opforge record`",
        ) from None


def _proposal(kernel: PlannedKernel) -> list[str]:
    """For constants that follow sizes: the line that covers more of them."""
    # An autotuner passes nothing but its own configurations.
    tuned = {name for choice in kernel.recorded.choices for name, _ in choice.config}
    seen: dict[str, set[int]] = {}
    for instance in kernel.instances.values():
        for name, value in instance.constants.items():
            if type(value) is int and value in _POWERS and name not in tuned:
                seen.setdefault(name, set()).add(value)
    follow = {name: sorted(values) for name, values in seen.items() if len(values) > 1}
    follow = {name: values for name, values in follow.items() if values[-1] > _FLAG}
    if not follow:
        return []
    name = kernel.recorded.name
    shown = "; ".join(f"{n} was {', '.join(map(str, values))}" for n, values in follow.items())
    lines = [
        f'--widen "{name}:{n}={values[0]}..{min(4 * values[-1], _POWERS[-1])}"'
        for n, values in follow.items()
    ]
    return [f"{name}: {shown}; {' '.join(lines)} covers more values"]


@dataclass(frozen=True)
class Widening:
    """`--widen "softmax_kernel:BLOCK=1024..32768"`: more values of a kernel's constant."""

    text: str
    kernel: str
    constant: str
    values: tuple[int, ...]

    def names(self, kernel: RecordedKernel) -> bool:
        # As `opforge list` prints it, too.
        return self.kernel.replace(":", ".") in {kernel.name, f"{kernel.module}.{kernel.name}"}

    def refuse_unused(self, recording: Recording) -> None:
        """Raise if it names nothing that was recorded."""
        constants = [
            (kernel, name)
            for kernel in recording.kernels
            for variant in kernel.variants
            for name, _ in variant.constants
        ]
        if not any(self.names(kernel) and name == self.constant for kernel, name in constants):
            names = sorted({f"{kernel.name}:{name}" for kernel, name in constants})
            raise BadOption(
                f"--widen {self.text!r} names no constant of a recorded kernel",
                found=", ".join(names) or "no constants",
            )


def parse_widening(text: str) -> Widening:
    """`"k:BLOCK=64..512"` -> 64, 128, 256, 512; `"k:BLOCK=48,96"` -> 48, 96."""
    match = _WIDENING.fullmatch(text)
    values = _values(match["values"]) if match else ()
    if match is None or not values:
        raise BadOption(
            f"--widen {text!r} cannot be read",
            fix='write --widen "softmax_kernel:BLOCK=1024..32768" for powers of two, or "k:N=3,5"',
        )
    return Widening(text, match["kernel"], match["constant"], values)


def _values(text: str) -> tuple[int, ...]:
    low, dots, high = text.partition("..")
    try:
        if not dots:
            return tuple(int(word) for word in text.split(","))
        first, last = int(low), int(high)
    except ValueError:
        return ()
    powers = [1 << power for power in range(63)]
    return tuple(n for n in powers if first <= n <= last)
