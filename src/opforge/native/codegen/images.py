"""The kernels' images, as arrays of 64-bit words.

A word takes the compiler a fifth of the time of eight bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ...arch import Arch
from ..ir.program import Image, Kernel, Library, TensorMap
from .names import comment, part, quoted


def kernel_names(library: Library) -> dict[str, str]:
    """By key, the constant for a kernel in the operators' tables."""
    return {k.key: f"KERNEL_{part(k.key)}" for k in library.kernels}


def kernels_header(library: Library) -> str:
    """`src/NAME/kernels.h`."""
    names = [f"    {name}," for name in kernel_names(library).values()] or ["    NO_KERNEL"]
    names[-1] = names[-1].rstrip(",")
    lines = [
        "/* The kernels' positions in images.c. Written by opforge. */",
        "#ifndef OPFORGE_KERNELS_INCLUDED",
        "#define OPFORGE_KERNELS_INCLUDED",
        "",
        "enum {",
        *names,
        "};",
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def images_source(library: Library) -> str:
    """`src/NAME/images.c`."""
    written: dict[bytes, str] = {}
    parts = ['/* The kernels, compiled. Written by opforge. */\n#include "runtime.h"']
    tables = []
    rows = []
    for number, kernel in enumerate(library.kernels):
        images = []
        for image in sorted(kernel.images, key=lambda i: i.arch):
            for data, is_ptx in ((image.cubin, False), (image.ptx.encode(), True)):
                if not data:
                    continue
                if data not in written:
                    written[data] = f"image_{len(written)}"
                    head = f"static const uint64_t {written[data]}[] = {{"
                    parts.append("\n".join([head, *words(data), "};"]))
                images.append(_image(image, written[data], is_ptx=is_ptx))
        if images:
            tables.append(_table(kernel, number, images))
        name = f"images_{number}" if images else "NULL"
        rows.append(f"    {{{quoted(kernel.key)}, {len(images)}, {name}}},")
    rows = rows or ['    {"none", 0, NULL},']
    archs = ", ".join(arch.built_name for arch in sorted(library.archs)) or "no architecture"
    parts += [
        *tables,
        "\n".join(["const Kernel of_kernels[] = {", *rows, "};"]),
        f"const int of_kernel_count = {len(library.kernels)};",
        "\n".join(["const Arch of_arch_list[] = {", *_archs(library), "};"]),
        f"const int of_arch_count = {len(library.archs)};",
        f"const char of_archs[] = {quoted(archs)};",
    ]
    return "\n\n".join(parts) + "\n"


def _archs(library: Library) -> list[str]:
    with_ptx = {image.arch for kernel in library.kernels for image in kernel.images if image.ptx}
    rows = [f"    {{{_numbers(arch)}, {int(arch in with_ptx)}}}," for arch in sorted(library.archs)]
    return rows or ["    {0, 0, 0},"]


def _numbers(arch: Arch) -> str:
    """Architecture and vendor, as the runtime has them."""
    return f"{arch.number:{'#x' if arch.is_amd else 'd'}}, {arch.vendor}"


def _table(kernel: Kernel, number: int, images: list[str]) -> str:
    constants = "".join(f", {name}={value}" for name, value in kernel.constants)
    shown = f"{kernel.name}({', '.join(kernel.types)}{constants}), {kernel.location}"
    head = f"/* {comment(shown)} */"
    return "\n".join([head, f"static const Image images_{number}[] = {{", *images, "};"])


def _maps(maps: Sequence[TensorMap]) -> str:
    """The kernel's tensor maps, as a literal in the image's row."""
    if not maps:
        return "NULL"
    rows = []
    for one in maps:
        block = ", ".join(f"{n:d}" for n in one.block)
        numbers = (one.element, one.element_size, one.swizzle, one.is_padded_fp4)
        rows.append(f"{{{', '.join(f'{n:d}' for n in numbers)}, {{{block}}}}}")
    return f"(const MapInfo[]){{{', '.join(rows)}}}"


def _image(image: Image, data: str, *, is_ptx: bool) -> str:
    numbers = [
        image.num_warps,
        image.arch.warp_size,
        image.num_ctas,
        int(image.cooperative),
        int(image.pdl),
        image.shared,
        image.global_scratch_size,
        image.global_scratch_align,
        image.profile_scratch_size,
        image.descriptor_flags,
    ]
    # As numbers, and nothing else: an image may come from a cache.
    kind, *rest = (f"{number:d}" for number in (is_ptx, *numbers))
    cells = [_numbers(image.arch), kind, data, quoted(image.function), *rest, _maps(image.maps)]
    return f"    {{{', '.join(cells)}}},"


def words(data: bytes) -> list[str]:
    """Little-endian, with at least one zero byte at the end, six to a line."""
    padded = data + bytes(8 - len(data) % 8)
    hexed = [*map(hex, struct.unpack(f"<{len(padded) // 8}Q", padded))]
    return [f"    {', '.join(hexed[i : i + 6])}," for i in range(0, len(hexed), 6)]
