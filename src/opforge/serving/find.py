"""Finds the kernels of a recording again, and sees that they are the same.

It imports what the recording names, scripts among it, without being ended or misread by it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import linecache
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

from .. import _compat
from .._compat import patches
from ..errors import NotFound, OpforgeError
from ..gpu_target import gpu_of
from ..native.targets import load_module
from ..recording.constants import CannotRecord
from ..recording.model import Inside, RecordedKernel, Recording, restore

_AGAIN = "record again with `opforge record`"
# How deep modules keep kernels in lists and dicts.
_NESTED = 2


def recorded_archs(recording: Recording) -> list[str]:
    """Those of the GPUs that ran it, or that it was traced for, the first launch's first."""
    archs = (variant.arch for kernel in recording.kernels for variant in kernel.variants)
    return list(dict.fromkeys(archs))


def target_of(recording: Recording) -> AbstractContextManager[None]:
    """As if on the GPU of a recording, also where there is none."""
    archs = recorded_archs(recording)
    if not archs:
        return contextlib.nullcontext()
    return _compat.driver.standing_in(gpu_of(archs[0]))


def find(kernel: RecordedKernel) -> Any:
    """The jitted function that was recorded; raises `NotFound`."""
    _refuse_other_settings(kernel)
    if kernel.text:
        return _printed(kernel)
    name = f"{kernel.module}:{kernel.name}"
    with importable_from(kernel.path):
        if kernel.inside is not None:
            return _made_again(name, kernel.source, kernel.location, kernel.inside)
        return find_function(name, kernel.source, kernel.location, kernel.module_text)


def _refuse_other_settings(kernel: RecordedKernel) -> None:
    """Raise if Triton would compile different code here from where the kernel was recorded."""
    settings = _compat.settings
    found = settings.difference(kernel.settings, settings.current())
    if found is not None:
        name, then, now = found
        raise NotFound(
            f"{kernel.name} was recorded with a different {name}, "
            "which changes what Triton compiles",
            found=f"{settings.told(now)}, but {settings.told(then)} was recorded",
            location=kernel.location,
            fix=f"build without {name}" if then is None else f"build with {name}={then}",
        )


def _printed(kernel: RecordedKernel) -> Any:
    """The jitted function of a text that Inductor printed; runs the text."""
    printed = _compat.inductor_kernels.Printed(kernel.name, kernel.text)
    if printed.source != kernel.source.partition("-")[0]:
        raise NotFound(
            f"{kernel.name}, which Inductor printed, calls functions of a different torch",
            fix="build with the torch that the program was recorded with",
        )
    try:
        fn = _compat.inductor_kernels.function(printed)
    except Exception as error:
        raise NotFound(
            f"the text of {kernel.name}, which Inductor printed, cannot be run",
            found=f"{type(error).__name__}: {error}",
            fix="build where the recorded program runs, with its packages",
        ) from error
    hashed = functools.partial(_compat.inductor_kernels.source_of, printed)
    return _same(kernel.name, kernel.source, kernel.location, [fn], hashed)


def _same(
    name: str,
    source: str,
    location: str,
    kernels: Iterable[Any],
    hashed: Callable[[Any], str] | None = None,
) -> Any:
    """The one of some kernels that still has the recorded source; raises `NotFound`."""
    try:
        for kernel in kernels:
            if (hashed or _compat.kernel_hash.digest)(kernel) == source:
                return kernel
    except _compat.kernel_hash.NoText as error:
        raise NotFound(
            f"{name} may not be the kernel that was recorded: {error}",
            location=location or None,
            fix="use a number, or another constant, in its place",
        ) from None
    raise NotFound(
        f"{name} is not the kernel that was recorded: it, or something that it uses, has been "
        "edited",
        location=location or None,
        fix=_AGAIN,
    )


def _made_again(name: str, source: str, location: str, inside: Inside) -> Any:
    """A jitted function that is made inside another: from its code, and what was recorded."""
    module = _module(name, location)
    file, _, line = location.rpartition(":")
    path = [part for part in name.rpartition(":")[2].split(".") if part != "<locals>"]
    codes = [c for c in _codes(module, file, path) if {*c.co_freevars} == {*dict(inside.closure)}]
    # A function may define several of one name.
    codes.sort(key=lambda code: str(code.co_firstlineno) != line)
    kernels = (_of_code(name, code, module, inside) for code in codes)
    return _same(name, source, location, kernels)


def _codes(module: ModuleType, file: str, path: list[str]) -> list[CodeType]:
    """The code of functions inside functions, `["made", "kernel"]`, from the text of their file."""
    text = "".join(linecache.getlines(file, vars(module)))
    found = [compile(text, file, "exec", dont_inherit=True)]
    for name in path:
        inner = [c for code in found for c in code.co_consts if isinstance(c, CodeType)]
        found = [code for code in inner if code.co_name == name]
    return found


