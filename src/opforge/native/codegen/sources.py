"""All the files of a library, by their path below the output folder."""

from __future__ import annotations

import hashlib
import json
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...arch import FIRST_ARCH_SPECIFIC, Arch
from ..ir.abi import ABI, ATTRIBUTES, HIP_ATTRIBUTES, MANIFEST_FORMAT, OWN, SERVED_ABI
from ..ir.case_text import guards
from ..ir.cases import CASE, Allocate, Argument, Descriptor, Launch
from ..ir.interface import OP, Op, TensorParam
from ..ir.kernels import CODECS, Image, ServedFunction, TensorMap
from ..ir.program import KERNEL, Kernel, Library
from .bindings import adapter_source, jax_module, jax_source, tvm_ffi_source
from .c_header import header, summary
from .cpp_header import cplusplus_header, dispatch
from .op_source import operation_source
from .signature import CSignature, check_names, shared_names
from .text import comment, fill, part, quoted, runtime

# Of the manifest's lines.
_WIDTH = 110


def sources(
    library: Library, *, torch: bool = False, tvm_ffi: bool = False, jax: bool = False
) -> dict[str, bytes]:
    """Headers, C sources, manifest, packages for CMake and pkg-config.

    The same program gives the same bytes.

        sources(library)["include/mylib.h"]

    With `torch` also the C++ of the torch adapter, with `tvm_ffi` the functions of tvm-ffi,
    with `jax` the handlers of XLA and the module that registers them.
    """
    name = library.name
    # Of several libraries in one folder, each has its own.
    src = f"src/{name}"
    signatures = [CSignature(name, op) for op in library.ops]
    check_names(name, signatures)
    # By key, the constant for a kernel in the operators' tables.
    kernels = {kernel.key: f"KERNEL_{part(kernel.key)}" for kernel in library.kernels}
    archs = ", ".join(arch.built_name for arch in sorted(library.archs)) or "no architecture"
    described = manifest(library, signatures)
    manifest_hash = hashlib.sha256(described).hexdigest()
    texts = {
        f"include/{name}.h": header(library, signatures, archs),
        f"include/{name}.hpp": cplusplus_header(library, signatures),
        f"include/{name}_dispatch.inc": dispatch(library, signatures),
        f"{src}/api.h": fill("api.h", name=name),
        f"{src}/library.h": _library_header(library),
        f"{src}/device_attributes.inc": _device_attributes(),
        f"{src}/kernels.h": _kernels_header(kernels),
        f"{src}/images.c": _images_source(library, archs),
        f"{src}/manifest.c": _manifest_source(name, described, manifest_hash),
        f"lib/cmake/{name}/{name}Config.cmake": fill("config.cmake", name=name),
        f"lib/cmake/{name}/{name}ConfigVersion.cmake": fill("version.cmake", abi=ABI),
        f"lib/pkgconfig/{name}.pc": fill(
            "library.pc", name=name, abi=ABI, summary=summary(library, archs)
        ),
    }
    texts |= {f"{src}/{file}": text for file, text in runtime().items()}
    shared = runtime("include/opforge")
    texts |= {f"include/opforge/{file}": text for file, text in shared.items()}
    if torch:
        texts[f"{src}/torch/{name}_torch.cpp"] = adapter_source(library, signatures, manifest_hash)
        texts |= {f"{src}/torch/{file}": text for file, text in runtime("torch").items()}
    if tvm_ffi:
        texts[f"{src}/tvm_ffi.c"] = tvm_ffi_source(library, signatures)
        texts |= {f"{src}/{file}": text for file, text in runtime("tvm_ffi").items()}
    if jax:
        texts[f"{src}/jax_ffi.c"] = jax_source(library, signatures)
        texts[f"{src}/jax_ffi.h"] = runtime("jax")["jax_ffi.h"]
        # With one, the order of sys.path decides between this folder and a module of that name.
        texts[f"python/{name}/__init__.py"] = f'"""Python modules over lib{name}.so."""\n'
        texts[f"python/{name}/jax.py"] = jax_module(library)
    for signature in signatures:
        file = f"{src}/op_{part(signature.op.name)}.c"
        texts[file] = operation_source(signature, kernels)
    files = {path: text.encode() for path, text in texts.items()}
    files[f"share/{name}/manifest.json"] = described
    return dict(sorted(files.items()))


