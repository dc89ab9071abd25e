"""Kernels of compiled graphs: Inductor prints each as text, and launches it past Triton's JIT.

`async_compile.triton("name", text)` makes a `CachingAutotuner` of a text; its `run` launches. Both
are the same for Inductor's own kernels and for those of user code. Seen in torch 2.11 and 2.13.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
import math
import re
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from . import compiled, kernel_hash

# In a user's kernel, the decorator of Inductor comes before the user's own.
_DECORATORS = "triton_heuristics."
_USERS = "triton_heuristics.user_autotune"
_LOADED = "torch._inductor.runtime.compile_tasks."
_DRIVER = "triton_helpers.set_driver_to_gpu()"


class NotPrinted(Exception):
    """A text that does not look like Inductor's; the exception says what is odd."""


@dataclass(frozen=True)
class Printed:
    """A kernel as Inductor prints it, without what differs from run to run.

    The decorator is left out: it has size hints, the GPU's properties and hashes of caches. What
    of it matters for an image is in the variant that is recorded. So is the number in the name of
    one of Inductor's own, which counts the kernels before it: `triton_poi_fused_add_0`.
    """

    name: str
    text: str

    @functools.cached_property
    def source(self) -> str:
        """Tells it from other kernels, and from the same text with other helpers of torch's."""
        return hashlib.sha256(f"{_helpers()}\n{self.text}".encode()).hexdigest()


def source_of(kernel: Printed, fn: Any) -> str:
    """`Printed.source`, and a hash of what the function uses beyond its text.

    A text may import modules of the user's, whose values are not in it.
    """
    # What comes back from a compile worker of Inductor's has lost its Python function.
    whole = fn if fn.fn is not None else function(kernel)
    return f"{kernel.source}-{kernel_hash.kernel_hash(whole).uses}"


# Graphs share texts, and a program that is served waits for each.
@functools.lru_cache(maxsize=4096)
def printed(text: str) -> Printed:
    """What `async_compile.triton` is given, as `Printed`."""
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise NotPrinted(f"its text is not Python: {error}") from None
    dropped: set[int] = set()
    names: list[tuple[str, str]] = []
    for node in body:
        if isinstance(node, ast.Expr) and ast.unparse(node) == _DRIVER:
            dropped.update(_lines(node))
        if isinstance(node, ast.FunctionDef):
            own = [d for d in node.decorator_list if _called(d).startswith(_DECORATORS)]
            names += [(node.name, _called(decorator)) for decorator in own]
            dropped.update(line for decorator in own for line in _lines(decorator))
    if len(names) != 1:
        raise NotPrinted(f"its text has {len(names)} kernels with a decorator of Inductor's")
    kept = [line for at, line in enumerate(text.splitlines(), 1) if at not in dropped]
    ((name, decorator),) = names
    found = Printed(name, "\n".join(kept).strip() + "\n")
    return found if decorator == _USERS else _without_number(found)


def _called(decorator: ast.expr) -> str:
    """The name of what a decorator calls; its arguments are long."""
    return ast.unparse(decorator.func) if isinstance(decorator, ast.Call) else ""


def _without_number(kernel: Printed) -> Printed:
    name = re.sub(r"_\d+$", "", kernel.name)
    return Printed(name, re.sub(rf"\b{kernel.name}\b", name, kernel.text))


