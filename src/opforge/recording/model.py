"""A record of launches, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import BadOption, NotServable
from ..notebook import counted
from ..records import BadField, Between, Codecs
from .choice import RecordedChoice

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
    """What a kernel that is made inside a function has from there; `inside.py` says how it is told.

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
    choices: tuple[RecordedChoice, ...] = ()
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


_COUNT = Between(0, 2**63 - 1)
CODECS = Codecs(
    {
        RecordedVariant: "types ones divisible constants options arch launches first sizes",
        RecordedChoice: "key dtypes config arch",
        Inside: "closure defaults annotations unspecialized unaligned noinline debug gluon",
        RecordedKernel: "module name source location variants choices "
        "text? settings? path? inside? module_text?",
        Missed: "kernel location reason first",
        Recording: "triton processes kernels missed",
    },
    limits={RecordedVariant: {"launches": _COUNT}, Recording: {"processes": _COUNT}},
)


def refuse_unwritable(path: str | Path) -> None:
    """Raise before a program runs whose recording could not be written."""
    place = Path(path)
    if place.suffix != ".json":
        raise BadOption(
            f"a recording must be named *.json, got {str(path)!r}",
            fix="end it in .json, by which `opforge build` and `opforge list` know a recording",
        )
    refuse_place(place)


def refuse_place(path: str | Path) -> None:
    """Raise before a program runs whose results could not be written to a file."""
    place = Path(path)
    folder = place.absolute().parent
    if not folder.is_dir():
        raise BadOption(f"{path} cannot be written: {folder} is not a folder")
    if place.is_dir():
        raise BadOption(f"{path} cannot be written: it is a folder")
    # By writing: permissions do not tell of file systems that take no files.
    existed = place.exists()
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
        return parse(Path(path).read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise NotServable(f"{path} is not text", fix=_FIX) from None
    except FileNotFoundError:
        raise NotServable(f"{path} does not exist", fix=_FIX) from None
    except OSError as error:
        raise NotServable(f"{path} cannot be read: {error.strerror}", fix=_FIX) from None


def parse(text: str, where: str) -> Recording:
    """A recording from its text; errors call it `where`."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotServable(f"{where} is not JSON: {error}", fix=_FIX) from None
    if not is_recording(content):
        raise NotServable(f"{where} is not a recording: it has no 'kernels'", fix=_FIX)
    if content.get("format") != FORMAT:
        found = f"format {content.get('format')!r}, but this opforge reads {FORMAT}"
        raise NotServable(f"{where} cannot be read", found=found, fix=_FIX)
    try:
        found_recording: Recording = CODECS.of(Recording).read(content)
    except BadField as error:
        raise NotServable(f"{where} cannot be read", found=str(error), fix=_FIX) from None
    return found_recording


def is_recording(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("kernels"), list)
