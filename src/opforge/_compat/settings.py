"""What a program can set that changes the code Triton compiles: variables, and its knobs.

Triton reads them while it compiles, so two processes with the same kernels may have other code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars

Settings = tuple[tuple[str, str], ...]

# A knob is its variable, or what a program has assigned. Which `ptxas` assembles is not among
# them: it makes the same program of the same PTX. Seen in 3.7.1.
_KNOBS = {
    "TRITON_F32_DEFAULT": ("language", "fp32_default", None),
    "TRITON_DEFAULT_FP_FUSION": ("language", "default_fp_fusion", True),
    "TRITON_DEBUG": ("runtime", "debug", False),
    "TRITON_OVERRIDE_ARCH": ("runtime", "override_arch", None),
    "TRITON_INSTRUMENTATION_MODE": ("compilation", "instrumentation_mode", ""),
    "TRITON_ENABLE_ASAN": ("compilation", "enable_asan", False),
    "TRITON_KERNEL_OVERRIDE": ("compilation", "override", False),
    "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS": ("compilation", "allow_non_constexpr_globals", False),
    "DISABLE_PTXAS_OPT": ("nvidia", "disable_ptxas_opt", False),
    "PTXAS_OPTIONS": ("nvidia", "ptxas_options", None),
    "TRITON_MOCK_PTX_VERSION": ("nvidia", "mock_ptx_version", None),
    "TRITON_LIBDEVICE_PATH": ("nvidia", "libdevice_path", None),
}
# They print, or say where the compiler stands in the source, or are for other GPUs.
_INDIFFERENT = re.compile(
    "AMDGCN_.*|TRITON_HIP_.*|.*_DUMP.*|.*_TIMING|.*_DEBUG|MLIR_DISABLE_MULTITHREADING|"
    "USE_IR_LOC|TRITON_DISABLE_LINE_INFO|LLVM_EXTRACT_DI_LOCAL_VARIABLES|TRITON_REPRODUCER_PATH"
)
# Those that Triton reads at every launch, or that programs assign between launches.
_WATCHED = (
    "TRITON_F32_DEFAULT",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_DEBUG",
    "TRITON_INSTRUMENTATION_MODE",
)


def is_interpreted() -> bool:
    """Whether Triton interprets kernels, and compiles none."""
    return bool(knobs.runtime.interpret)


def current() -> Settings:
    """What is set and not as Triton has it by default, by the name of its variable."""
    variables = get_cache_invalidating_env_vars().items()
    found = {
        name: value
        for name, value in variables
        if name not in _KNOBS and not _INDIFFERENT.fullmatch(name) and value not in {"", "false"}
    }
    for name, (group, knob, default) in _KNOBS.items():
        value = getattr(getattr(knobs, group), knob)
        if value != default:
            found[name] = _shown(value)
    return tuple(sorted(found.items()))


def _shown(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def difference(then: Settings, now: Settings) -> tuple[str, str | None, str | None] | None:
    """The first variable that differs, with what it was and what it is; None if unset."""
    one, other = dict(then), dict(now)
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            return name, one.get(name), other.get(name)
    return None


def told(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def watches() -> Iterator[tuple[Mapping[str, Any], str, tuple[Any, ...], str]]:
    """Knobs that a program may assign between launches, with what they are now."""
    for name in _WATCHED:
        group, knob, _ = _KNOBS[name]
        owner = getattr(knobs, group)
        reason = f"triton.knobs.{group}.{knob} has changed"
        yield vars(owner), knob, (getattr(owner, knob),), reason