def _of_code(name: str, code: CodeType, module: ModuleType, inside: Inside) -> Any:
    try:
        closure = {n: restore(v, find_constant, _made_again) for n, v in inside.closure}
        defaults = {n: restore(v, find_constant, _made_again) for n, v in inside.defaults}
    except CannotRecord as error:
        raise NotFound(f"{name} cannot be made again", found=str(error), fix=_AGAIN) from None
    cells = tuple(CellType(closure[n]) for n in code.co_freevars)
    positional = [n for n in code.co_varnames[: code.co_argcount] if n in defaults]
    given = tuple(defaults.pop(n) for n in positional)
    function = FunctionType(code, vars(module), code.co_name, given, cells)
    function.__kwdefaults__ = defaults
    function.__annotations__ = dict(inside.annotations)
    function.__qualname__ = name.rpartition(":")[2]
    return _compat.kernels.jit_again(
        function,
        [*inside.unspecialized],
        [*inside.unaligned],
        noinline=inside.noinline,
        debug=inside.debug,
        gluon=inside.gluon,
    )


def find_function(name: str, source: str, location: str = "", text: str = "") -> Any:
    """A jitted function by `module:qualified.name`, if it still has the recorded source.

    `text` is that of its module, where that is in no file.
    """
    path = name.rpartition(":")[2]
    module = _module(name, location, text)
    named = _attribute(module, path)
    kernels = [*_jitted([named]), *_kept(module, path)]
    if not kernels:
        raise NotFound(
            f"{name} was recorded, but cannot be found in its module",
            found=None if named is None else f"a {type(named).__name__}",
            location=location or None,
            fix="keep the kernel in a variable of the module, or record again",
        )
    return _same(name, source, _compat.kernels.kernel_location(kernels[0]), kernels)


def _kept(module: ModuleType, path: str) -> list[Any]:
    """Kernels that a module has under other names than their functions', or in containers."""
    values = [*vars(module).values()]
    for _ in range(_NESTED):
        values += [item for value in values for item in _items(value)]
    kernels = {id(kernel): kernel for kernel in _jitted(values)}.values()
    return [k for k in kernels if _compat.compiled.function_of(k).__qualname__ == path]


def _jitted(values: list[Any]) -> list[Any]:
    # Packages have wrappers of their own around Triton's.
    innermost = map(_compat.kernels.innermost, values)
    return [kernel for kernel in innermost if _compat.compiled.is_jitted(kernel)]


def _items(value: Any) -> list[Any]:
    if type(value) in {list, tuple, set}:
        return [*value]
    return [*value.values()] if type(value) is dict else []


def find_constant(name: str, source: str | None) -> Any:
    """A jitted function with its source, or anything else by its name."""
    if source is not None:
        return find_function(name, source)
    found = _attribute(_module(name, ""), name.rpartition(":")[2])
    if found is None:
        raise NotFound(f"{name} is not there any more", fix=_AGAIN)
    return found


def _attribute(module: Any, path: str) -> Any:
    return functools.reduce(lambda one, name: getattr(one, name, None), path.split("."), module)


def _module(name: str, location: str, text: str = "") -> ModuleType:
    """The module of `module:name`, or of `path/to/script.py:name`, or with a text."""
    home = name.rpartition(":")[0]
    try:
        with _as_a_module(home), _compat.fakes.in_place_of_a_gpu():
            if text:
                file = location.rpartition(":")[0]
                return _compat.inductor_kernels.loaded_module(file, text)
            if home.endswith(".py"):
                # Under a name of its own, so that its `__main__` block does not run.
                return load_module(home)
            return importlib.import_module(home)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Packages raise anything where they miss a GPU or a library, and scripts exit.
        raise NotFound(
            f"{name} was recorded, but cannot be imported",
            found=_told(error),
            location=location or None,
            fix="build where the recorded program runs, with its packages; what a script runs "
            'belongs below `if __name__ == "__main__":`',
        ) from error


def _told(error: BaseException) -> str:
    """The user's own error in a line, not opforge's around it."""
    if isinstance(error, OpforgeError):
        if error.__cause__ is None:
            return error.what
        error = error.__cause__
    name = "sys.exit" if isinstance(error, SystemExit) else type(error).__name__
    return f"{name}: {error}"


class Exited(BaseException):
    """Imported code has called `os._exit`; passed on, a build would end as if it had worked."""


@contextlib.contextmanager
def importable_from(folders: Sequence[str]) -> Iterator[None]:
    """While code is imported: also from these folders."""
    added = [folder for folder in folders if folder not in sys.path]
    sys.path.extend(added)
    try:
        yield
    finally:
        for folder in added:
            # The code may have changed the list itself.
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)


@contextlib.contextmanager
def _as_a_module(name: str) -> Iterator[None]:
    """While code is imported: with arguments of its own, and no way to end this process."""
    here = os.getpid()
    leave = os._exit

    def exit_(status: int) -> NoReturn:
        # What the code forks may end.
        if os.getpid() != here:
            leave(status)
        raise Exited(f"it called os._exit({status})")

    with patches.FOUND_EXIT.on(os, _exit=exit_), patches.FOUND_ARGUMENTS.on(sys, argv=[name]):
        yield
