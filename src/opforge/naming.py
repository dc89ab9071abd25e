"""Operator names: `ns::op` or `ns::op.overload`, given or made from the function."""

from __future__ import annotations

import keyword
import pathlib
import re
import sys
import types

from .errors import BadDeclaration

# Namespaces that torch itself defines ops in.
RESERVED = frozenset(
    """
    _ _c10d_functional _c10d_functional_autograd _dtensor _native _quantized aten c10d
    c10d_functional cuda debug_mode_ops debugprims dtensor functorch higher_order inductor
    inductor_prims mkl mkldnn mkldnn_prepacked onednn opforge prepacked prim prims profiler
    quantization quantized quantized_decomposed rngprims sparse static_runtime streams symm_mem
    torch xnnpack
    """.split()  # noqa: SIM905  # one a line would fill a page
)

# What `torch.ops`, `torch.ops.ns` and `torch.ops.ns.op` have for themselves, but for `__init__` and
# the like: an operator, or its namespace, of that name could not be reached.
_TAKEN = (
    frozenset({"import_module", "load_library", "loaded_libraries", "_dir"}),
    frozenset({"name", "_dir"}),
    frozenset(
        """
        op overloads op_overloads _schemas _op _dir _qualified_op_name _overload_names
        _has_torchbind_op_overload
        """.split()  # noqa: SIM905  # as above
    ),
)


def check_name(name: str) -> str:
    """`name` itself, or BadDeclaration with the right form shown."""
    namespace, separator, op = name.partition("::")
    if not separator:
        raise _bad(name, "it has no namespace", f"mylib::{_identifier(name)}")
    base, dot, overload = op.partition(".")
    parts = (namespace, base, *([overload] if dot else ()))
    for part in parts:
        if not _usable(part):
            named = f".{_identifier(overload)}" if overload else ""
            right = f"{_identifier(namespace)}::{_identifier(base)}{named}"
            raise _bad(name, f"{part!r} is not an identifier", right)
    for part, taken in zip(parts, _TAKEN, strict=False):
        if part in taken or (part.startswith("__") and part.endswith("__")):
            right = name.replace(part, f"my_{part.strip('_')}")
            raise _bad(name, f"{part!r} is an attribute of torch.ops", right)
    if overload == "default":
        raise _bad(name, "an op without an overload name is the default", f"{namespace}::{base}")
    if namespace in RESERVED:
        raise _bad(name, f"namespace {namespace!r} belongs to PyTorch", f"mylib::{op}")
    return name


def default_name(fn: types.FunctionType) -> str:
    """Namespace from the module's file name, op from the function's."""
    return check_name(f"{_namespace(fn)}::{_identifier(fn.__name__)}")


def _namespace(fn: types.FunctionType) -> str:
    module = sys.modules.get(fn.__module__)
    file = getattr(module, "__file__", None) or fn.__globals__.get("__file__")
    if not file:
        # A notebook or an interactive session: its file names change with every cell.
        return _identifier(fn.__module__.rpartition(".")[2].strip("_") or "main")
    path = pathlib.Path(file)
    return _identifier(path.parent.name if path.stem == "__init__" else path.stem)


def _usable(part: str) -> bool:
    return part.isascii() and part.isidentifier() and not keyword.iskeyword(part)


def _identifier(text: str) -> str:
    made = re.sub(r"\W", "_", text, flags=re.ASCII) or "op"
    made = f"_{made}" if made[0].isdigit() else made
    return f"{made}_" if keyword.iskeyword(made) else made


def _bad(name: str, why: str, right: str) -> BadDeclaration:
    return BadDeclaration(f"{name!r} is not an operator name: {why}", fix=f"use the form {right!r}")
