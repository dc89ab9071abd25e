"""Answers for Triton and torch.cuda on behalf of a GPU that is not there.

Triton has one active driver per process, and `torch.cuda` one set of functions. While any thread
traces for a target, stand-ins replace both: that thread gets the target's answers, every other
thread gets what it always got.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import importlib
import pathlib
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..arch import Arch
from . import described, fakes, kernels, patches
from .described import NeedsRealGpu


@dataclass(frozen=True)
class Gpu:
    """What host code can ask about a GPU; the defaults are those of a common board."""

    arch: Arch
    name: str = "NVIDIA GPU"
    multi_processor_count: int = 128
    shared_memory_per_block_optin: int = 101376
    shared_memory_per_multiprocessor: int = 102400
    total_memory: int = 24 << 30
    l2_cache_size: int = 48 << 20
    warp_size: int = 32
    max_threads_per_multi_processor: int = 1536
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    clock_rate: int = 1_700_000
    memory_clock_rate: int = 2_000_000
    memory_bus_width: int = 384

    @property
    def is_amd(self) -> bool:
        return self.arch.is_amd

    @property
    def capability(self) -> tuple[int, int]:
        return self.arch.capability

    @property
    def key(self) -> str:
        """Tells it from every GPU that answers otherwise."""
        return repr(self)

    def properties(self) -> types.SimpleNamespace:
        """As `torch.cuda.get_device_properties` returns them."""
        names = [f for f in self.__dataclass_fields__ if f != "arch"]
        major, minor = self.capability
        found = {n: getattr(self, n) for n in names}
        if self.arch.is_amd:
            found["gcnArchName"] = self.arch.of_hip
        return types.SimpleNamespace(
            **found, major=major, minor=minor, L2_cache_size=found["l2_cache_size"]
        )


_now: contextvars.ContextVar[Gpu | None] = contextvars.ContextVar("opforge_target", default=None)


class _TargetState(threading.local):
    """What Dynamo can guard on, which cannot read a context variable."""

    def __init__(self) -> None:
        # Set in every thread: Dynamo does not notice that an attribute covers its class's.
        self.target: str | None = None


_state = _TargetState()


def current() -> Gpu | None:
    """The GPU that the calling thread traces for, if any."""
    return _now.get()


@contextlib.contextmanager
def standing_in(gpu: Gpu, *, compiling: bool = False) -> Iterator[None]:
    """Answer this thread's questions for `gpu`.

    With `compiling`, also where Dynamo compiles, and launches are described to who records them.
    """
    if compiling:
        # Its tables hold torch's functions by identity; they must be made of the originals.
        importlib.import_module("torch._dynamo")
    ensure_device_guard()
    token, before = _now.set(gpu), _state.target
    _state.target = gpu.key
    try:
        with STAND_INS, described.launches() if compiling else contextlib.nullcontext():
            yield
    finally:
        _now.reset(token)
        _state.target = before


def has_driver() -> bool:
    """Whether Triton finds a GPU, or somebody has set a driver; torch, where there is no Triton."""
    if not kernels.load_triton():
        return torch.cuda.is_available()
    config = _config()
    if config._active is not None and not isinstance(config._active, _StandIn):
        return True
    # Asked of the machine, also in a thread that traces for a target.
    token = _now.set(None)
    try:
        return config.default is not None
    except RuntimeError:
        return False
    finally:
        _now.reset(token)


class _StandIn:
    """A Triton driver: answers for the thread's target, or else passes on to the machine's."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def get_current_target(self) -> Any:
        gpu = _now.get()
        if gpu is None:
            return self._machine().get_current_target()
        from triton.backends.compiler import GPUTarget

        return GPUTarget(gpu.arch.backend, gpu.arch.of_triton, gpu.warp_size)

    def get_current_device(self) -> int:
        return 0 if _now.get() else int(self._machine().get_current_device())

    def get_device_interface(self) -> Any:
        return torch.cuda if _now.get() else self._machine().get_device_interface()

    def get_active_torch_device(self) -> Any:
        if _now.get():
            return torch.device("cuda", 0)
        return self._machine().get_active_torch_device()

    @property
    def utils(self) -> Any:
        return _Utils() if _now.get() else self._machine().utils

    def __getattr__(self, name: str) -> Any:
        gpu = _now.get()
        if gpu is not None:
            raise NeedsRealGpu(f"{name} needs a GPU; this thread traces for {gpu.arch} without one")
        return getattr(self._machine(), name)

    def _machine(self) -> Any:
        return self._real if self._real is not None else _config().default


