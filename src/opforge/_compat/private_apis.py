"""Which private APIs of torch and Triton each feature needs, and whether the installed ones fit.

Nobody keeps a list: the modules of this package are read for the names that they use, the
arguments that they pass and the methods that they override. `opforge doctor` asks for all of them.
On a torch or Triton that was not tested, a module is asked for before it is imported.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BuildFailed
from ..versions import INSTALL_TESTED, loaded
from . import patches

# What the modules of this package are for; the other ones serve all of these.
FEATURES = {
    "operators": (
        "device", "dispatcher", "fakes", "operators", "process_state", "transforms",
    ),
    "direct calls": ("guards",),
    "torch.compile": ("graphs", "kernels", "launches", "pointer_writes", "printing"),
    "AOTInductor packages": ("aoti",),
    "checks": ("checking",),
    "native libraries": ("compiling", "driver", "host_caches", "tracing"),
    "tuning": ("autotuning",),
    "record and serve": ("compiled", "described", "inductor_kernels", "served"),
    "kernels": (
        "bytecode", "interpreter", "kernel_hash", "patches", "reach", "settings", "tma",
    ),
}  # fmt: skip
_OWN = ("__init__", "private_apis")
# Not in every torch and Triton that was tested, and done without there.
_LATER = {
    "torch._C._dynamo.utils.get_current_stream",  # torch 2.15
    "triton.knobs.language_knobs.fp_fusion_enabled",  # Triton 3.9
    "triton.next_power_of_2.__code__",  # of the function in it
}


class Gap(NamedTuple):
    """A private API that is not as a feature needs it."""

    feature: str
    api: str
    why: str


def require(name: str) -> None:
    """Raise if what a name of this package leads to needs what torch or Triton lacks here."""
    for module in _with_siblings(name if name in modules() else "dispatcher"):
        for gap in _gaps_of(module):
            raise BuildFailed(
                f"{gap.feature} does not work with {loaded()}",
                found=f"{gap.api} {gap.why}",
                fix=f"{INSTALL_TESTED}, or take a newer opforge",
            )


def gaps() -> list[Gap]:
    """Everything that torch and Triton do not have here as opforge needs it."""
    return [gap for module in modules() for gap in _gaps_of(module)]


def modules() -> list[str]:
    """The modules of this package that use something of torch or Triton."""
    names = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(name for name in names if name not in _OWN)


def feature_of(module: str) -> str:
    return next(feature for feature, names in FEATURES.items() if module in names)


class Use(NamedTuple):
    """A name that is used, and how: `call` is how often it is passed what, if it is called.

    `wrap.get_mutated_tensors(*given)` -> name "torch._higher_order_ops...", call None
    `find(name, key=1)` -> call (1, ("key",)); a method that is overridden: the override's node.
    """

    name: str
    call: tuple[int, tuple[str, ...]] | None = None
    override: ast.FunctionDef | None = None


def _gaps_of(module: str) -> Iterator[Gap]:
    feature = feature_of(module)
    torch = sys.modules.get("torch")
    is_for_cpus = torch is not None and not (torch.version.cuda or torch.version.hip)
    for use in uses(module):
        why = _lacking(use)
        if why and not (is_for_cpus and use.name.startswith("torch._C._cuda_")):
            yield Gap(feature, use.name, why)


def _lacking(use: Use) -> str:
    """Why a use would fail; empty if it would not."""
    try:
        found = _resolve(use.name)
    except (AttributeError, ImportError) as error:
        return f"is not there: {error}"
    if use.override is not None:
        return _no_override(found, use.override)
    if use.call is None:
        return ""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        # C functions have none.
        return ""
    count, names = use.call
    try:
        signature.bind_partial(*range(count), **dict.fromkeys(names))
    except TypeError as error:
        return f"takes {signature}: {error}"
    return ""


def _resolve(name: str) -> Any:
    """What a dotted name stands for, without asking properties, which may want a GPU."""
    parts = name.split(".")
    # `triton.runtime.driver` is a module, and an attribute of `triton.runtime`.
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        try:
            return _attribute(module, parts[count:])
        except AttributeError:
            if count == 1:
                raise
    raise ModuleNotFoundError(f"no module named {parts[0]!r}")


def _attribute(found: Any, names: list[str]) -> Any:
    for name in names:
        kept = inspect.getattr_static(found, name, None)
        if isinstance(kept, property) or (isinstance(found, type) and _sets(found, name)):
            return kept
        found = kept.__func__ if isinstance(kept, staticmethod) else getattr(found, name)
    return found


def _sets(cls: Any, name: str) -> bool:
    """Whether instances of a class have an attribute that the class does not."""
    return not hasattr(cls, name) and f"self.{name}" in inspect.getsource(cls.__init__)


def _no_override(found: Any, override: ast.FunctionDef) -> str:
    """Why a method cannot stand in for another: it is called with more than it takes."""
    passed = [p for p in inspect.signature(found).parameters.values() if p.default is p.empty]
    own = override.args
    if own.vararg or len(own.args) >= len(passed):
        return ""
    return f"passes {', '.join(p.name for p in passed)}, and opforge's takes {len(own.args)}"


@functools.cache
def uses(module: str) -> tuple[Use, ...]:
    """What a module of this package uses of torch's and Triton's private APIs."""
    found = _Uses()
    found.visit(_source(module))
    return tuple(dict.fromkeys(found.found))


def _source(module: str) -> ast.Module:
    return ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))


@functools.cache
def _with_siblings(module: str) -> tuple[str, ...]:
    """A module of this package, and those whose names it imports."""
    found, waiting = [], [module]
    while waiting:
        name = waiting.pop()
        if name in found or name not in modules():
            continue
        found.append(name)
        waiting += [
            node.module
            for node in _source(name).body
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        ]
    return tuple(found)


class _Uses(ast.NodeVisitor):
    """Dotted names below torch and triton, through the names that imports give them."""

    def __init__(self) -> None:
        self.found: list[Use] = []
        self.imported: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            if root in {"torch", "triton"}:
                self.imported[alias.asname or root] = alias.name if alias.asname else root

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not node.level and (node.module or "").partition(".")[0] in {"torch", "triton"}:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                self.imported[alias.asname or alias.name] = name
                self._add(name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in map(self._dotted, node.bases):
            for method in node.body:
                if base and _is_private(base) and isinstance(method, ast.FunctionDef):
                    name = f"{base}.{method.name}"
                    if not method.name.startswith("__"):
                        self._add(name, override=method)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._dotted(node.func)
        match node:
            # What a patch of the table replaces.
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id="patches"), attr=patch), attr="by"
                ),
                args=[ast.Constant(value=str(replaced)), *_],
            ):
                self._add(f"{getattr(patches, patch).owner}.{replaced}")
        named = tuple(k.arg for k in node.keywords if k.arg is not None)
        if name:
            count = sum(not isinstance(a, ast.Starred) for a in node.args)
            self._add(name, (count, named))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._dotted(node)
        if name:
            self._add(name)
        else:
            self.generic_visit(node)

    def _dotted(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return self.imported.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value)
            return base and f"{base}.{node.attr}"
        return None

    def _add(self, name: str, *how: Any, **more: Any) -> None:
        if _is_private(name) and name not in _LATER:
            self.found.append(Use(name, *how, **more))


def _is_private(name: str) -> bool:
    """Whether torch or Triton promises nothing of it: underscores, Triton besides its language."""
    parts = name.split(".")
    is_inner = parts[0] == "triton" and parts[1:2] != ["language"] and len(parts) > 2
    return is_inner or any(part.startswith("_") and part != "__version__" for part in parts)
