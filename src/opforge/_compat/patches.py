"""The table of everything that opforge replaces in torch, Triton and Python, and how it does it.

Each says when it acts and when it is undone. Those for traces and targets act only in the thread
that traces or has the target, and call the original in any other. Those for recording, serving and
tuning act in every thread until that is stopped. `undo` takes back what is still replaced.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..locks import fork_safe_lock

Make = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Patch:
    """Attributes or entries of one owner, replaced for one reason."""

    owner: str
    names: tuple[str, ...]
    why: str
    scope: str
    undone: str

    @property
    def what(self) -> tuple[str, ...]:
        """The dotted names of all that is replaced."""
        return tuple(f"{self.owner}.{name}" for name in self.names)

    def by(self, name: str, make: Make, owner: Any = None) -> Replacement:
        """Replace one of the names by what `make` returns for the original.

        `owner` says which one, if the table's owner stands for its subclasses or instances.
        """
        assert name in self.names
        return Replacement(self, self._found if owner is None else owner, name, make)

    def on(self, owner: Any, **values: Any) -> PatchScope:
        """Set plain values on one owner, for a while."""
        made = [self.by(name, _constantly(value), owner) for name, value in values.items()]
        return PatchScope(lambda: made)

    @functools.cached_property
    def _found(self) -> Any:
        return pkgutil.resolve_name(self.owner)


class Replacement(NamedTuple):
    patch: Patch
    owner: Any
    name: str
    make: Make


# How long a patch lasts, and when it is undone.
_TRACE = ("trace", "when the last trace ends")
_NATIVE_TRACE = ("native trace", "when the last trace ends")
_TARGET = ("target", "when the last target ends")
_WRAP = "torch._higher_order_ops.triton_kernel_wrap"

KERNEL_RUN = Patch(
    "triton.runtime.jit.KernelInterface",
    ("run",),
    "A launch becomes a node of the graph, however the body reaches the kernel. Replaced in every "
    "subclass that defines it.",
    *_TRACE,
)
KERNEL_ITEM = Patch(
    "triton.runtime.jit.KernelInterface",
    ("__getitem__",),
    "`kernel[grid]` leads to `run` in a thread that traces, also while a folder is served.",
    *_TRACE,
)
COMPILED_KERNEL = Patch(
    "triton.compiler.compiler.CompiledKernel",
    ("__getitem__",),
    "A kernel that is already compiled cannot become a node, so its launch is refused.",
    *_TRACE,
)
WRAPPED_KERNEL = Patch(
    f"{_WRAP}.TraceableTritonKernelWrapper",
    ("__getitem__", "__call__", "run"),
    "A launch through wrap_triton is treated like any other, and still finds its kernel after "
    "torch._dynamo.reset() has emptied torch's table of kernels.",
    *_TRACE,
)
MUTATION_ANALYSIS = Patch(
    _WRAP,
    ("generate_ttir", "get_mutated_tensors"),
    "If torch cannot tell what a kernel writes, it logs that and guesses. opforge reports the "
    "reason, and never assumes that a launch writes nothing. Nor does it take a tensor for written "
    "because an index was read from it: it keeps the MLIR that torch reads, to read it itself.",
    *_TRACE,
)
FUSION_ADVICE = Patch(
    "triton.knobs.language_knobs",
    ("fp_fusion_enabled",),
    "Triton 3.9 advises whoever compiles a kernel to say whether products are fused with sums. "
    "torch does not say it where it analyzes or compiles a launch, and opforge does not pass on "
    "advice that its users cannot follow.",
    "trace, check or package",
    "when the last one ends",
)
POWER_OF_TWO = Patch(
    "triton.next_power_of_2",
    ("__code__",),
    "For a symbolic size it becomes a choice between powers of two. Host code may have imported "
    "the function under any name, so its code is replaced.",
    *_NATIVE_TRACE,
)
BLOCK_SHAPE = Patch(
    "triton._utils.validate_block_shape",
    ("__code__",),
    "A tensor descriptor may have blocks of a symbolic size until it is launched, which then names "
    "the size that must be a constant. Triton's and Gluon's module both import the function.",
    *_NATIVE_TRACE,
)
AUTOCAST = Patch(
    "torch.amp.autocast_mode.autocast",
    ("__init__",),
    "A trace does not cast what a body calls under autocast, and without a GPU torch turns it off "
    "with a warning: a body that turns it on is refused.",
    *_NATIVE_TRACE,
)
MATH = Patch(
    "math",
    ("sqrt", "log2", "log", "exp"),
    "Python would turn a symbolic number into a plain one.",
    *_NATIVE_TRACE,
)
CLOCK = Patch(
    "time",
    (
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "process_time_ns",
        "time",
        "time_ns",
    ),
    "A body is traced again at another time, so that no time becomes a constant.",
    *_NATIVE_TRACE,
)
_NOTED = "A library keeps what host code reads here in a build, so the build says where it does."
ENVIRONMENT = Patch("os._Environ", ("__getitem__",), _NOTED, *_NATIVE_TRACE)
TORCH_FLAGS = Patch(
    "torch",
    (
        "are_deterministic_algorithms_enabled",
        "get_default_dtype",
        "get_float32_matmul_precision",
        "is_autocast_enabled",
    ),
    _NOTED,
    *_NATIVE_TRACE,
)
BACKEND_FLAGS = Patch("torch.backends.ContextProp", ("__get__",), _NOTED, *_NATIVE_TRACE)
MATMUL_FLAGS = Patch("torch.backends.cuda.cuBLASModule", ("__getattr__",), _NOTED, *_NATIVE_TRACE)
GPU_MEMORY = Patch(
    "torch.cuda",
    ("max_memory_allocated", "mem_get_info", "memory_allocated", "memory_reserved"),
    "What a GPU's memory holds is known only when a library runs, so a body may not ask.",
    *_NATIVE_TRACE,
)
HOST_CACHE = Patch(
    "functools.cache",
    ("__call__",),
    "What host code has cached about another GPU must not become a constant of a library, and no "
    "cache may keep what a trace computes. Replaced in the modules, classes and closures where "
    "the traced body finds a cached function or property.",
    *_NATIVE_TRACE,
)
TRITON_DRIVER = Patch(
    "triton.runtime.driver.driver",
    ("_active",),
    "Host code asks Triton about the GPU; a thread that traces for a target gets the target's "
    "answers.",
    *_TARGET,
)
TARGET_INFO = Patch(
    "triton.language.target_info",
    ("current_target",),
    "A kernel that asks for its target hears what it is compiled for, not what the machine has.",
    "while a kernel becomes MLIR",
    "when no thread does that any more",
)
_TORCH_ASKED = (
    "Host code asks torch about the GPU; a thread that traces for a target gets the target's "
    "answers."
)
CUDA = Patch(
    "torch.cuda",
    (
        "current_device",
        "device_count",
        "get_device_capability",
        "get_device_name",
        "get_device_properties",
        "set_device",
        "synchronize",
        "_exchange_device",
        "_maybe_exchange_device",
    ),
    _TORCH_ASKED,
    *_TARGET,
)
ACCELERATOR = Patch(
    "torch.accelerator",
    (
        "current_accelerator",
        "current_device_idx",
        "current_device_index",
        "current_stream",
        "device_count",
        "get_device_capability",
        "is_available",
        "set_device_idx",
        "set_device_index",
        "set_stream",
        "synchronize",
    ),
    _TORCH_ASKED,
    *_TARGET,
)
ACCELERATOR_INDEX = Patch(
    "torch.accelerator.device_index", ("__enter__", "__exit__"), _TORCH_ASKED, *_TARGET
)
INTERPRETER = Patch(
    "triton.runtime.interpreter.InterpreterBuilder",
    (
        "binary_op",
        "unary_op",
        "ternary_op",
        "create_fma",
        "create_dot",
        "cast_impl",
        "create_fp_to_fp",
        "get_bf16",
    ),
    "It computes with the bits of bfloat16 as with integers, cuts off where a GPU rounds, and "
    "gives a comparison the type of what is compared.",
    "opforge is imported while Triton interprets",
    "never",
)
INTERPRETER_REDUCTION = Patch(
    "triton.runtime.interpreter.ReduceScanOpInterface",
    ("apply",),
    "The same, of sums, maxima and scans of bfloat16.",
    "opforge is imported while Triton interprets",
    "never",
)
INTERPRETER_TENSORS = Patch(
    "triton.runtime.interpreter",
    ("_patch_lang_tensor",),
    "numpy 2.4 takes no array of one element for an index, as Triton 3.6 asks.",
    "opforge is imported while Triton interprets",
    "never",
)
DYNAMO_STREAM = Patch(
    "torch._C._dynamo.utils", ("get_current_stream",), _TORCH_ASKED, *_TARGET
)  # since torch 2.15, and bound by torch._dynamo.utils
TRITON_BACKEND = Patch(
    "triton.backends.nvidia.driver.CudaDriver",
    ("is_active",),
    "Packages ask it when they are imported, to see whether Triton can be used; a thread that "
    "traces for an NVIDIA GPU gets yes, one that traces for another no.",
    *_TARGET,
)
TRITON_AMD_BACKEND = Patch(
    "triton.backends.amd.driver.HIPDriver",
    ("is_active",),
    "As above, for targets that are AMD GPUs.",
    *_TARGET,
)
VERSIONS = Patch(
    "torch.version",
    ("__class__",),
    "Host code asks `torch.version.hip` which vendor's GPU it is for; a thread that traces for a "
    "target hears what a torch for that GPU has.",
    *_TARGET,
)
TRITON_PRESENT = Patch(
    "torch.utils._triton",
    ("has_triton",),
    "Functions of packages ask it before they launch; a thread that traces for a target gets yes.",
    *_TARGET,
)
DESCRIPTOR_SUPPORT = Patch(
    "torch.utils._triton",
    ("has_triton_tensor_descriptor_host_tma",),
    "torch asks the machine's GPU instead of the target, and its analysis would mistake a "
    "descriptor for a pointer.",
    *_TARGET,
)
DEVICE_GUARD = Patch(
    "c10::impl::device_guard_impl_registry",
    ("CUDA",),
    "Without CUDA, torch has no device guard for fake CUDA tensors, and indexing one would fail. "
    "It gets the guard for meta tensors, which does nothing.",
    "process, if torch was built without CUDA",
    "by opforge._compat.patches.undo()",
)
TARGET_LAUNCHES = Patch(
    "triton.runtime.jit.JITFunction",
    ("run",),
    "A launch for a GPU that is not there is described to a recording, or fails.",
    *_TARGET,
)
TARGET_ITEMS = Patch(
    "triton.runtime.jit.KernelInterface",
    ("__getitem__",),
    "`kernel[grid]` leads to `run` where launches are described, also while a folder is served.",
    *_TARGET,
)
TARGET_AUTOTUNERS = Patch(
    "triton.runtime.autotuner.Autotuner",
    ("run", "__init__"),
    "While launches are described, an autotuner without a GPU takes its first configuration; one "
    "of a package's own, too.",
    *_TARGET,
)
FAKE_BACKWARD = Patch(
    "torch.autograd",
    ("_engine_run_backward",),
    "Torch's engine asks the machine's accelerator for a stream, also for fake CUDA tensors. "
    "Without one, their backward passes run node by node.",
    *_TARGET,
)
AUTOTUNER_ADVICE = Patch(
    "triton.runtime.autotuner.Autotuner",
    ("cache",),
    "An autotuner asks the tuning table for a configuration before it measures.",
    "while a tuning table is in use",
    "by opforge.use_tuning(None)",
)
_RECORD = ("while launches are recorded", "when the recording ends")
LAUNCHES = Patch(
    "triton.compiler.compiler.CompiledKernel",
    ("run",),
    "A recording counts launches where Triton asks a compiled kernel for what launches it.",
    *_RECORD,
)
AUTOTUNER_CHOICES = Patch(
    "triton.runtime.autotuner.Autotuner",
    ("cache", "_bench"),
    "A recording notes what an autotuner chooses, and does not count launches that only measure.",
    *_RECORD,
)
_SERVE = ("while a folder is served", "by opforge.serving.serve.stop()")
SERVED_LAUNCHES = Patch(
    "triton.runtime.jit.KernelInterface",
    ("__getitem__",),
    "`kernel[grid]` of a kernel that is served binds and launches in C.",
    *_SERVE,
)
SERVED_RUNS = Patch(
    "triton.runtime.jit.JITFunction",
    ("run",),
    "Launches through autotuners and heuristics end here.",
    *_SERVE,
)
SERVED_CHOICES = Patch(
    "triton.runtime.autotuner.Autotuner",
    ("cache",),
    "An autotuner takes the configuration that was recorded, and measures nothing.",
    *_SERVE,
)
INDUCTOR_LAUNCHES = Patch(
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner",
    ("run",),
    "A recording counts launches of compiled graphs, which Inductor makes past Triton's JIT.",
    *_RECORD,
)
INDUCTOR_TEXTS = Patch(
    "torch._inductor.async_compile.AsyncCompile",
    ("triton",),
    "A recording keeps the text of Inductor's kernels, which may be compiled in other processes.",
    *_RECORD,
)
SERVED_TEXTS = Patch(
    "torch._inductor.async_compile.AsyncCompile",
    ("triton",),
    "Kernels of compiled graphs that the folder has are launched from there, not compiled.",
    *_SERVE,
)
SERVED_DRIVER = Patch(
    "triton.backends.nvidia.driver",
    ("CudaUtils",),
    "Triton compiles C when its driver is first asked for anything, and packages ask which GPU "
    "there is. While a folder is served, that waits until Triton launches something itself.",
    *_SERVE,
)
AUTOTUNER_CLOCK = Patch(
    "triton.runtime.autotuner.Autotuner",
    ("_bench", "check_disk_cache"),
    "In Triton's interpreter, which needs a GPU to measure, an autotuner of an op takes its first "
    "configuration. Other autotuners measure.",
    "from the first such op on",
    "by opforge._compat.patches.undo()",
)
FAKE_MODE = Patch(
    "torch._subclasses.FakeTensorMode",
    ("_allow_unsafe_data_ptr_access", "allow_non_fake_inputs"),
    "A body that runs on fake tensors may read real tensors of its module, but no data pointers. "
    "Set on the mode of that run.",
    "one run on fakes",
    "when the run ends",
)
EXAMPLE_INPUTS = Patch(
    "torch.export.ExportedProgram",
    ("_example_inputs",),
    "A check saves programs without their example inputs: fakes and dataclasses could be loaded "
    "only by trusting the file.",
    "one save",
    "when the program is saved",
)
MAIN_MODULE = Patch(
    "sys.modules",
    ("__main__",),
    "A spawned compiler process would run the main script again, and import torch.",
    "start of a compiler process",
    "when the process has started",
)
_FIND = ("import of a recorded module", "when it is imported")
FOUND_EXIT = Patch(
    "os",
    ("_exit",),
    "A script that calls it while it is imported would end the build as if that had worked.",
    *_FIND,
)
FOUND_ARGUMENTS = Patch(
    "sys",
    ("argv",),
    "A script that reads its arguments while it is imported would get those of the build.",
    *_FIND,
)
UNREGISTERED = Patch(
    "torch._ops.OpOverload",
    ("_op",),
    "The C++ handle of an unregistered op dangles. Calling the overload or its packet raises "
    "BadRegistration instead.",
    "process, on that op",
    "never: nothing is left to call",
)
DIRECT_CALL = Patch(
    "torch._ops.OpOverload",
    ("_op",),
    "A call in eager, to which the dispatcher would do nothing, goes to the op's body without it. "
    "Every other call goes on to the original.",
    "process, on that op, from its first call on",
    "when the op is amended, unregistered or served by a library",
)
TAKEN_OVER = Patch(
    "torch._ops.OpOverload",
    ("_op", "_cpp_dispatch_handle"),
    "For a moment an op has no kernels, while those of its source take the place of a loaded "
    "library's, or the library is closed. Calls that begin then wait.",
    "take-over",
    "when the source's kernels are registered",
)


def table() -> tuple[Patch, ...]:
    """Every patch, for the documentation to list."""
    return tuple(value for value in globals().values() if isinstance(value, Patch))


class PatchScope:
    """Replacements that last while any thread is inside.

    With `finds_the_same`, who enters while others are inside finds nothing new to replace.
    """

    def __init__(
        self, find: Callable[[], Iterable[Replacement]], *, finds_the_same: bool = False
    ) -> None:
        self._find = find
        self._finds_the_same = finds_the_same
        self._users = 0
        self._made: list[Replacement] = []

    def __enter__(self) -> None:
        if self._finds_the_same:
            with _lock:
                if self._users:
                    self._users += 1
                    return
        self.refresh(users=1)

    def __exit__(self, *_: object) -> None:
        with _lock:
            self._users -= 1
            if not self._users:
                self._made = [r for r in self._made if not _take_back(r)]

    def refresh(self, users: int = 0) -> None:
        """Also replace what has appeared since the scope was entered."""
        # Outside the lock: finding may import, and wait for a thread that wants the lock.
        found = [*self._find()]
        with _lock:
            self._made += [r for r in found if _put(r)]
            self._users += users


def install(replacement: Replacement) -> None:
    """Replace until it is undone; does nothing the second time."""
    with _lock:
        _put(replacement)


def install_for_good(replacement: Replacement) -> None:
    """Replace where the original must not come back."""
    owner, name = replacement.owner, replacement.name
    setattr(owner, name, replacement.make(read(owner, name)))


def original(owner: Any, name: str) -> Any:
    """What stood at a place before anything replaced it."""
    place = _places.get((id(owner), name))
    return read(owner, name) if place is None else place.original


def undo(patch: Patch | None = None) -> None:
    """Bring the originals back, of one patch or of all.

    If somebody else has replaced ours since, theirs stays, and ours below it calls the original.
    """
    with _lock:
        for place in [*_places.values()]:
            for each in [*place.layers] if patch is None else [patch]:
                place.take_back(each)


class _Place:
    """A name that is replaced at present: its original, and the layers over it in order."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original = self.now = read(owner, name)
        self.layers: dict[Patch, Make] = {}

    def put(self, patch: Patch, make: Make) -> bool:
        if patch in self.layers:
            return False
        if self._is_covered():
            self.original, self.layers = read(self.owner, self.name), {}
            self.now = self.original
        self.layers[patch] = make
        self._write(make(self.now))
        return True

    def take_back(self, patch: Patch) -> bool:
        if patch not in self.layers or self._is_covered():
            return patch not in self.layers
        del self.layers[patch]
        value = self.original
        for make in self.layers.values():
            value = make(value)
        self._write(value)
        if not self.layers:
            del _places[id(self.owner), self.name]
        return True

    def _is_covered(self) -> bool:
        """Whether somebody else has replaced ours."""
        return bool(read(self.owner, self.name) != self.now)

    def _write(self, value: Any) -> None:
        self.now = value
        if value is ABSENT:
            delattr(self.owner, self.name)
        elif isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


_lock = fork_safe_lock()
_places: dict[tuple[int, str], _Place] = {}


def _put(replacement: Replacement) -> bool:
    key = id(replacement.owner), replacement.name
    if key not in _places:
        _places[key] = _Place(replacement.owner, replacement.name)
    return _places[key].put(replacement.patch, replacement.make)


def _take_back(replacement: Replacement) -> bool:
    place = _places.get((id(replacement.owner), replacement.name))
    return place is None or place.take_back(replacement.patch)


def _constantly(value: Any) -> Make:
    return lambda _original: value


def read(owner: Any, name: Any) -> Any:
    """What stands at a place."""
    if isinstance(owner, dict):
        return owner[name]
    # `getattr` would also find what a class inherits.
    return vars(owner).get(name, ABSENT) if isinstance(owner, type) else getattr(owner, name)


# In place of an original, where a class has no such name of its own.
ABSENT = object()
