"""Whether the kernels of a call compile, where there is no GPU that they could run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _compat
from ..errors import BuildFailed, last_line
from ..native.ir.kernel_request import Request, Requests, want
from .reasons import short_reason
from .subject import Subject


def uncompiled(subject: Subject) -> tuple[str, str]:
    """Which kernel does not compile for the check's GPU and why, and what was not compiled."""
    if "uncompiled" not in subject.cached:
        subject.cached["uncompiled"] = _uncompiled(subject)
    found: tuple[str, str] = subject.cached["uncompiled"]
    return found


def _uncompiled(subject: Subject) -> tuple[str, str]:
    # Imported only here: it brings Triton, which ops of plain torch do without.
    from ..native.kernels.compile import compile_all  # noqa: PLC0415

    launches = _Launches()
    _compat.described.listen(launches)
    try:
        with subject.targeting():
            mode, call = subject.fakes()
            with mode:
                # Not the op, whose fake may launch nothing.
                subject.entry.fn(*call.args, **call.kwargs)
    except Exception as error:  # noqa: BLE001  # whatever a body does with tensors without contents
        return "", f"its kernels were not compiled: {short_reason(error)}"
    finally:
        _compat.described.listen_no_more(launches)
    try:
        compile_all(launches.requests.values())
    except BuildFailed as error:
        if not error.failed:
            raise
        (key, arch), text = next(iter(error.failed.items()))
        request = launches.requests[key][0]
        return f"{request.name} does not compile for {arch}: {_shortly(text, request)}", ""
    return "", "; ".join(launches.odd)


def _shortly(text: str, request: Request) -> str:
    """`ops.py:9: AttributeError: ...` of Triton's message, which quotes the kernel's source."""
    return f"{last_line(text)} ({request.location})"


class _Launches:
    """What is launched, as requests to the compiler."""

    def __init__(self) -> None:
        self.requests: Requests = {}
        self.odd: list[str] = []

    def described(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        stood = tuple(map(_compat.fakes.stand_in_pointer, args))
        named = {name: _compat.fakes.stand_in_pointer(value) for name, value in kwargs.items()}
        try:
            found = _compat.compiled.of_launch(fn, stood, named)
        except _compat.compiled.NotPlain as error:
            self.odd.append(f"{_compat.kernels.kernel_name(fn)} was not compiled: {error}")
            return
        own = {"grid", "warmup", *fn.arg_names} - _compat.served.options_of_parameters(fn)
        options = {name: value for name, value in kwargs.items() if name not in own}
        values = {**found.constants, **dict.fromkeys(found.ones, 1)}
        names = [param.name for param in fn.params]
        request = Request(
            fn,
            *_compat.kernels.name_and_location(fn),
            f"{fn.fn.__module__}:{fn.fn.__qualname__}",
            _compat.kernel_hash.hash_or_unique(fn).digest,
            tuple((n, "constexpr" if n in values else found.types[n]) for n in names),
            tuple((n, values[n]) for n in names if n in values),
            tuple(i for i, n in enumerate(names) if n in found.divisible),
            tuple(sorted(_compat.served.told_options(fn, options).items())),
        )
        want(self.requests, request, (found.arch,))

    def unmeasured(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None:
        """Of an autotuner's configurations the first is compiled."""
