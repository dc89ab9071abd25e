"""From what a user types (`module:op`, `path/to/file.py:op`) to the operators it names."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from .errors import BadOption, OpforgeError, TargetFailed, WrongArgument
from .registry import registry

_DECORATE = "decorate a function with @opforge.op, or name the module that does"


@dataclass(frozen=True)
class Place:
    """Where a target found an operator: a module, and the operator's name there."""

    module: ModuleType
    name: str


def resolve(target: str) -> list[Any]:
    """The operator that `target` names, or every operator of the module or file it names."""
    # An operator bound to two names is still one.
    return list({id(op): op for op, _ in resolve_places(target)}.values())


def resolve_places(target: str) -> list[tuple[Any, Place]]:
    """As `resolve`, with every name that an operator has in the module or file."""
    place, name = _split(target)
    module = _load(place)
    ops = operators_in(module)
    if not name and ops:
        return places_in(module)
    if name in ops:
        return [(ops[name], Place(module, name))]
    if not name:
        raise BadOption(f"{place} has no operators", fix=_DECORATE)
    if name in vars(module):
        choose = f", or choose from: {_listed(ops)}" if ops else ""
        raise BadOption(
            f"{name!r} in {place} is not an operator",
            found=f"a {type(vars(module)[name]).__name__}",
            fix=f"decorate it with @opforge.op{choose}",
        )
    raise BadOption(
        f"{place} has no {name!r}",
        found=f"the operators {_listed(ops)}" if ops else "no operators",
        fix=_did_you_mean(name, ops) or ("choose one of these" if ops else _DECORATE),
    )


def resolve_or_function(target: str) -> list[Any]:
    """As `resolve`, but a target may also name a function that is not an operator yet."""
    place, name = _split(target)
    named = vars(_load(place)).get(name)
    if isinstance(named, FunctionType) and not registry.is_op(named):
        return [named]
    return resolve(target)


def resolve_function(target: str) -> Callable[..., Any]:
    """The function that `module:fn` or `path/to/file.py:fn` names."""
    value = locate(target)
    if not callable(value):
        raise BadOption(
            f"{target} is not a function",
            found=f"a {type(value).__name__}",
            fix="name a function of that module or file",
        )
    return value  # type: ignore[no-any-return]