def _library_header(library: Library) -> str:
    prefixes = "\n".join(f"#define {name} {library.name}_{name}" for name in shared_names())
    constants = {f"OF_MAX_{name}": room(most) for name, most in _maxima(library.ops).items()}
    constants["OF_FIRST_ARCH_SPECIFIC"] = FIRST_ARCH_SPECIFIC
    defined = "\n".join(f"#define {name} {value}" for name, value in constants.items())
    return fill("library.h", name=library.name, prefixes=prefixes, constants=defined)


def room(most: int) -> int:
    """The length of an array for so many: `room(3)` -> 32, `room(33)` -> 64.

    Not exact, so that the runtime stays the same when operators change. The arrays are on the
    stack, where their length costs no time, but for the nodes of a graph.
    """
    return max(32, 1 << (most - 1).bit_length())


def _maxima(ops: tuple[Op, ...]) -> dict[str, int]:
    """The most that the runtime has in each array."""
    paths = [path for op in ops for case in op.cases for path in case.paths]
    launches = [[s for s in path.steps if isinstance(s, Launch)] for path in paths]
    arguments = [launch.arguments for each in launches for launch in each]
    ranks = [[a.rank for a in each if isinstance(a, Descriptor)] for each in arguments]
    allocated = [sum(isinstance(s, Allocate) for s in path.steps) for path in paths]
    inputs = [sum(isinstance(p, TensorParam) for p in op.params) for op in ops]
    outputs = [len(op.outputs) for op in ops]
    tensors = max([0, *map(operator.add, inputs, outputs)])
    workspaces, most = max([0, *allocated]), max([0, *map(len, launches)])
    return {
        "KEYS": max([0, *(len(op.params) for op in ops)]),
        "TENSORS": tensors,
        "OUTPUTS": max([0, *outputs]),
        "BUFFERS": tensors + workspaces,
        "LAUNCHES": most,
        # A launch may need scratch memory of two kinds.
        "ALLOCATIONS": workspaces + 2 * most,
        # The grid, and the arguments.
        "NUMBERS": 3 + max([0, *map(len, arguments)]),
        "DESCRIPTORS": max([0, *map(len, ranks)]),
        # The arguments, those that a descriptor becomes without a tensor map (its address, sizes,
        # strides and two flags), two pointers to scratch memory, and NULL.
        "PARAMETERS": 3 + max([0, *map(_passed, arguments, ranks)]),
    }


def _passed(arguments: Sequence[Argument], ranks: Sequence[int]) -> int:
    return len(arguments) + sum(2 * rank + 2 for rank in ranks)


def _device_attributes() -> str:
    head = "/* What a device can be asked, and CUDA's and HIP's numbers. Written by opforge. */"
    numbers = {name: (number, HIP_ATTRIBUTES[name]) for name, number in ATTRIBUTES.items()}
    numbers |= dict.fromkeys(OWN, (-1, -1))
    rows = [f"OF_ATTRIBUTE({name.upper()}, {cuda}, {hip})" for name, (cuda, hip) in numbers.items()]
    return "\n".join([head, *rows]) + "\n"


def _kernels_header(kernels: Mapping[str, str]) -> str:
    """`src/NAME/kernels.h`."""
    names = ",\n".join(f"    {name}" for name in kernels.values()) or "    NO_KERNEL"
    return f"""\
/* The kernels' positions in images.c. Written by opforge. */
#ifndef OPFORGE_KERNELS_INCLUDED
#define OPFORGE_KERNELS_INCLUDED

enum {{
{names}
}};

#endif
"""


# The kernels' images, as arrays of 64-bit words: one takes the compiler a fifth of the time of
# eight bytes.


