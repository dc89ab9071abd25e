"""`opforge record`: runs a program with its launches recorded; and `opforge list` of the result."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import environment
from ..errors import BadOption
from ..programs import run_program
from .constants import show
from .journal import read_folder
from .model import RecordedChoice, RecordedKernel, RecordedVariant, Recording, counted, read

_NOTHING = (
    "nothing was recorded: the program launched no Triton kernel, or started Python with -I, -E or "
    "-S, which ignore PYTHONPATH"
)


def run(command: Sequence[str], output: str) -> tuple[int, str]:
    """Run a program and write its recording; its exit status, and a summary."""
    if not Path(output).absolute().parent.is_dir():
        raise BadOption(
            f"{output} cannot be written", found="no such folder", fix="make the folder first"
        )
    with tempfile.TemporaryDirectory(prefix="opforge-record-") as folder:
        status = run_program(command, {environment.RECORD.name: folder})
        recording, problems = read_folder(Path(folder))
    recording.save(output)
    told = [f"{output}: {recording}" if recording.kernels else _NOTHING]
    told += [f"note: {m.kernel} ({m.first}): {m.reason}" for m in recording.missed]
    return status, "\n".join([*told, *problems])


def merge(files: Sequence[str], output: str) -> str:
    """Join recordings into one file."""
    recording = joined(files)
    recording.save(output)
    return f"{output}: {recording}"


def joined(files: Sequence[str]) -> Recording:
    recording = Recording()
    for file in files:
        recording = recording.joined(read(file))
    return recording


def listing(recording: Recording) -> str:
    """A recording as text: kernels, their variants, and the sizes that led to them."""
    told = [str(recording)]
    for kernel in sorted(recording.kernels, key=lambda k: (k.module, k.name)):
        told.append("")
        told += _kernel_lines(kernel)
    if recording.missed:
        told += ["", "notes"]
        told += [f"  {m.kernel} ({m.location}): {m.reason}" for m in recording.missed]
    return "\n".join(told)


def _kernel_lines(kernel: RecordedKernel) -> Iterator[str]:
    yield f"{kernel.module}:{kernel.name}  ({kernel.location})"
    for variant in kernel.variants:
        yield f"  {_signature(variant)}"
        options = [f"{name}={show(value)}" for name, value in variant.options]
        seen = [f"{variant.arch}, {counted(variant.launches, 'launch', 'es')}", *options]
        if variant.first:
            seen.append(f"first at {variant.first}")
        yield f"    {', '.join(seen)}"
        if any(variant.sizes):
            yield f"    sizes: {'; '.join(map(_sizes, variant.sizes))}"
    for choice in kernel.choices:
        if kernel.text:
            yield f"    {_printed_for(choice)}"
            continue
        config = ", ".join(f"{name}={show(value)}" for name, value in choice.config)
        key = ", ".join(f"{name}={show(value)}" for name, value in choice.key)
        yield f"  tuned for {key} ({', '.join(choice.dtypes)}), {choice.arch}: {config}"


def _printed_for(choice: RecordedChoice) -> str:
    """`x=8192, r0_=64 on sm_90: XBLOCK=1, num_warps=2`, sizes as Inductor's hints have them."""
    sizes = ", ".join(f"{name}={show(value)}" for name, value in choice.key)
    config = ", ".join(f"{name}={show(value)}" for name, value in choice.config)
    return f"{f'for about {sizes} ' if sizes else ''}on {choice.arch}: {config}"


def _signature(variant: RecordedVariant) -> str:
    """`x_ptr: *fp32 (16), n: i32 (1), BLOCK=1024`."""
    shown = []
    for name, kind in variant.types:
        assumed = "1" if name in variant.ones else "16" if name in variant.divisible else ""
        shown.append(f"{name}: {kind}{f' ({assumed})' if assumed else ''}")
    shown += [f"{name}={show(value)}" for name, value in variant.constants]
    return ", ".join(shown)


def _sizes(sizes: object) -> str:
    assert isinstance(sizes, dict)
    return ", ".join(f"{name}={value}" for name, value in sizes.items())
