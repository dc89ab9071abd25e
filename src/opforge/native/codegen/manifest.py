"""Writes the manifest: all that is in a library, as JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from ..ir.abi import ABI, MANIFEST_FORMAT
from ..ir.case_codec import CASE
from ..ir.interface import Op
from ..ir.kernel_codec import IMAGE, KERNEL
from ..ir.op_codec import OP
from ..ir.program import Image, Kernel, Library
from .coverage_text import guards as guards_of
from .images import words
from .signature import CSignature

_WIDTH = 110


def manifest(library: Library) -> bytes:
    """`share/NAME/manifest.json`, which `library.manifest_reader` reads."""
    content = {
        "format": MANIFEST_FORMAT,
        "name": library.name,
        "abi": ABI,
        "archs": [arch.built_name for arch in sorted(library.archs)],
        "versions": dict(library.versions),
        "notes": list(library.notes),
        "ops": [_op(library.name, op) for op in library.ops],
        "kernels": [_kernel(kernel) for kernel in library.kernels],
        **({"sources": dict(library.sources)} if library.sources else {}),
    }
    return (_dump(content, 0) + "\n").encode()


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


def manifest_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def manifest_source(library: Library, content: bytes) -> str:
    """`src/NAME/manifest.c`, as numbers: C99 compilers need not take a string literal this long."""
    lines = [
        f"/* share/{library.name}/manifest.json, byte by byte. Written by opforge. */",
        '#include "runtime.h"',
        "",
        '#include "api.h"',
        "",
        "static const uint64_t text[] = {",
        *words(content),
        "};",
        "",
        f"const char *{library.name}_manifest(void)",
        "{",
        "    return (const char *)text;",
        "}",
        "",
        "/* The torch adapter compares it with that of the library that it was built for. */",
        f"OPFORGE_API const char {library.name}_manifest_hash[];",
        f'const char {library.name}_manifest_hash[] = "{manifest_hash(content)}";',
    ]
    return "\n".join(lines) + "\n"


def _op(library: str, op: Op) -> dict[str, Any]:
    content = OP.write(replace(op, implementations=op.served_by))
    for index, one in enumerate(content["implementations"]):
        one["guards"] = guards_of(op, index)
    function = CSignature(library, op).function
    cases = [CASE.write(case) for case in op.cases]
    return {"name": op.name, "function": function, **content, "cases": cases}


def _kernel(kernel: Kernel) -> dict[str, Any]:
    images = [_image(i) for i in sorted(kernel.images, key=lambda i: i.arch)]
    return {**KERNEL.write(kernel), "images": images}


def _image(image: Image) -> dict[str, Any]:
    return {
        "arch": image.arch.built_name,
        "function": image.function,
        "bytes": len(image.cubin),
        "sha256": hashlib.sha256(image.cubin).hexdigest(),
        "ptx_sha256": hashlib.sha256(image.ptx.encode()).hexdigest() if image.ptx else None,
        **IMAGE.write(image),
    }