def _images_source(library: Library, archs: str) -> str:
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
                    parts.append("\n".join([head, *_words(data), "};"]))
                images.append(_image_row(image, written[data], is_ptx=is_ptx))
        if images:
            tables.append(_image_table(kernel, number, images))
        name = f"images_{number}" if images else "NULL"
        rows.append(f"    {{{quoted(kernel.key)}, {len(images)}, {name}}},")
    with_ptx = {image.arch for kernel in library.kernels for image in kernel.images if image.ptx}
    arch_rows = [f"    {{{_numbers(a)}, {int(a in with_ptx)}}}," for a in sorted(library.archs)]
    rows, arch_rows = rows or ['    {"none", 0, NULL},'], arch_rows or ["    {0, 0, 0},"]
    parts += [
        *tables,
        "\n".join(["const Kernel of_kernels[] = {", *rows, "};"]),
        f"const int of_kernel_count = {len(library.kernels)};",
        "\n".join(["const Arch of_arch_list[] = {", *arch_rows, "};"]),
        f"const int of_arch_count = {len(library.archs)};",
        f"const char of_archs[] = {quoted(archs)};",
    ]
    return "\n\n".join(parts) + "\n"


def _numbers(arch: Arch) -> str:
    """Architecture and vendor, as the runtime has them."""
    return f"{arch.number:{'#x' if arch.is_amd else 'd'}}, {arch.vendor}"


def _image_table(kernel: Kernel, number: int, images: list[str]) -> str:
    constants = "".join(f", {name}={value}" for name, value in kernel.constants)
    shown = f"{kernel.name}({', '.join(kernel.types)}{constants}), {kernel.location}"
    head = f"/* {comment(shown)} */"
    return "\n".join([head, f"static const Image images_{number}[] = {{", *images, "};"])


def _image_row(image: Image, data: str, *, is_ptx: bool) -> str:
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


def _words(data: bytes) -> list[str]:
    """Little-endian, with at least one zero byte at the end, six to a line."""
    padded = data + bytes(8 - len(data) % 8)
    hexed = [*map(hex, struct.unpack(f"<{len(padded) // 8}Q", padded))]
    return [f"    {', '.join(hexed[i : i + 6])}," for i in range(0, len(hexed), 6)]


# The manifest: all that is in a library, as JSON.


def manifest(library: Library, signatures: Sequence[CSignature] = ()) -> bytes:
    """`share/NAME/manifest.json`, which `library.manifest_reader` reads."""
    functions = list(map(CODECS.of(ServedFunction).write, library.functions))
    content = {
        "format": MANIFEST_FORMAT,
        "name": library.name,
        "abi": SERVED_ABI if functions else ABI,
        "archs": [arch.built_name for arch in sorted(library.archs)],
        "versions": dict(library.versions),
        "notes": list(library.notes),
        "ops": [_written_op(signature) for signature in signatures],
        "kernels": [KERNEL.write(kernel) for kernel in library.kernels],
        **({"sources": dict(library.sources)} if library.sources else {}),
        **({"functions": functions, "settings": dict(library.settings)} if functions else {}),
    }
    return (_dump(content, 0) + "\n").encode()


def _written_op(signature: CSignature) -> dict[str, Any]:
    op = signature.op
    content = OP.write(replace(op, implementations=op.served_by))
    for index, one in enumerate(content["implementations"]):
        one["guards"] = guards(op, index)
    cases = [CASE.write(case) for case in op.cases]
    return {"name": op.name, "function": signature.function, **content, "cases": cases}


def _dump(value: Any, depth: int) -> str:
    """JSON that keeps on one line what fits there; `json` indents everything or nothing."""
    if not isinstance(value, (dict, list)):
        return json.dumps(value)
    if isinstance(value, dict):
        members = [f"{json.dumps(k)}: {_dump(v, depth + 1)}" for k, v in value.items()]
    else:
        members = [_dump(member, depth + 1) for member in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    whole = f"{opening}{', '.join(members)}{closing}"
    if len(whole) + depth <= _WIDTH:
        return whole
    indent = "\n" + " " * depth
    return f"{opening}{indent} {f',{indent} '.join(members)}{indent}{closing}"


def _manifest_source(name: str, content: bytes, manifest_hash: str) -> str:
    """`src/NAME/manifest.c`, as numbers: C99 compilers need not take a string literal this long."""
    words = "\n".join(_words(content))
    return f"""\
/* share/{name}/manifest.json, byte by byte. Written by opforge. */
#include "runtime.h"

#include "api.h"

static const uint64_t text[] = {{
{words}
}};

const char *{name}_manifest(void)
{{
    return (const char *)text;
}}

/* The torch adapter compares it with that of the library that it was built for. */
OPFORGE_API const char {name}_manifest_hash[];
const char {name}_manifest_hash[] = "{manifest_hash}";
"""