def arguments_from_function(target: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the function that `--inputs` names returns: `(args, kwargs)`."""
    return arguments_made_by(resolve_function(target), target)


def arguments_made_by(
    make: Callable[..., Any], target: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a function for inputs returns; `target` is its name for a person."""
    with users_own(f"{target}()"):
        made = make()
    pair = made if isinstance(made, tuple) and len(made) == 2 else (None, None)
    if isinstance(pair[0], (tuple, list)) and isinstance(pair[1], dict):
        return tuple(pair[0]), pair[1]
    names = ", ".join(type(v).__name__ for v in made) if isinstance(made, tuple) else ""
    raise WrongArgument(
        f"{target} must return (args, kwargs)",
        found=f"({names})" if names else f"a {type(made).__name__}",
        fix="return (x, cfg), {'eps': 1e-6}; with no keywords: return (x, cfg), {}",
    )


@contextlib.contextmanager
def users_own(what: str, *, doing: str = "ran") -> Iterator[None]:
    """Show an error in the user's code as it would look without opforge around it."""
    try:
        yield
    except OpforgeError:
        # These already say where and why.
        raise
    except SystemExit as error:
        frames = traceback.extract_tb(_own_frames(error))
        raise _exited(f"{what} called", f"while it {doing}", error, frames[:1]) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        shown = "".join(traceback.format_exception(type(error), error, _own_frames(error)))
        raise TargetFailed(f"{what} raised\n\n{shown.rstrip()}") from error


def exited_in_body(error: SystemExit) -> TargetFailed:
    """The error for `sys.exit` in a body or another function that a command called."""
    frames = traceback.extract_tb(error.__traceback__)
    return _exited("an operator's own code called", "while it ran", error, frames[-1:])


def _exited(
    who: str, when: str, error: SystemExit, place: list[traceback.FrameSummary]
) -> TargetFailed:
    """Passed on, the exit would end the command with the status of one that worked."""
    code = repr(error.code) if isinstance(error.code, (int, str)) else ""
    return TargetFailed(
        f"{who} sys.exit({code}) {when}",
        found=f"at {place[0].filename}:{place[0].lineno}" if place else None,
        fix="leave that to scripts: if __name__ == '__main__': sys.exit(main())",
    )


def _own_frames(error: BaseException) -> TracebackType | None:
    """The traceback without the outer frames, opforge's, and without those of importing."""
    place = error.__traceback__
    while place is not None and _is_ours(place.tb_frame.f_code.co_filename):
        place = place.tb_next
    user = place
    while user is not None:
        while user.tb_next is not None and _imports(user.tb_next.tb_frame.f_code.co_filename):
            user.tb_next = user.tb_next.tb_next
        user = user.tb_next
    return place


def _is_ours(filename: str) -> bool:
    return _imports(filename) or Path(filename).is_relative_to(Path(__file__).parent)


def _imports(filename: str) -> bool:
    """Whether a file is of Python's import system, or of what opforge adds to it."""
    if filename.startswith("<frozen importlib") or filename == importlib.__file__:
        return True
    return Path(filename) == Path(__file__).parent / "native" / "commands" / "operator_tree.py"


def _load(place: str) -> ModuleType:
    try:
        with users_own(place, doing="was loaded"):
            return _load_file(Path(place)) if _is_path(place) else _load_module(place)
    except TargetFailed as failed:
        # Not the cause's own text: an exception of the module's may raise when it is asked for it.
        relative = "attempted relative import with no known parent" in str(failed)
        if not relative or not isinstance(failed.__cause__, ImportError):
            raise
        folder, name = _in_package(Path(place).absolute())
        raise TargetFailed(
            str(failed), fix=f"it belongs to a package: run from {folder}, and name it {name}"
        ) from failed.__cause__


def _in_package(path: Path) -> tuple[Path, str]:
    """The folder above the file's packages, and the file's name as a module: `pkg.ops`."""
    folder, name = path.parent.parent, f"{path.parent.name}.{path.stem}"
    while (folder / "__init__.py").is_file():
        folder, name = folder.parent, f"{folder.name}.{name}"
    return folder, name


def locate(target: str) -> Any:
    """Whatever `target` names: a model, an op, a function."""
    place, name = _split(target)
    if not name:
        raise BadOption(
            f"{target!r} names a module, not something in it", fix=f"write {target}:name"
        )
    module = _load(place)
    names = [n for n in vars(module) if not n.startswith("_")]
    if name not in vars(module):
        raise BadOption(
            f"{place} has no {name!r}",
            fix=_did_you_mean(name, names) or f"choose from: {_listed(names)}",
        )
    return vars(module)[name]


def _split(target: str) -> tuple[str, str]:
    if target.endswith(".py") or Path(target).is_file():
        # A path may have colons.
        return target, ""
    if "::" in target and not target.rpartition(":")[0].endswith(".py"):
        raise BadOption(
            f"{target!r} is an operator's name, which does not say where it is defined",
            fix="write module:{0} or path/to/file.py:{0}".format(target.partition("::")[2]),
        )
    place, colon, name = target.rpartition(":")
    if not colon:
        place, name = target, ""
    if not place or (colon and not name):
        raise BadOption(
            f"{target!r} is not a target",
            fix="write module:op, path/to/file.py:op, or only the module or file",
        )
    return place, name


def names_operator(target: str) -> bool:
    """Whether a target names something in a module or file, rather than all of it."""
    return bool(_split(target)[1])


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place or "\\" in place or Path(place).is_file()


def operators_in(module: ModuleType) -> dict[str, Any]:
    """By the names they have in the module, else by their own."""
    named = {name: value for name, value in vars(module).items() if registry.is_op(value)}
    bound = {id(registry.find(op)) for op in named.values()}
    # An op that a function makes, for example in a loop, may have no name in the module.
    for entry in registry:
        here = getattr(entry.fn, "__globals__", None) is vars(module)
        if here and id(entry) not in bound:
            short = entry.name.partition("::")[2]
            named[entry.name if short in vars(module) or short in named else short] = entry.handle
    return named


def places_in(module: ModuleType) -> list[tuple[Any, Place]]:
    """The operators of a module, each with every name that it has there."""
    return [(op, Place(module, name)) for name, op in operators_in(module).items()]


def _load_module(name: str) -> ModuleType:
    # A console script does not search the current folder, but people expect it to.
    with _importable_from(Path.cwd()):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # If an import inside the module fails, its own traceback says it best.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise BadOption(
                f"there is no module {name!r}",
                found=f"no {error.name!r} on the import path",
                fix="give the path of its file or folder, or install it",
            ) from None


def _load_file(path: Path) -> ModuleType:
    path = path.absolute()
    if not path.is_file():
        near = {file.stem: file.name for file in path.parent.glob("*.py")}
        close = [near[stem] for stem in _close(path.stem, near)]
        raise BadOption(
            f"there is no {'file' if path.suffix else 'file or folder'} {path}",
            found=f"{path} is a folder" if path.is_dir() else None,
            fix=f"did you mean {' or '.join(close)}?"
            if close
            else "give the path of a Python file or of a folder of operators",
        )
    if path.suffix != ".py":
        raise BadOption(f"{path} is not a Python file", fix="give the path of a .py file")
    name = path.stem
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", None)
        if origin is not None and Path(origin).resolve() == path.resolve():
            return sys.modules[name]
        raise BadOption(
            f"{path} cannot be loaded: another module has the name {name!r}",
            found=origin or "a module built into Python",
            fix="rename the file, or name it as package.module:op",
        )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importable_from(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def _importable_from(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        # The module may have changed the list itself.
        with contextlib.suppress(ValueError):
            sys.path.remove(entry)


def _did_you_mean(name: str, candidates: Iterable[str]) -> str:
    close = _close(name, candidates)
    return f"did you mean {' or '.join(close)}?" if close else ""


def _close(name: str, candidates: Iterable[str]) -> list[str]:
    # By default "nope" is close enough to "opcode".
    return difflib.get_close_matches(name, list(candidates), cutoff=0.7)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "(none)"
