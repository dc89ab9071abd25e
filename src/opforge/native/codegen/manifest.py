"""The manifest: all that is in a library, as JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

from ..ir.abi import ABI, MANIFEST_FORMAT
from ..ir.expr import Expr, Term, text, to_json
from ..ir.program import (
    Allocate,
    Argument,
    Case,
    ChoiceParam,
    Fill,
    Flat,
    Image,
    Implementation,
    Kernel,
    Launch,
    Library,
    Op,
    Param,
    Path,
    Pointer,
    ScalarParam,
    SchemaArgument,
    Step,
    TensorCase,
    TensorParam,
    Variant,
)
from .coverage_text import guards as guards_of
from .images import arch_name, words
from .signature import Signature

_WIDTH = 110


def manifest(library: Library) -> bytes:
    """`share/NAME/manifest.json`. Terms stand as Python would write them, and as nested lists.

    "n", 128, {"text": "(n + 127) // 128", "term": ["//", ["+", "n", 127], 128]}
    """
    content = {
        "format": MANIFEST_FORMAT,
        "name": library.name,
        "abi": ABI,
        "archs": [arch_name(arch) for arch in sorted(library.archs)],
        "versions": dict(library.versions),
        "notes": list(library.notes),
        "ops": [_op(library.name, op) for op in library.ops],
        "kernels": [_kernel(kernel) for kernel in library.kernels],
    }
    return ("".join(_dump(content, 0)) + "\n").encode()


def _dump(value: Any, depth: int) -> Iterator[str]:
    """JSON with what fits on a line on one: `json` knows only all or nothing."""
    whole = json.dumps(value)
    if len(whole) + depth <= _WIDTH or not isinstance(value, (dict, list)):
        yield whole
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    members = value.items() if isinstance(value, dict) else ((None, v) for v in value)
    yield opening
    for i, (key, member) in enumerate(members):
        yield "," if i else ""
        yield f"\n{' ' * (depth + 1)}" + (f"{json.dumps(key)}: " if key is not None else "")
        yield from _dump(member, depth + 1)
    yield f"\n{' ' * depth}{closing}"


def manifest_source(library: Library, content: bytes) -> str:
    """`src/manifest.c`: a string literal may be too long for a compiler that is held to C99."""
    lines = [
        f"/* share/{library.name}/manifest.json, byte by byte. Written by opforge. */",
        '#include "runtime.h"',
        "",
        "static const uint64_t text[] = {",
        *words(content),
        "};",
        "",
        f"const char *{library.name}_manifest(void)",
        "{",
        "    return (const char *)text;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _term(term: Term) -> Any:
    if isinstance(term, Expr):
        return {"text": text(term), "term": to_json(term)}
    return to_json(term)


def _op(library: str, op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        "function": Signature(library, op).function,
        "torch_name": op.torch_name,
        "schema": op.schema,
        "arguments": [_schema_argument(argument) for argument in op.arguments],
        "returns": list(op.returns),
        "formula": [_flat(term) for term in op.formula],
        "location": op.location,
        "source_hash": op.source_hash,
        "doc": op.doc,
        "params": [_param(p) for p in op.params],
        "outputs": list(op.outputs),
        "implementations": [_implementation(op, i, one) for i, one in enumerate(op.served_by)],
        "cases": [_case(case) for case in op.cases],
    }


def _implementation(op: Op, index: int, one: Implementation) -> dict[str, Any]:
    return {
        "name": one.name,
        "torch_name": one.torch_name,
        "schema": one.schema,
        "location": one.location,
        "source_hash": one.source_hash,
        "doc": one.doc,
        "guards": guards_of(op, index),
    }


def _schema_argument(argument: SchemaArgument) -> dict[str, Any]:
    """`[]` for a value that there is none of; a dtype is `["dtype", "float16"]`."""
    return {
        "name": argument.name,
        "type": argument.type,
        "values": [_flat(value) for value in argument.values],
        "fixed": argument.fixed,
        "keyword_only": argument.keyword_only,
        "default": [_flat(value) for value in argument.default],
    }


def _flat(value: Flat) -> Any:
    if isinstance(value, tuple):
        return [_flat(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return ["float", str(value)]
    return value


def _param(param: Param) -> dict[str, Any]:
    if isinstance(param, TensorParam):
        kind = {"kind": "tensor", "written": param.written, "optional": param.optional}
        return {"name": param.name, **kind, **_group(param)}
    if isinstance(param, ScalarParam):
        return {"name": param.name, "kind": "scalar", "dtype": param.dtype}
    assert isinstance(param, ChoiceParam)
    values = {"labels": list(param.labels), "values": list(param.values)}
    return {"name": param.name, "kind": "choice", **values}


def _group(param: TensorParam) -> dict[str, Any]:
    said: dict[str, Any] = {"broadcast": True} if param.broadcast else {}
    return said | ({"group": param.group} if param.group else {})


def _case(case: Case) -> dict[str, Any]:
    return {
        "implementation": case.implementation,
        "tensors": [_tensor(t) for t in case.tensors],
        "choices": dict(case.choices),
        "bounds": [
            {"var": b.var, "low": b.low, "high": b.high, "values": list(b.values)}
            for b in case.bounds
        ],
        "paths": [_path(path) for path in case.paths],
    }


def _tensor(tensor: TensorCase) -> dict[str, Any]:
    if not tensor.present:
        return {"param": tensor.param, "present": False}
    strides = None if tensor.strides is None else [to_json(s) for s in tensor.strides]
    shape = [to_json(size) for size in tensor.shape]
    return {"param": tensor.param, "dtype": tensor.dtype, "shape": shape, "strides": strides}


def _path(path: Path) -> dict[str, Any]:
    outputs = [
        output
        and {
            "dtype": output.dtype,
            "shape": [_term(size) for size in output.shape],
            "strides": [_term(stride) for stride in output.strides],
        }
        for output in path.outputs
    ]
    guards = [{"condition": _term(g.condition), "location": g.location} for g in path.guards]
    if path.refused:
        return {"guards": guards, "refused": path.refused}
    return {"guards": guards, "outputs": outputs, "steps": [_step(s) for s in path.steps]}


def _step(step: Step) -> dict[str, Any]:
    if isinstance(step, Allocate):
        return {"allocate": step.buffer, "bytes": _term(step.bytes)}
    if isinstance(step, Fill):
        return {
            "fill": step.buffer,
            "offset": _term(step.offset),
            "count": _term(step.count),
            "width": step.width,
            "pattern": step.pattern,
        }
    return _launch(step)


def _launch(launch: Launch) -> dict[str, Any]:
    return {
        "launch": launch.kernel_name,
        "kernel_location": launch.kernel_location,
        "location": launch.location,
        "grid": [_term(size) for size in launch.grid],
        "constants": dict(launch.constants),
        "arguments": [_argument(a) for a in launch.arguments],
        "variants": [_variant(v) for v in launch.variants],
    }


def _argument(argument: Argument) -> dict[str, Any]:
    if isinstance(argument, Pointer):
        where = {"buffer": argument.buffer, "offset": _term(argument.offset)}
        return {"name": argument.name, **where, "dtype": argument.dtype}
    return {"name": argument.name, "value": _term(argument.value)}


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "kernel": variant.kernel,
        "types": list(variant.types),
        "aligned": list(variant.aligned),
        "divisible": list(variant.divisible),
    }


def _kernel(kernel: Kernel) -> dict[str, Any]:
    return {
        "key": kernel.key,
        "name": kernel.name,
        "qualified_name": kernel.qualified_name,
        "location": kernel.location,
        "types": list(kernel.types),
        "constants": dict(kernel.constants),
        "divisible": list(kernel.divisible),
        "options": dict(kernel.options),
        "images": [_image(i) for i in sorted(kernel.images, key=lambda i: i.arch)],
    }


def _image(image: Image) -> dict[str, Any]:
    return {
        "arch": arch_name(image.arch),
        "function": image.function,
        "bytes": len(image.cubin),
        "sha256": hashlib.sha256(image.cubin).hexdigest(),
        "ptx_sha256": hashlib.sha256(image.ptx.encode()).hexdigest() if image.ptx else None,
        "num_warps": image.num_warps,
        "num_ctas": image.num_ctas,
        "shared": image.shared,
        "cooperative": image.cooperative,
        "pdl": image.pdl,
        "global_scratch_size": image.global_scratch_size,
        "global_scratch_align": image.global_scratch_align,
        "profile_scratch_size": image.profile_scratch_size,
        "registers": image.registers,
        "spills": image.spills,
    }
