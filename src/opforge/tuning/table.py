"""A tuning table: what was measured, as a file that people review and commit.

    {"format": 1, "kernels": [
     {"kernel": "gemm_kernel", "source": "5e1f...", "arch": "sm_90",
      "dtypes": ["float16", "float16", "float16", "float16"],
      "key": ["m", "n", "k", "A_COLUMNS", "B_COLUMNS"],
      "rows": [{"at": [16, 4096, 4096, false, true], "config": {"BLOCK_M": 16, ...}, "us": 12.1,
                "device": "NVIDIA H200"}]}]}

`source` is the hash of the kernel and everything it calls, `dtypes` are those of its tensors in
launch order, and `at` holds the values of the kernel's `key`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..arch import Arch
from ..errors import BadOption
from ..records import BadField, Codecs, JsonCodec, read_at, shown

FORMAT = 1
Value = int | float | str | bool | None


@dataclass(frozen=True)
class TunedKernel:
    """What rows belong to; rows of two kernels are never mixed."""

    name: str
    source: str
    arch: str
    dtypes: tuple[str, ...]
    key: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} for {self.arch}, {', '.join(self.dtypes)}"


@dataclass(frozen=True)
class TuningRow:
    """The best configuration at some values of the key, and its time in microseconds."""

    at: tuple[Value, ...]
    config: tuple[tuple[str, Value], ...]
    us: float = field(compare=False)
    # Where it was measured, for people: GPUs of one architecture share their rows.
    device: str = field(default="", compare=False)


@dataclass
class TuningTable:
    """Rows by kernel and by the values of its key."""

    rows: dict[TunedKernel, dict[tuple[Any, ...], TuningRow]] = field(default_factory=dict)

    def add(self, kernel: TunedKernel, row: TuningRow) -> None:
        self.rows.setdefault(kernel, {})[exact(row.at)] = row

    def find(self, kernel: TunedKernel, at: tuple[Value, ...]) -> TuningRow | None:
        return self.rows.get(kernel, {}).get(exact(at))

    def update(self, other: TuningTable) -> None:
        for kernel, rows in other.rows.items():
            for row in rows.values():
                self.add(kernel, row)

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def to_json(self) -> str:
        """One line per row, in a fixed order, so that a review shows what has changed."""
        kernels = sorted(self.rows, key=lambda k: (k.name, k.arch, k.dtypes))
        body = ",\n".join(map(self._block, kernels))
        return f'{{"format": {FORMAT}, "kernels": [\n{body}\n]}}\n'

    def _block(self, kernel: TunedKernel) -> str:
        rows = sorted(self.rows[kernel].values(), key=lambda r: [order(v) for v in r.at])
        rounded = [replace(row, us=round(row.us, 3)) for row in rows]
        listed = ",\n   ".join(map(json.dumps, _ROWS.write(rounded)))
        return f' {json.dumps(_KERNEL.write(kernel))[:-1]}, "rows": [\n   {listed}]}}'


def exact(at: Iterable[Value]) -> tuple[Any, ...]:
    """Python considers 1, 1.0 and True equal; a key does not."""
    return tuple((type(v).__name__, v) for v in at)


def order(value: Value) -> tuple[str, Any]:
    """Sortable, and True is not 1."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return ("", value)
    return (type(value).__name__, str(value))


def _read_value(content: Any) -> Value:
    if isinstance(content, (list, dict)):
        raise BadField(f"cannot be read: {shown(content)} is not a number, a string or null")
    number = isinstance(content, (int, float))
    if number and not (isinstance(content, float) or -(2**63) <= content < 2**63):
        raise BadField("cannot be read: it is a number of more than 64 bits")
    value: Value = content
    return value


_CODECS = Codecs(
    {TunedKernel: "kernel=name source arch dtypes key", TuningRow: "at config us device?"},
    {Value: JsonCodec(lambda value: value, _read_value)},
)
_KERNEL, _ROWS = _CODECS.of(TunedKernel), _CODECS.of(tuple[TuningRow, ...])


def parse(text: str, where: str) -> TuningTable:
    """A table from its text; errors call it `where`."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise BadOption(f"{where} is not JSON: {error}", fix=_FIX) from None
    except RecursionError:
        raise BadOption(
            f"{where} is not a tuning table: it is nested too deeply", fix=_FIX
        ) from None
    why = ""
    if not isinstance(content, dict) or "kernels" not in content:
        why = "is not a tuning table: it has no 'kernels'"
    elif content.get("format") != FORMAT:
        why = f"has format {shown(content.get('format'))}, but this opforge reads {FORMAT}"
    elif not isinstance(content["kernels"], list):
        why = "is not a tuning table: 'kernels' is not a list"
    if why:
        raise BadOption(f"{where} {why}", fix=_FIX)
    table = TuningTable()
    for number, block in enumerate(content["kernels"]):
        _read_block(block, table, f"{where}: kernels[{number}]")
    return table


def _read_block(block: Any, table: TuningTable, where: str) -> None:
    try:
        kernel = _KERNEL.read(block)
        Arch.named(kernel.arch)
        for number, row in enumerate(read_at("rows", _ROWS, block.get("rows"))):
            _check(row, kernel, table, f"rows[{number}]")
            table.add(kernel, replace(row, config=as_config(dict(row.config))))
    except ValueError as error:
        raise BadOption(f"{where} cannot be read", found=str(error), fix=_FIX) from None


def _check(row: TuningRow, kernel: TunedKernel, table: TuningTable, place: str) -> None:
    # nan and infinity are not JSON, but Python reads them.
    if not 0 <= row.us < float("inf"):
        raise ValueError(f"{place}.us is {row.us}, expected a time in microseconds")
    if len(row.at) != len(kernel.key):
        raise ValueError(f"{place} has {len(row.at)} values, but the key has {len(kernel.key)}")
    if table.find(kernel, row.at) is not None:
        at = shown(list(row.at))
        raise ValueError(f"{place} is at {at}, as an earlier row is: remove one of them")


def as_config(given: Mapping[str, Any]) -> tuple[tuple[str, Value], ...]:
    """Equal for equal configurations, in whatever order they were written."""
    return tuple(sorted(given.items()))


def load(path: str | os.PathLike[str]) -> TuningTable:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"{os.fspath(path)} cannot be read: {error}", fix=_FIX) from None
    return parse(text, os.fspath(path))


_FIX = "make one with `opforge tune ops.py --sizes n=1024,4096 -o tuning.json` on a GPU"


def save(table: TuningTable, path: str | os.PathLike[str]) -> None:
    """Write all or nothing: tuning may be interrupted at any time."""
    place = Path(path)
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(table.to_json(), encoding="utf-8")
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise BadOption(
            f"{place} cannot be written: {error.strerror or error}",
            fix="choose another path with -o",
        ) from None
