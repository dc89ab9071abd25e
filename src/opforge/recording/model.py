"""A record of launches, and its JSON.

What a kernel that is made inside a function has from there is told as in `constants.py`, and:

tl.constexpr(64)              {"constexpr": 64}
triton.language               {"module": "triton.language"}
a function, a class           {"named": "package.module:name"}
a kernel that is made, too    {"made": "package.module:f.<locals>.k", "source": "9f86d08...", ...}
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import _compat
from ..errors import BadOption, NotServable
from ..native.ir import kernels
from ..native.ir.kernels import Choice
from ..notebook import counted
from ..records import BadField, Codecs
from .constants import CannotRecord, decode, encode, home_of, name_of

FORMAT = 3
_FIX = "record again with `opforge record -o launches.json -- python ...`"
# Examples of sizes that led to a variant.
MOST_SIZES = 8


@dataclass(frozen=True)
class RecordedVariant:
    """A kernel with the types, constants and options of launches that one image serves.

    `types` has the parameters that are passed, in order; `ones` those of them that were 1, which
    Triton compiles in, and `divisible` those that were multiples of 16. `constants` are encoded as
    in `constants.py`. `sizes` are examples of the integers that led to it.
    """

    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]
    arch: str
    ones: tuple[str, ...] = ()
    divisible: tuple[str, ...] = ()
    launches: int = field(default=1, compare=False)
    first: str = field(default="", compare=False)
    sizes: tuple[Mapping[str, int], ...] = field(default=(), compare=False)

    @property
    def key(self) -> str:
        """The same for variants that need the same image."""
        parts = (self.types, self.constants, self.options, self.arch, self.ones, self.divisible)
        return json.dumps(parts, sort_keys=True)

    def joined(self, other: RecordedVariant) -> RecordedVariant:
        sizes = [*self.sizes, *(s for s in other.sizes if s not in self.sizes)]
        return replace(
            self,
            launches=self.launches + other.launches,
            first=self.first or other.first,
            sizes=tuple(sizes[:MOST_SIZES]),
        )


@dataclass(frozen=True)
class Inside:
    """What a kernel that is made inside a function has from there.

    `closure` has the variables of the function that it uses, `defaults` and `annotations` are those
    of its parameters, and `unspecialized` and the rest what its decorator was given.
    """

    closure: tuple[tuple[str, Any], ...]
    defaults: tuple[tuple[str, Any], ...]
    annotations: tuple[tuple[str, str], ...]
    unspecialized: tuple[str, ...]
    unaligned: tuple[str, ...]
    noinline: bool
    debug: bool | None
    gluon: bool


@dataclass(frozen=True)
class RecordedKernel:
    """A jitted function; `module` is the file if it is in a script.

    `source` is a hash of it and of everything that its code depends on. A kernel of a compiled
    graph has the `text` that Inductor prints, and a hash of that. `settings` are the variables that
    change what Triton compiles, as far as they were set: `(("TRITON_F32_DEFAULT", "ieee"),)`.
    `path` has the folders from which the program imported, beside those of its Python. A module
    that a package has printed has its text in `module_text`: its file is in a cache.
    """

    module: str
    name: str
    source: str
    location: str
    variants: tuple[RecordedVariant, ...] = ()
    choices: tuple[Choice, ...] = ()
    text: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = field(default=(), compare=False)
    inside: Inside | None = field(default=None, compare=False)
    module_text: str = field(default="", compare=False)

    @property
    def launches(self) -> int:
        return sum(variant.launches for variant in self.variants)

    @property
    def identity(self) -> tuple[object, ...]:
        return self.module, self.name, self.source, self.settings

    @property
    def key(self) -> tuple[object, ...]:
        """The same for reports of the same variants, of which the last has the highest counts."""
        return *self.identity, *(variant.key for variant in self.variants), repr(self.choices)

    def joined(self, other: RecordedKernel) -> RecordedKernel:
        variants: dict[str, RecordedVariant] = {}
        for variant in (*self.variants, *other.variants):
            known = variants.get(variant.key)
            variants[variant.key] = variant if known is None else known.joined(variant)
        choices = {repr((c.key, c.dtypes, c.arch)): c for c in (*self.choices, *other.choices)}
        return replace(self, variants=(*variants.values(),), choices=(*choices.values(),))


@dataclass(frozen=True)
class Missed:
    """Launches of a kernel that were not recorded, or not fully, and why."""

    kernel: str
    location: str
    reason: str
    first: str = ""


@dataclass(frozen=True)
class Recording:
    """What one or more processes launched."""

    kernels: tuple[RecordedKernel, ...] = ()
    missed: tuple[Missed, ...] = ()
    triton: tuple[str, ...] = ()
    processes: int = 0

    @classmethod
    def of_process(cls, parts: Iterable[Recording]) -> Recording:
        """What a process found in parts, of which later ones of a subject have higher counts."""
        latest = {part.subject: part for part in parts}
        return functools.reduce(cls.joined, latest.values(), cls(processes=1))

    @property
    def subject(self) -> tuple[object, ...]:
        """What a part is about: kernels, misses, or a version."""
        return *(kernel.key for kernel in self.kernels), *self.missed, *self.triton

    @property
    def variants(self) -> int:
        return sum(len(kernel.variants) for kernel in self.kernels)

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels)

    def joined(self, other: Recording) -> Recording:
        kernels: dict[tuple[object, ...], RecordedKernel] = {}
        for kernel in (*self.kernels, *other.kernels):
            known = kernels.get(kernel.identity)
            kernels[kernel.identity] = kernel if known is None else known.joined(kernel)
        missed = {(m.kernel, m.location, m.reason): m for m in (*self.missed, *other.missed)}
        return Recording(
            (*kernels.values(),),
            (*missed.values(),),
            (*dict.fromkeys((*self.triton, *other.triton)),),
            self.processes + other.processes,
        )

    def __str__(self) -> str:
        kernels, variants = counted(len(self.kernels), "kernel"), counted(self.variants, "variant")
        launches, processes = counted(self.launches, "launch"), counted(self.processes, "process")
        return f"{kernels}, {variants}, {launches} of {processes}"

    __repr__ = __str__

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **CODECS.of(Recording).write(self)}, indent=1) + "\n"

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json(), encoding="utf-8")

    def save_unless_empty(self, path: str | Path) -> str:
        """Write the file, and return "" or why not: a run may fail before it launches anything."""
        if not self.kernels and Path(path).exists():
            return f"{path} is left as it was"
        if not self.kernels and not self.missed:
            return f"{path} is not written"
        self.save(path)
        return ""


CODECS = Codecs(
    {
        RecordedVariant: "types ones divisible constants options arch launches first sizes",
        Inside: "closure defaults annotations unspecialized unaligned noinline debug gluon",
        RecordedKernel: "module name source location variants choices "
        "text? settings? path? inside? module_text?",
        Missed: "kernel location reason first",
        Recording: "triton processes kernels missed",
    },
    {Choice: kernels.CODECS.of(Choice)},
)


def refuse_unwritable(path: str | Path) -> None:
    """Raise before a program runs whose recording could not be written."""
    if Path(path).suffix != ".json":
        raise BadOption(
            f"a recording must be named *.json, got {str(path)!r}",
            fix="end it in .json, by which `opforge build` and `opforge list` know a recording",
        )
    refuse_place(path)


def refuse_place(path: str | Path) -> None:
    """Raise before a program runs whose results could not be written to a file."""
    place = Path(path)
    existed = place.exists()
    # By writing: permissions do not tell of file systems that take no files.
    try:
        with place.open("a"):
            pass
    except OSError as error:
        raise BadOption(f"{path} cannot be written: {error.strerror}") from None
    if not existed:
        place.unlink()


def read(path: str | Path) -> Recording:
    """A recording from its file; raises `NotServable`."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise BadField(f"is {found!r}, but this opforge reads {FORMAT}", "format")
        recording: Recording = CODECS.of(Recording).read(content)
    except (OSError, ValueError, RecursionError) as error:
        raise NotServable(
            f"{path} cannot be read as a recording", found=str(error), fix=_FIX
        ) from None
    return recording


