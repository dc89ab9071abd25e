"""What commands take as a target, which files that reads, and the operators that it names.

    ops.py, pkg.ops                all operators of a file or module
    ops.py:scale, pkg.ops:scale    one of them
    ops/                           those of a folder's files; `ops` too, unless it is a package
    launches.json                  no operators: a recording, which `serving` and `recording` read

A file is loaded as a module of its own name that finds its neighbours, as a script does. A folder
is loaded as a package: `ops/add/op.py` is `ops.add.op` and may import `from ..common import ...`,
and two folders may have files of the same name. `files`, `buildable` and `listed` say which files
of a folder a command reads. One that fails does not stop the others.

A build that has nothing to do imports this, so nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.abc
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from ..errors import BadOption, NotFound, OpforgeError, TargetFailed
from ..notebook import counted
from ..registry import Entry, registry
from .frontend import implementations
from .frontend.declaration import declarations_of

FILE = "op.py"
_INIT = "__init__.py"
_DECORATE = "decorate a function with @opforge.op, or name the module that does"


@dataclass(frozen=True)
class Place:
    """Where a target has an operator: a module, and the operator's name there."""

    module: ModuleType
    name: str
    # Of the file, if the target is a folder.
    folder: Path | None = None


@dataclass(frozen=True)
class Problem:
    """Why a file or folder of a folder cannot be used."""

    path: Path
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass
class Loaded:
    """The operators of a target, each with every name that it has, and what cannot be used."""

    places: list[tuple[Any, Place]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def operators(self) -> list[Any]:
        """Each operator once, in the order found."""
        return list({id(op): op for op, _ in self.places}.values())


def are_recordings(targets: Sequence[str]) -> bool:
    """Whether the targets are recordings of `opforge record`; raises if only some are."""
    recordings = [target for target in targets if target.endswith(".json")]
    if recordings and len(recordings) < len(targets):
        raise BadOption(
            f"{recordings[0]} is a recording, and the other targets are not",
            fix="name recordings and operators in commands of their own",
        )
    return bool(recordings)


def is_tree(target: str) -> bool:
    """Whether a target names a folder rather than an importable package.

    `ops` is one unless it has an `__init__.py`; `ops/` always is.
    """
    is_folder = target != "" and Path(target).is_dir()
    return is_folder and ("/" in target or not Path(target, _INIT).is_file())


def files(tree: str | Path) -> list[Path]:
    """All Python files below a folder but tests.

    Names that begin with `_` or `.` do not count, except `__init__.py`.
    """
    return [*_files(Path(tree), frozenset())]


def _files(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    if folder.resolve() in above:
        # A link to a folder that it lies in.
        return
    for path in _entries(folder):
        if path.is_dir():
            yield from _files(path, above | {folder.resolve()})
        elif path.suffix == ".py" and not path.stem.startswith("test_") and path.stem != "conftest":
            yield path


def _entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.name[0] not in "_." or p.name == _INIT)


def _folders(tree: Path) -> list[Path]:
    folders = [path for path in _entries(tree) if path.is_dir()]
    if not folders:
        raise BadOption(
            f"{tree} has no operators",
            found="no folders in it",
            fix=f"one folder per operator: {tree / 'add' / FILE}",
        )
    return folders


def buildable(tree: str | Path) -> list[Path]:
    """What a build reads: operators' folders, `add/op.py`, or the files of a package without."""
    is_package = Path(tree, _INIT).is_file() and not any(Path(tree).glob(f"*/{FILE}"))
    return files(tree) if is_package else _folders(Path(tree))


def listed(tree: str | Path) -> list[Path]:
    """All files, and if one is an `add/op.py`, what a build reads: every folder."""
    paths = files(tree)
    others = [path for path in paths if path.relative_to(tree).parts[1:] != (FILE,)]
    return paths if paths and others == paths else [*_folders(Path(tree)), *others]


def load(
    target: str, read: Callable[[str], list[Path]] = files, *, functions: bool = False
) -> Loaded:
    """Import what a target names, of a folder what `read` gives.

    A folder that is read must have an `op.py` with a declared operator. With `functions`, a target
    may also name a function that is not an operator yet.
    """
    if not is_tree(target):
        return Loaded(_places(target, functions=functions))
    tree, loaded = Path(target), Loaded()
    paths = read(target)
    package = _package(tree.resolve())
    for path in paths:
        file = path / FILE if path.is_dir() else path
        try:
            if not file.is_file():
                raise BadOption(
                    f"it has no {FILE}",
                    fix=f"write {file}, or prefix the folder's name with _ to skip it",
                )
            module = _load_from(file, [package, *file.relative_to(tree).parent.parts])
            ops = operators_in(module)
            loaded.places += ((ops[name], Place(module, name, file.parent)) for name in ops)
            if path.is_dir() and not ops:
                raise BadOption(
                    f"{FILE} has no operators", fix="decorate a function with @opforge.op"
                )
            entries = [registry.get(op) for op in ops.values()]
            if path.is_dir() and not any(map(is_declared, entries)):
                raise _undeclared(entries)
        except OpforgeError as error:
            loaded.problems.append(Problem(path, str(error)))
    if not loaded.places and not loaded.problems:
        raise BadOption(
            f"{tree} has no operators",
            found="no Python file in it has one",
            fix="decorate a function with @opforge.op",
        )
    return loaded


def operators(targets: Iterable[str], only: Sequence[str] = ()) -> list[Any]:
    """The operators to build or tune; all that is wrong with a folder is one error.

    Those without a `native.declare` are left out later, unless a user has named them.
    """
    ops: dict[int, Any] = {}
    named: set[int] = set()
    for target in targets:
        loaded = load(target, buildable)
        if loaded.problems:
            count = counted(len({problem.path for problem in loaded.problems}), "folder")
            told = "\n\n".join(map(str, loaded.problems))
            raise BadOption(f"{count} of {target} cannot be built\n\n{told}")
        of_target = {id(op): op for op in loaded.operators}
        ops |= of_target
        if not is_tree(target) and _split(target)[1]:
            named |= of_target.keys()
    selected = _select([*ops.values()], only)
    entries = [registry.get(op) for op in selected if only or id(op) in named]
    missing = [entry for entry in entries if not is_declared(entry)]
    if missing:
        raise _undeclared(missing)
    return selected


def _select(ops: Sequence[Any], only: Sequence[str]) -> list[Any]:
    """The operators named `add` or `mylib::add`, in the order found; all if none is named.

    Functions are known by their own names, too, unless an operator has that name. An
    implementation of another operator cannot be selected on its own; it comes with that one.
    """
    entries = [registry.get(op) for op in ops]
    alone = implementations.operators(entries)
    names = sorted({name for entry in alone for name in (entry.name, entry.own_name)})
    functions = {entry.fn.__name__: entry.name for entry in alone}
    wanted = {name if name in names else functions.get(name, name) for name in only or names}
    for name in only:
        if name not in names and name not in functions:
            raise NotFound(
                f"there is no operator {name!r}",
                found=f"the operators {', '.join(name for name in names if '::' not in name)}",
                fix=_implemented(name, entries) or _nearest(name, names, "choose one of these"),
            )
    kept = {entry.name for entry in alone if wanted & {entry.name, entry.own_name}}

    def is_kept(entry: Entry) -> bool:
        operator = implementations.operator_of(entry)
        return entry.name in kept or (operator is not None and operator.name in kept)

    return [op for op, entry in zip(ops, entries, strict=True) if is_kept(entry)]


def _implemented(name: str, entries: Iterable[Entry]) -> str:
    for entry in entries:
        operator = implementations.operator_of(entry)
        if operator is not None and name in {entry.name, entry.own_name}:
            return f"it is an implementation of {operator.own_name} and comes with it"
    return ""


def is_declared(entry: Entry) -> bool:
    """Whether a C library can have an operator: it, or what implements it, is declared."""
    return any(declarations_of(part) for part in implementations.implementing(entry))


def _undeclared(entries: Sequence[Entry]) -> NotFound:
    names = ", ".join(dict.fromkeys(entry.name for entry in entries))
    return NotFound(
        f"{names} has no native.declare, so it cannot be built",
        fix=f"native.declare({entries[0].own_name}, x=native.tensor(...), ...), or leave it out",
        location=entries[0].location,
    )


def _places(target: str, *, functions: bool) -> list[tuple[Any, Place]]:
    """The operator that a target names, or every operator of the module or file."""
    place, name = _split(target)
    module = load_module(place)
    ops = operators_in(module)
    if not name and ops:
        return [(op, Place(module, name)) for name, op in ops.items()]
    if name in ops:
        return [(ops[name], Place(module, name))]
    if not name:
        raise BadOption(f"{place} has no operators", fix=_DECORATE)
    if name in vars(module):
        value = vars(module)[name]
        if functions and type(value) is FunctionType:
            return [(value, Place(module, name))]
        choose = f", or choose from: {_listed(ops)}" if ops else ""
        raise BadOption(
            f"{name!r} in {place} is not an operator",
            found=f"a {type(value).__name__}",
            fix=f"decorate it with @opforge.op{choose}",
        )
    raise BadOption(
        f"{place} has no {name!r}",
        found=f"the operators {_listed(ops)}" if ops else "no operators",
        fix=_nearest(name, ops, "choose one of these" if ops else _DECORATE),
    )


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


def locate(target: str) -> Any:
    """Whatever `target` names: a model, an op, a function."""
    place, name = _split(target)
    if not name:
        raise BadOption(
            f"{target!r} names a module, not something in it", fix=f"write {target}:name"
        )
    values = vars(load_module(place))
    if name not in values:
        names = [n for n in values if not n.startswith("_")]
        fix = _nearest(name, names, f"choose from: {_listed(names)}")
        raise BadOption(f"{place} has no {name!r}", fix=fix)
    return values[name]


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


def load_module(place: str) -> ModuleType:
    """The module of a name, or of the path of a Python file."""
    is_path = place.endswith(".py") or "/" in place or "\\" in place or Path(place).is_file()
    try:
        with users_own(place, doing="was loaded"):
            return _load_file(Path(place)) if is_path else _load_name(place)
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
    while (folder / _INIT).is_file():
        folder, name = folder.parent, f"{folder.name}.{name}"
    return folder, name


def _load_name(name: str) -> ModuleType:
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
        stems = [file.stem for file in path.parent.glob("*.py")]
        otherwise = "give the path of a Python file or of a folder of operators"
        raise BadOption(
            f"there is no {'file' if path.suffix else 'file or folder'} {path}",
            found=f"{path} is a folder" if path.is_dir() else None,
            fix=_nearest(path.stem, stems, otherwise, ending=".py"),
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
    with _importable_from(path.parent):
        return _execute(name, path)


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


def _execute(name: str, file: Path, *, is_package: bool = False) -> ModuleType:
    """Run a file as a module of that name, which is known under it only if that works."""
    below = [str(file.parent)] if is_package else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=below)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _package(tree: Path) -> str:
    """The package that a folder is loaded as: of its own name, unless that is taken."""
    wanted = tree.name.replace(".", "_") or "operators"
    name, number = wanted, 1
    while not _is_free(name, tree):
        number += 1
        name = f"{wanted}_{number}"
    if name in sys.modules:
        return name
    file = tree / _INIT
    if file.is_file():
        with users_own(str(file), doing="was loaded"), _Siblings(tree, name):
            _execute(name, file, is_package=True)
    else:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(tree)]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return name


