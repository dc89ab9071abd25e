"""What a program can set that changes the code Triton compiles: variables, and its knobs.

Triton reads them while it compiles, so two processes with the same kernels may have other code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars

from . import patches

Settings = tuple[tuple[str, str], ...]

# A knob is its variable, or what a program has assigned. Which `ptxas` assembles is not among
# them: it makes the same program of the same PTX. Seen in 3.7.1; those that a Triton lacks are at
# their default there.
_KNOBS = {
    "TRITON_F32_DEFAULT": ("language", "fp32_default", None),
    # Always named: on by default up to Triton 3.9, off from 3.10 on.
    "TRITON_DEFAULT_FP_FUSION": ("language", "default_fp_fusion", None),
    "TRITON_FORCE_DISABLE_FP_FUSION": ("language", "force_disable_fp_fusion", False),
    "TRITON_DEBUG": ("runtime", "debug", False),
    "TRITON_OVERRIDE_ARCH": ("runtime", "override_arch", None),
    "TRITON_INSTRUMENTATION_MODE": ("compilation", "instrumentation_mode", ""),
    "TRITON_FPSAN_HOMOMORPHIC_CASTS": ("compilation", "fpsan_homomorphic_casts", False),
    "TRITON_ENABLE_ASAN": ("compilation", "enable_asan", False),
    "TRITON_KERNEL_OVERRIDE": ("compilation", "override", False),
    "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS": ("compilation", "allow_non_constexpr_globals", False),
    "DISABLE_PTXAS_OPT": ("nvidia", "disable_ptxas_opt", False),
    "PTXAS_OPTIONS": ("nvidia", "ptxas_options", None),
    "TRITON_MOCK_PTX_VERSION": ("nvidia", "mock_ptx_version", None),
    "TRITON_LIBDEVICE_PATH": ("nvidia", "libdevice_path", None),
}
# What it was where a recording does not name it.
_UNNAMED = {"TRITON_DEFAULT_FP_FUSION": "1"}
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


def jit_options(options: Mapping[str, Any], *, debug: bool) -> dict[str, Any]:
    """The options of a launch of a kernel, with those that the JIT takes from knobs."""
    compilation = knobs.compilation
    known = {
        **with_fusion(options),
        "debug": options.get("debug", debug) or knobs.runtime.debug,
        "instrumentation_mode": compilation.instrumentation_mode,
    }
    if hasattr(compilation, "fpsan_homomorphic_casts"):  # since Triton 3.9
        known["fpsan_homomorphic_casts"] = compilation.fpsan_homomorphic_casts
    return known


def with_fusion(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that say whether products are fused with sums.

    Triton 3.9 warns of those that do not, because 3.10 changes its default.
    """
    fuses = options.get("enable_fp_fusion")
    default = knobs.language.default_fp_fusion
    return {**options, "enable_fp_fusion": default if fuses is None else fuses}


def without_fusion_advice() -> Iterator[patches.Replacement]:
    """Replace what warns where nobody says whether to fuse; before Triton 3.9 nothing does."""
    if hasattr(knobs.language, "fp_fusion_enabled"):
        yield patches.FUSION_ADVICE.by("fp_fusion_enabled", _unadvised)


@functools.cache
def _unadvised(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def fp_fusion_enabled(self: Any, requested: Any) -> bool:
        return original(self, self.default_fp_fusion if requested is None else requested)

    return fp_fusion_enabled


def current() -> Settings:
    """What is set and not as every Triton has it by default, by the name of its variable."""
    variables = get_cache_invalidating_env_vars().items()
    found = {
        name: value
        for name, value in variables
        if name not in _KNOBS and not _INDIFFERENT.fullmatch(name) and value not in {"", "false"}
    }
    for name, (group, knob, default) in _KNOBS.items():
        value = getattr(getattr(knobs, group), knob, default)
        if value != default:
            found[name] = _shown(value)
    return tuple(sorted(found.items()))


def _shown(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def difference(then: Settings, now: Settings) -> tuple[str, str | None, str | None] | None:
    """The first variable that differs, with what it was and what it is; None if unset."""
    one, other = _UNNAMED | dict(then), _UNNAMED | dict(now)
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