def describe(fn: Any) -> Inside | None:
    """What a build needs to make a jitted function again; None if it is not made in a function.

    Raises `CannotRecord`.
    """
    function = _compat.compiled.function_of(fn)
    if "<locals>" not in function.__qualname__:
        return None
    params = fn.params
    return Inside(
        closure=tuple((name, _encoded(name, value)) for name, value in _closure(function)),
        defaults=tuple((p.name, _encoded(p.name, p.default)) for p in params if p.has_default),
        annotations=tuple((p.name, p.annotation) for p in params if p.annotation),
        unspecialized=tuple(p.name for p in params if p.do_not_specialize),
        unaligned=tuple(p.name for p in params if p.do_not_specialize_on_alignment),
        noinline=bool(fn.noinline),
        debug=fn.debug,
        gluon=_compat.kernels.is_gluon(fn),
    )


def _closure(function: Any) -> list[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    try:
        return [(name, cell.cell_contents) for name, cell in cells]
    except ValueError:
        raise CannotRecord("a variable of the function that makes it is not set") from None


def _encoded(name: str, value: Any) -> Any:
    try:
        return _encode(value)
    except CannotRecord as error:
        raise CannotRecord(f"it is made inside a function, and {name} there is {error}") from None


def _encode(value: Any) -> Any:
    if isinstance(value, ModuleType):
        return {"module": value.__name__}
    if isinstance(value, sys.modules["triton.language"].constexpr):
        return {"constexpr": _encode(value.value)}
    name = _name(value)
    if name:
        return {"named": name}
    inside = describe(value) if _compat.compiled.is_jitted(value) else None
    if inside is None:
        return encode(value)
    return {
        "made": name_of(_compat.compiled.function_of(value)),
        "source": _compat.kernel_hash.digest(value),
        "location": _compat.kernels.kernel_location(value),
        "inside": CODECS.of(Inside).write(inside),
    }


def _name(value: Any) -> str:
    """`package.module:name` of what stands there; empty of anything else."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    place: Any = sys.modules.get(str(module))
    if place is None or not isinstance(path, str):
        return ""
    found = functools.reduce(lambda owner, name: getattr(owner, name, None), path.split("."), place)
    home = home_of(str(module), getattr(place, "__file__", None) or "")
    return f"{home}:{path}" if found is value else ""


def restore(
    content: Any,
    find: Callable[[str, str | None], Any],
    made: Callable[[str, str, str, Inside], Any],
) -> Any:
    """The value again; raises `CannotRecord`, and what `find` and `made` raise.

    `made(name, source, location, inside)` makes a kernel again.
    """
    match content:
        case {"module": str(name)}:
            return importlib.import_module(name)
        case {"constexpr": value}:
            return sys.modules["triton.language"].constexpr(restore(value, find, made))
        case {"named": str(name)}:
            return find(name, None)
        case {"made": str(name), "source": str(source), "location": str(location), "inside": held}:
            return made(name, source, location, CODECS.of(Inside).read(held))
    return decode(content, find)