def triton_properties(gpu: Any) -> dict[str, int]:
    """Properties of a GPU as Triton names them, from torch's."""
    return {
        "max_shared_mem": gpu.shared_memory_per_block_optin,
        "max_num_regs": gpu.regs_per_multiprocessor,
        "multiprocessor_count": gpu.multi_processor_count,
        "warpSize": gpu.warp_size,
        "sm_clock_rate": gpu.clock_rate,
        "mem_clock_rate": gpu.memory_clock_rate,
        "mem_bus_width": gpu.memory_bus_width,
    }


class _Utils:
    def get_device_properties(self, _device: Any) -> dict[str, int]:
        return triton_properties(_now.get())

    def __getattr__(self, name: str) -> Any:
        raise NeedsRealGpu(f"the driver's {name} needs a GPU")


def _config() -> Any:
    from triton.runtime import driver

    return driver


@functools.cache
def _stand_ins() -> list[patches.Replacement]:
    triton = [patches.TRITON_DRIVER.by("_active", _StandIn)] if kernels.load_triton() else []
    return [
        *triton,
        *(patches.CUDA.by(name, _answering(answer)) for name, answer in _ANSWERS.items()),
        *(
            patches.ACCELERATOR.by(name, _answering(answer))
            for name, answer in _ACCELERATOR_ANSWERS.items()
            if hasattr(torch.accelerator, name)
        ),
        *(
            patches.ACCELERATOR_INDEX.by(name, _answering(lambda _: None))
            for name in patches.ACCELERATOR_INDEX.names
        ),
        *_of_triton(),
        patches.VERSIONS.by("__class__", _versions),
        patches.FAKE_BACKWARD.by("_engine_run_backward", fakes.own_backward),
        patches.DESCRIPTOR_SUPPORT.by(
            "has_triton_tensor_descriptor_host_tma",
            _answering(lambda gpu: not gpu.is_amd and gpu.arch.is_hopper_or_later),
        ),
    ]


def _of_triton() -> list[patches.Replacement]:
    """None without Triton's backends, as where there is no Triton."""
    asked = {"nvidia": patches.TRITON_BACKEND, "amd": patches.TRITON_AMD_BACKEND}
    found = [
        patch.by("is_active", functools.partial(_active, is_amd=name == "amd"))
        for name, patch in asked.items()
        if name in _backends()
    ]
    if found:
        found.append(patches.TRITON_PRESENT.by("has_triton", _answering(lambda _: True)))
    return found


def _versions(module: type[types.ModuleType]) -> type[types.ModuleType]:
    """The class of `torch.version`, with the answers of a build of torch for the target's vendor.

    `hip` and `cuda` are plain variables of the module; only its class can tell threads apart.
    """

    class Versions(module):  # type: ignore[misc,valid-type]
        @property
        def hip(self) -> Any:
            gpu = _now.get()
            if gpu is None:
                return vars(self)["hip"]
            return vars(self)["hip"] or _HIP_VERSION if gpu.is_amd else None

        @property
        def cuda(self) -> Any:
            gpu = _now.get()
            return None if gpu is not None and gpu.is_amd else vars(self)["cuda"]

    return Versions


# A version that a torch for AMD GPUs has, where the torch here is not one.
_HIP_VERSION = "7.1.0"


STAND_INS = patches.PatchScope(lambda: [*_stand_ins(), *_of_dynamo()], finds_the_same=True)


