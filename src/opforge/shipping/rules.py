"""What a wheel needs for fakes and gradients: parts of opforge, copied, and who has a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import opforge

from ..native.ir.interface import Op

_HERE = Path(opforge.__file__).parent
# All that `shipped_rules` imports, and what these import.
_COPIED = (
    "_compat/transforms", "errors", "records", "loading/arguments", "loading/fake",
    "loading/formula",
    "native/ir/case_codec", "native/ir/cases", "native/ir/dtypes", "native/ir/expr",
    "native/ir/interface", "native/ir/op_codec", "native/ir/places", "native/ir/wording",
    "native/library/manifest_reader", "shipping/shipped_rules",
)  # fmt: skip
_ABOUT = f'"""Parts of opforge {opforge.__version__}: fakes and gradients from a manifest."""\n'


def copied_files() -> dict[str, bytes]:
    """Modules below `_opforge`, where they import each other as they do here."""
    copied = {f"_opforge/{name}.py": (_HERE / f"{name}.py").read_bytes() for name in _COPIED}
    folders = {str(parent) for file in copied for parent in Path(file).parents} - {"."}
    return {f"{folder}/__init__.py": _ABOUT.encode() for folder in sorted(folders)} | copied


def no_gradient(op: Op, served: Iterable[Op]) -> str:
    """Why an operator has no gradient where its wheel is installed; empty if it has one."""
    if not op.formula:
        return "the library has no backward for it"
    if "Tensor(" in op.schema:
        return "torch takes none of an operator that writes to its arguments or returns views"
    if any(a.keyword_only and a.type.startswith("Tensor") for a in op.arguments):
        return "torch takes none of an operator with keyword-only tensors"
    missing = {*_called(op.formula)} - {other.torch_name for other in served}
    listed = ", ".join(sorted(missing))
    return f"its backward calls {listed}, which is not in the wheel" if missing else ""


def _called(terms: Iterable[Any]) -> Iterator[str]:
    for term in terms:
        if isinstance(term, tuple):
            if term[0] == "call":
                yield str(term[1])
            yield from _called(term)
