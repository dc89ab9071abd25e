"""AOTInductor packages, trees of arguments, and the contents of an exported program."""

from __future__ import annotations

import contextlib
import json
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch.export.graph_signature import ConstantArgument

from . import operators
from .dispatcher import overload_of

# A fresh process does not import opforge, so it is given the name of torch's own loader.
LOADER = "torch._inductor:aoti_load_package"
CONSTANT_FOLDING = "joint_graph_constant_folding"
STATIC_LAUNCH = "static_launch_user_defined_triton_kernels"


def compile_package(exported: Any, path: Path, configs: dict[str, Any]) -> str:
    """Compile and write a package; returns whether user kernels are launched statically."""
    import torch._inductor
    from torch._inductor import config

    known = hasattr(config, STATIC_LAUNCH)
    with quiet(), config.patch({STATIC_LAUNCH: True} if known else {}):
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(path), inductor_configs=configs
        )
    return "set" if known else f"not set: torch {torch.__version__} does not have this config"


def load_package(path: Path) -> Any:
    import torch._inductor

    with quiet():
        return torch._inductor.aoti_load_package(str(path))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide torch's warnings about its own deprecated calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def operators_called_by(path: Path) -> tuple[str, ...]:
    """The "ns::op" names that a package calls through the dispatcher, in order."""
    found: dict[str, None] = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            if entry.endswith(".json") and "/aotinductor/" in entry:
                held = json.loads(archive.read(entry))
                found.update(dict.fromkeys(_targets(held)))
    return tuple(found)


def constant_outputs(exported: Any) -> list[Any]:
    """What an exported program returns besides tensors and sizes."""
    returned = [spec.arg for spec in exported.graph_signature.output_specs]
    return [arg.value for arg in returned if isinstance(arg, ConstantArgument)]


def source_of(path: Path) -> str:
    """The C++ that AOTInductor wrote; it names the kernels that it launches."""
    with zipfile.ZipFile(path) as archive:
        files = [entry for entry in archive.namelist() if entry.endswith(".cpp")]
        return "\n".join(archive.read(entry).decode() for entry in files)


def _targets(held: Any) -> Iterator[str]:
    for node in held.get("nodes", ()) if isinstance(held, dict) else ():
        target = str(node["node"]["target"]).removeprefix("torch.ops.")
        # "ns::op" or "ns::op.overload"; some versions write "ns.op.overload".
        space, _, op = target.partition("::" if "::" in target else ".")
        yield f"{space}::{op.partition('.')[0]}"


def flatten(tree: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(tree))


def refill(tree: Any, leaves: list[Any]) -> Any:
    """The same tree with new leaves."""
    spec = torch.utils._pytree.tree_structure(tree)
    return torch.utils._pytree.tree_unflatten(leaves, spec)


def paths(tree: Any) -> list[tuple[str, ...]]:
    """The path to each leaf, in the order of `flatten`."""
    found, _ = torch.utils._pytree.tree_flatten_with_path(tree)
    return [tuple(_step(key) for key in path) for path, _ in found]


def _step(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def operator_nodes(exported: Any) -> Iterator[tuple[str, Any]]:
    """Every operator that an exported program calls, as "ns::op" with its node."""
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if hasattr(module, "graph") else ():
            name = operators.operator_name(node.target) if node.op == "call_function" else None
            if name is not None:
                yield name, node


def written_state(exported: Any) -> list[str]:
    """Names of the buffers and parameters that a program writes.

    torch.export leaves a model's writes as they are; the program's functional form lists them.
    """
    with quiet(), torch.no_grad():
        functional = exported.run_decompositions({})
    mutations = {"BUFFER_MUTATION", "PARAMETER_MUTATION"}
    specs = functional.graph_signature.output_specs
    return [spec.target for spec in specs if spec.kind.name in mutations]


def bare_kernel(node: Any) -> Any:
    """The kernel that a node launches by itself, or None."""
    name = operators.operator_name(node.target) or ""
    if not name.startswith("higher_order::triton_kernel_wrapper"):
        return None
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table.get_kernel(node.kwargs["kernel_idx"])


def overload_behind(op: Any) -> Any:
    """The overload of any operator, including one made by `torch.library.custom_op`."""
    if isinstance(op, CustomOpDef):
        return op._opoverload
    return overload_of(op)


def schema_arguments(overload: Any) -> list[Any]:
    return list(overload._schema.arguments)