def _of_dynamo() -> Iterator[patches.Replacement]:
    """What compiled code asks for before it calls its graph, since torch 2.15."""
    in_c = sys.modules.get("torch._C._dynamo.utils")
    if not hasattr(in_c, "get_current_stream"):
        return
    # Dynamo takes it from C where it is imported, perhaps under a target.
    for module in (in_c, sys.modules.get("torch._dynamo.utils")):
        if module is not None:
            yield patches.DYNAMO_STREAM.by("get_current_stream", _current_stream, module)


def _answering(answer: Callable[[Gpu], Any]) -> patches.Make:
    @functools.cache
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                target = _state.target
                return original(*args, **kwargs) if target is None else fold(target)
            gpu = _now.get()
            return original(*args, **kwargs) if gpu is None else answer(gpu)

        def fold(_target: str) -> Any:
            """A constant of a compiled function, which is compiled again for another target."""
            gpu = _now.get()
            assert gpu is not None
            return answer(gpu)

        vars(fold)["_dynamo_marked_constant"] = True
        return ask

    return make


_ANSWERS: dict[str, Callable[[Gpu], Any]] = {
    "current_device": lambda _: 0,
    "device_count": lambda _: 1,
    "get_device_capability": lambda gpu: gpu.capability,
    "get_device_name": lambda gpu: gpu.name,
    "get_device_properties": lambda gpu: gpu.properties(),
    "set_device": lambda _: None,
    "synchronize": lambda _: None,
    # `torch.cuda.device(...)` calls these on entry and exit.
    "_exchange_device": lambda _: 0,
    "_maybe_exchange_device": lambda _: 0,
}


class _Stream:
    """The stream of a GPU that is not there: nothing is ever under way on it."""

    device = torch.device("cuda", 0)
    device_type = 1
    device_index = 0
    stream_id = 0

    def is_capturing(self) -> bool:
        return False

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


@functools.cache
def _stored_dtypes() -> tuple[torch.dtype, ...]:
    found = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    return tuple(dict.fromkeys(found))


_ACCELERATOR_ANSWERS: dict[str, Callable[[Gpu], Any]] = {
    "current_accelerator": lambda _: torch.device("cuda"),
    "current_device_idx": lambda _: 0,
    "current_device_index": lambda _: 0,
    "current_stream": lambda _: _Stream(),
    "device_count": lambda _: 1,
    # As torch answers for a CUDA device: all dtypes that it can store.
    "get_device_capability": lambda _: {"supported_dtypes": {*_stored_dtypes()}},
    "is_available": lambda _: True,
    "set_device_idx": lambda _: None,
    "set_device_index": lambda _: None,
    "set_stream": lambda _: None,
    "synchronize": lambda _: None,
}
_current_stream = _answering(lambda _: _Stream())


def _backends() -> Mapping[str, Any]:
    try:
        from triton.backends import backends
    except ImportError:
        return {}
    found: Mapping[str, Any] = backends
    return found


@functools.cache
def _active(original: Any, *, is_amd: bool) -> Any:
    ask = _answering(lambda gpu: gpu.is_amd is is_amd)(original.__func__)
    return staticmethod(ask)


def ensure_device_guard() -> None:
    """Let fake CUDA tensors be indexed on a build of torch without CUDA.

    Indexing, `.contiguous()` and `copy_` take a C++ device guard, and such a build has none for
    CUDA. The guard for meta tensors does nothing, which is right for fake ones.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        guards = _device_guards()
        patches.install(patches.DEVICE_GUARD.by("CUDA", lambda guard: guard or guards.meta, guards))


class _DeviceGuards:
    """Two entries of c10's table of device guards, which it keeps by c10::DeviceType."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"))
        symbol = "_ZN3c104impl26device_guard_impl_registryE"
        self._table = (ctypes.c_void_p * 15).in_dll(library, symbol)
        self.meta = self._table[14]

    @property
    def CUDA(self) -> int | None:  # noqa: N802  # c10's name, as the table of patches has it
        return self._table[1]

    @CUDA.setter
    def CUDA(self, guard: int | None) -> None:  # noqa: N802
        self._table[1] = guard


_device_guards = functools.cache(_DeviceGuards)