def _lines(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@functools.cache
def _helpers() -> str:
    """A hash of torch's functions that printed kernels call."""
    from torch._inductor.runtime import triton_helpers

    return hashlib.sha256(Path(triton_helpers.__file__).read_bytes()).hexdigest()


def function(kernel: Printed) -> Any:
    """The jitted function of a printed kernel, to be compiled elsewhere; runs the text."""
    filename = f"inductor/{kernel.source[:16]}/{kernel.name}.py"
    module = types.ModuleType(f"opforge_printed_{kernel.source[:16]}")
    return getattr(_filled(module, filename, kernel.text), kernel.name)


def _filled(module: types.ModuleType, filename: str, text: str) -> types.ModuleType:
    """A module after its text was run."""
    # Triton reads a function's source where Python's own tools find it.
    lines = text.splitlines(keepends=True)
    linecache.cache[filename] = (len(text), None, lines, filename)
    module.__file__ = filename
    exec(compile(text, filename, "exec", dont_inherit=True), vars(module))  # noqa: S102
    return module


def module_text(function: Any) -> str:
    """The text of the function's module if Inductor has loaded it from its cache; else empty.

    Packages have it load modules that they print, such as Helion.
    """
    if not function.__module__.startswith(_LOADED):
        return ""
    return "".join(linecache.getlines(function.__code__.co_filename))


@functools.cache
def loaded_module(filename: str, text: str) -> types.ModuleType:
    """Such a module again; runs the text."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return _filled(types.ModuleType(f"{_LOADED}{digest[:16]}"), filename, text)


def when_made(made: Any, then: Callable[[Any], None]) -> Any:
    """What Inductor is given, `made`, if `then` is called with the autotuner that it is.

    Of a future, when somebody waits for it.
    """
    from torch._inductor.codecache import CodeCacheFuture, LambdaFuture

    if isinstance(made, CodeCacheFuture):
        waited_for = getattr(made, "future", None)
        return LambdaFuture(lambda: when_made(made.result(), then), waited_for)
    then(made)
    return made


def file_of(tuner: Any) -> str:
    """Where Inductor wrote the text, if it is still there; it does not say so of templates."""
    return str(tuner.filename or "")


def name_of(tuner: Any) -> str:
    return str(tuner.fn.__name__)


def autotuner(name: str, text: str) -> Any:
    """What Inductor makes of a text, with nothing compiled."""
    from torch._inductor.codecache import _load_triton_kernel_from_source

    # Inductor keeps the one of a text, and may have compiled or tuned it.
    kept: Any = _load_triton_kernel_from_source(name, text)
    made = object.__new__(type(kept))
    vars(made).update(vars(kept))
    made.configs = [*(kept.configs or (result.config for result in kept.compile_results))]
    made.compile_results, made.launchers = [], []
    made.lock, made._cached_launcher = threading.Lock(), None
    return made


def chosen(tuner: Any) -> Any:
    """The configuration with which an autotuner launches, once it has."""
    return tuner.launchers[0].config if len(tuner.launchers) == 1 else None


def configs(tuner: Any) -> list[dict[str, Any]]:
    return [as_dict(config) for config in tuner.configs or ()]


def is_users(tuner: Any) -> bool:
    """Whether the kernel is one of user code."""
    return bool(tuner.custom_kernel)


def obstacle(tuner: Any) -> str:
    """Why a kernel can only be compiled where it is launched; empty if it need not be."""
    if tuner.inductor_meta.get("store_cubin"):
        return "it belongs to C++ code, which keeps its image itself"
    if triton.knobs.nvidia.libdevice_path:
        return "it is compiled with a libdevice other than Triton's"
    return ""


def as_dict(config: Any) -> dict[str, Any]:
    """`{"XBLOCK": 256, "num_warps": 4, "num_stages": 1}`."""
    from torch._inductor.runtime.triton_heuristics import config_to_dict

    return dict(config_to_dict(config))


def as_config(values: Mapping[str, Any]) -> Any:
    """A configuration that Inductor takes as the result of its tuning."""
    from torch._inductor.runtime.triton_heuristics import config_from_dict

    made: Any = config_from_dict(dict(values))
    made.found_by_coordesc = made.found_by_combo_autotune = True
    return made


def size_hints(tuner: Any) -> dict[str, int]:
    """About how large the sizes are that a kernel was printed for: `{"x": 8192}`."""
    hints = tuner.size_hints
    return dict(hints) if isinstance(hints, Mapping) else {}


def distance(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """How far two size hints are apart, in powers of two."""
    if one.keys() != other.keys():
        return math.inf
    return sum(abs(math.log2(max(one[n], 1)) - math.log2(max(other[n], 1))) for n in one)


def specialization(tuner: Any, config: Any) -> tuple[compiled.Specialization, dict[str, Any]]:
    """What Inductor has compiled for a configuration, and with which options."""
    meta = tuner._create_compile_meta(config)
    options = tuner._create_compile_options(config, meta)
    names = tuner.fn.arg_names
    signature = {name: meta["signature"].get(name, "constexpr") for name in names}
    constants = {(names.index(n),): v for n, v in meta["constants"].items() if n in names}
    missing = [n for n, kind in signature.items() if kind == "constexpr"]
    missing = [n for n in missing if n not in meta["constants"]]
    if missing:
        raise compiled.NotPlain(f"{missing[0]} has no value")
    target = types.SimpleNamespace(backend=meta["device_type"], arch=meta["cc"])
    found = compiled.specialized(tuner.fn, signature, constants, meta["configs"][0], target)
    return found, options


def argument_names(tuner: Any) -> tuple[str, ...]:
    """Of what `run` is given by position."""
    code = tuner.launchers[0].__code__
    return tuple(code.co_varnames[: code.co_argcount])


def serve(copied: Any, config: Any, bind: Callable[..., Any], key: str) -> None:
    """Let an `autotuner` launch with `bind(grid)(*arguments)`, which returns None if it did.

    If not, Inductor compiles the configuration, and launches as it always does.
    """
    from torch._inductor.runtime.triton_helpers import get_constexprs
    from torch._inductor.runtime.triton_heuristics import CompileResult, GridExpr

    fn = copied.fn
    # Not one of Inductor's own results, which it would write to its caches.
    result: Any = CompileResult(
        None, config, copied._create_compile_meta(config), copied.inductor_meta
    )
    _, given, _ = result._get_arg_lists(fn.arg_names, get_constexprs(fn))
    passed = [param.name for param in fn.params if not param.is_constexpr]
    grid = GridExpr.from_meta(copied.inductor_meta, config)
    own: list[Any] = []

    def compiled_launcher(*args: Any, stream: Any) -> None:
        if not own:
            own.append(copied._precompile_config(config).make_launcher())
        own[0](*args, stream=stream)

    # As Inductor writes its launchers: the fewest steps from its code to the launch. A kernel's
    # parameters may have any name.
    lines = [
        f"def launcher({', '.join([*given, 'stream'])}):",
        *(f"    {line}" for line in grid.prefix),
        f"    _of_bound = _of_bind(({grid.x_grid}, {grid.y_grid}, {grid.z_grid}))",
        f"    if _of_bound({', '.join(passed)}) is not None:",
        f"        _of_compiled({', '.join([*given, 'stream=stream'])})",
    ]
    scope = {"_of_bind": bind, "_of_compiled": compiled_launcher, "grid_meta": config.kwargs}
    scope |= {"math": math, "torch": torch, "triton": triton}
    exec("\n".join(lines), scope)  # noqa: S102
    made: Any = scope["launcher"]
    made.config, made.cache_hash, made.store_cubin = config, key, False
    made.n_regs = made.n_spills = made.shared = None
    copied.compile_results, copied.launchers, copied.configs = [result], [made], None
