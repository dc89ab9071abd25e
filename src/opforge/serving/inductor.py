"""Kernels of compiled graphs from a folder: Inductor compiles nothing, and launches as it does.

Inductor hands each kernel over as text. If the folder has that text with the types, constants and
options that are asked for, what Inductor gets back launches from the folder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import _compat
from ..native.ir.kernels import Choice, ServedFunction, ServedInstance, ServedVariant
from ..recording.constants import (
    LOCATION,
    MODULE,
    CannotRecord,
    encode,
    show,
)
from .manifest import DESCRIPTOR, kind_of
from .served_folder import Counted, Gap, ServedFolder


class CompiledGraphs:
    """What a folder has of compiled graphs; `kernel` is asked for each text."""

    def __init__(self, server: ServedFolder) -> None:
        self._server = server
        self._known: dict[str, list[ServedFunction]] = {}
        for kernel in server.manifest.functions:
            if kernel.module == MODULE:
                self._known.setdefault(kernel.source.partition("-")[0], []).append(kernel)

    def kernel(self, name: str, text: str) -> Any:
        """An autotuner of Inductor's that launches from the folder; None leaves it to Inductor."""
        kernels = _compat.inductor_kernels
        if _compat.settings.is_interpreted():
            return None
        own = name
        try:
            printed = kernels.printed(text)
            own = printed.name
            return self._served(name, text, printed)
        except (
            _NotHere,
            kernels.NotPrinted,
            _compat.kernel_hash.NoText,
            _compat.compiled.NotPlain,
            CannotRecord,
        ) as error:
            self._hand_over(own, str(error))
            return None

    def _served(self, name: str, text: str, printed: _compat.inductor_kernels.Printed) -> Any:
        server, kernels = self._server, _compat.inductor_kernels
        known = self._known.get(printed.source)
        if known is None:
            others = (kernel for known in self._known.values() for kernel in known)
            if any(kernel.name == printed.name for kernel in others):
                raise _NotHere(f"{server.folder} has {printed.name} with a different text")
            raise _NotHere(f"{printed.name} is not in {server.folder}")
        tuner = kernels.autotuner(name, text)
        source = kernels.source_of(printed, tuner.fn)
        kernel = next((kernel for kernel in known if kernel.source == source), None)
        if kernel is None:
            raise _NotHere(
                f"{server.folder} was built when something that {printed.name} uses was another"
            )
        obstacle = server.set_otherwise() or kernels.obstacle(tuner)
        if obstacle:
            raise _NotHere(obstacle)
        config, instance = self._fitting(tuner, kernel)
        server.configure()
        made = self._made(printed.name, tuner, instance)
        kernels.serve(tuner, config, made.bind, f"opforge-{source}")
        return tuner

    def _fitting(self, tuner: Any, kernel: ServedFunction) -> tuple[Any, ServedInstance]:
        """The recorded configuration for the nearest sizes, and what was built for it."""
        kernels = _compat.inductor_kernels
        missing = "no configuration was recorded that its autotuner has"
        for choice in self._nearest(tuner, kernel):
            config = kernels.as_config(dict(choice.config))
            asked, types = _asked(tuner, config)
            for instance in kernel.instances:
                if _told(dict(instance.constants), dict(instance.options)) == asked:
                    fitting = tuple(v for v in instance.variants if _fits(instance, v, types))
                    if fitting:
                        return config, instance._replace(variants=fitting)
            missing = f"nothing was built for {asked} with arguments ({', '.join(types)})"
        raise _NotHere(missing)

    def _nearest(self, tuner: Any, kernel: ServedFunction) -> list[Choice]:
        kernels = _compat.inductor_kernels
        hints, arch = kernels.size_hints(tuner), str(_compat.device.device_arch())
        own = kernels.configs(tuner)
        if self._server.tune_missing and len(own) > 1:
            raise _NotHere("tune_missing=True lets it measure its configurations")
        # A user's kernel has a grid for each of its configurations, and for no others.
        fitting = [
            c for c in kernel.choices if not kernels.is_users(tuner) or dict(c.config) in own
        ]

        def rank(choice: Choice) -> tuple[float, bool]:
            return kernels.distance(dict(choice.key), hints), choice.arch != arch

        return sorted(fitting, key=rank)

    def _made(self, name: str, tuner: Any, instance: ServedInstance) -> Any:
        """A kernel of the extension that takes what is not a constant."""
        server = self._server
        # What was assumed is checked at each launch, so that nothing need be left unassumed; widths
        # are those that Inductor has printed, whatever the values.
        params = tuple(
            (param.name, False, False, None, True, True, True)
            for param in tuner.fn.params
            if not param.is_constexpr
        )

        def hand_over(_grid: Any, _args: Any, _kwargs: Any, reason: str, *_more: str) -> bool:
            self._hand_over(name, reason)
            # A launch that was made returns None.
            return False

        classes = _compat.tma.descriptor_classes(gluon=_compat.kernels.is_gluon(tuner.fn))
        made = server.extension.Kernel(name, params, hand_over, (), {}, LOCATION, classes)
        images = [(variant.types, server.image(variant.kernel)) for variant in instance.variants]
        made.add((), tuple(map(_compat.compiled.dtype_of, instance.kinds)), {}, images)
        key = f"{MODULE}:{name}"
        server.served.setdefault(key, Counted()).kernels.append(made)
        return made

    def _hand_over(self, name: str, reason: str) -> None:
        self._server.tell(f"{MODULE}:{name}", Gap(reason), "compiled by Inductor")


class _NotHere(Exception):
    """Why the folder does not serve a kernel."""


def _asked(tuner: Any, config: Any) -> tuple[str, list[str]]:
    """What Inductor asks for: constants and options, and the types of the arguments."""
    found, options = _compat.inductor_kernels.specialization(tuner, config)
    declared = {param.name for param in tuner.fn.params if param.is_constexpr}
    constants = {name: encode(v) for name, v in found.constants.items() if name in declared}
    names = [param.name for param in tuner.fn.params if not param.is_constexpr]
    types = [found.types.get(name, "none") for name in names]
    return _told(constants, {name: encode(v) for name, v in options.items()}), types


def _told(constants: dict[str, Any], options: dict[str, Any]) -> str:
    named = [*sorted(constants.items()), *sorted(options.items())]
    return ", ".join(f"{name}={show(value)}" for name, value in named)


def _fits(instance: ServedInstance, variant: ServedVariant, types: list[str]) -> bool:
    """Whether a variant takes the types; widths count, as Inductor sees to it that none overflows.

    What a variant assumes beyond them is checked at each launch.
    """
    kinds = list(map(kind_of, types)) == list(instance.kinds)
    assumed = {"1", "none", "p", "p16", DESCRIPTOR}
    pairs = zip(variant.types, types, strict=True)
    return kinds and all(t in assumed or t.partition(":")[0] == asked for t, asked in pairs)


def asking(asked: Callable[[str, str], Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor's compiler behind `asked(name, text)`, whose answer it takes unless that is None."""

    @functools.wraps(original)
    def triton(self: Any, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:
        found = asked(kernel_name, source_code) if device_str == "cuda" else None
        return original(self, kernel_name, source_code, device_str) if found is None else found

    return triton
