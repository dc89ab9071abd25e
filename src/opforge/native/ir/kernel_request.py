"""A kernel variant to be compiled, between the trace that asks for it and the compiler."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...arch import Arch

# How the location of a kernel begins that opforge wrote for torch calls.
OWN_SOURCE = "<opforge "


@dataclass(frozen=True)
class Request:
    """What to compile: a jitted function with the types and constants of one variant.

    `signature` has every parameter of the function in order, constants as "constexpr":

        (("x_ptr", "*fp16"), ("n", "i32"), ("BLOCK", "constexpr"))

    `divisible` holds the parameters, by position, that are multiples of 16; `options` is what
    Triton takes at a launch: num_warps, num_stages, maxnreg, ...
    """

    fn: Any = field(compare=False, repr=False)
    name: str
    location: str
    qualified_name: str
    # A hash of the function's source and of everything that its code depends on.
    source: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[int, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @functools.cached_property
    def key(self) -> str:
        """`silu_kernel_1f2e3d4c5b6a`: the same request has it on every machine."""
        content = (self.source, self.signature, self.constants, self.divisible, self.options)
        return f"{self.name}_{hashlib.sha256(repr(content).encode()).hexdigest()[:12]}"

    @property
    def types(self) -> tuple[str, ...]:
        """Of the parameters that a launch passes, in order."""
        return tuple(t for _, t in self.signature if t != "constexpr")

    def __str__(self) -> str:
        given = dict(self.constants)
        shown = [
            f"{n}={given[n]!r}" if t == "constexpr" else f"{n}: {t}" for n, t in self.signature
        ]
        return f"{self.name}({', '.join(shown)})"


# By key, with the architectures that each is needed on.
Requests = dict[str, tuple[Request, tuple[Arch, ...]]]


def want(requests: Requests, request: Request, archs: Iterable[Arch]) -> None:
    """Add a request, or more architectures to it."""
    known = requests.get(request.key, (request, ()))[1]
    requests[request.key] = (request, tuple(sorted({*known, *archs})))