def _is_free(name: str, tree: Path) -> bool:
    if name in sys.modules:
        return list(getattr(sys.modules[name], "__path__", ())) == [str(tree)]
    spec = importlib.util.find_spec(name)
    # A plain folder on the path, such as the tree itself, does not take the name.
    return spec is None or spec.origin in {None, str(tree / _INIT)}


def _load_from(file: Path, steps: Sequence[str]) -> ModuleType:
    """A file of a folder that is loaded as a package."""
    if any("." in step for step in (*steps, file.stem)):
        raise BadOption("Python cannot import it because its path has a dot", fix="rename it")
    package = ".".join(steps)
    with users_own(str(file), doing="was loaded"), _Siblings(file.parent, package):
        return importlib.import_module(package if file.name == _INIT else f"{package}.{file.stem}")


class _Siblings(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """While a file of a package is imported, the names beside it are modules.

    `import helper` in a file of a tree gives the `helper.py` beside it, as if the file were run
    alone. The tree's own module is what the name stands for, so that nothing is executed twice: in
    `ops/add/op.py`, `helper` is `ops.add.helper`. Other folders have other files of that name.
    """

    def __init__(self, folder: Path, package: str) -> None:
        self._folder = folder
        self._package = package
        self._imported: list[str] = []

    def __enter__(self) -> None:
        finders: list[object] = [*sys.meta_path]
        # Where `sys.path` is searched, and ahead of all that it has: a script's own folder is its
        # head.
        place = finders.index(PathFinder) if PathFinder in finders else len(finders)
        sys.meta_path.insert(place, self)

    def __exit__(self, *_: object) -> None:
        # The file may have changed the list itself.
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        for name in self._imported:
            sys.modules.pop(name, None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        is_sibling = self._has(fullname) if path is None else top in self._imported
        if not is_sibling or importlib.util.find_spec(f"{self._package}.{fullname}") is None:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        # Importing gives whatever stands here in the end.
        sys.modules[name] = importlib.import_module(f"{self._package}.{name}")
        self._imported.append(name)

    def _has(self, name: str) -> bool:
        folder = self._folder / name
        if folder.with_name(f"{name}.py").is_file() or (folder / _INIT).is_file():
            return True
        # As on `sys.path`, a folder without `__init__.py` comes after all that has one.
        return folder.is_dir() and PathFinder.find_spec(name) is None


@contextlib.contextmanager
def users_own(what: str, *, doing: str = "ran") -> Iterator[None]:
    """Show an error in the user's code as it would look without opforge around it."""
    try:
        yield
    except (OpforgeError, KeyboardInterrupt):
        # The first already says where and why.
        raise
    except SystemExit as error:
        frames = traceback.extract_tb(_own_frames(error))
        raise _exited(f"{what} called", f"while it {doing}", error, frames[:1]) from error
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
    return _imports(filename) or Path(filename).is_relative_to(Path(__file__).parents[1])


def _imports(filename: str) -> bool:
    """Whether a file is of Python's import system, or this one."""
    return filename.startswith("<frozen importlib") or filename in {importlib.__file__, __file__}


def _nearest(name: str, names: Iterable[str], otherwise: str, *, ending: str = "") -> str:
    """The fix for a name that is not in `names`: the closest one, or `otherwise`."""
    # By default "nope" is close enough to "opcode".
    close = difflib.get_close_matches(name, list(names), cutoff=0.7)
    return f"did you mean {' or '.join(n + ending for n in close)}?" if close else otherwise


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "(none)"
