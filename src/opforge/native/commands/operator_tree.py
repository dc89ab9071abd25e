"""Folders that commands take: which of their files are read, and how they load.

`files` is the rule for all commands. `opforge build` holds a folder to a layout besides, a tree of
operators, `ops/<op>/op.py`; `opforge list` tells where a tree that has it departs from it.

The folder loads as a package: `ops/add/op.py` is `ops.add.op` and may import `from ..common import
...`, and two folders may have files of the same name.

A build that has nothing to do walks folders and ends before torch is imported, so what needs
`frontend.implementations`, which imports torch, imports that itself.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ...cli_targets import Place, places_in, users_own
from ...errors import BadOption, NotFound, OpforgeError, TargetFailed
from ...notebook import counted
from ...registry import Entry, registry
from ..frontend.declaration import declarations_of

FILE = "op.py"
_INIT = "__init__.py"


@dataclass(frozen=True)
class Problem:
    """Why a folder cannot be built."""

    folder: Path
    message: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.message}"


@dataclass
class Found:
    """The operators of a tree with their folders, and the problems of the other folders."""

    operators: list[tuple[Path, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    # Of single files: every module that has an operator, and its name there.
    places: list[tuple[Any, Place]] = field(default_factory=list)


def is_tree(target: str) -> bool:
    """Whether a target names a folder rather than an importable package.

    `ops` is one unless it has an `__init__.py`; `ops/` always is.
    """
    return Path(target).is_dir() and ("/" in target or not Path(target, _INIT).is_file())


def folders(tree: str | Path) -> list[Path]:
    """The operators' folders."""
    found = [path for path in _entries(Path(tree)) if path.is_dir()]
    if not found:
        raise BadOption(
            f"{tree} has no operators",
            found="no folders in it",
            fix=f"one folder per operator: {Path(tree) / 'add' / FILE}",
        )
    return found


def files(tree: str | Path) -> list[Path]:
    """The Python files that commands read: all below a folder but tests.

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
        elif path.suffix == ".py" and not _is_test(path):
            yield path


def _entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.name[0] not in "_." or p.name == _INIT)


def _is_test(file: Path) -> bool:
    return file.name.startswith("test_") or file.name == "conftest.py"


def load(tree: str | Path) -> Found:
    """Import every `op.py` of a tree, which must have an operator that is declared."""
    found = _load(Path(tree), folders(tree), Found())
    found.problems += _namesakes(found.operators)
    return found


def buildable(tree: str | Path) -> list[Path]:
    """What `opforge build` reads: operators' folders, or of a package without `op.py`, its files.

    A name with a slash, `pkg/`, means the folder where `pkg` means the package.
    """
    is_package = Path(tree, _INIT).is_file() and not any(Path(tree).glob(f"*/{FILE}"))
    return files(tree) if is_package else folders(tree)


def load_buildable(tree: str | Path) -> Found:
    """Import what `opforge build` reads."""
    return load(tree) if all(path.is_dir() for path in buildable(tree)) else load_files(tree)


def load_files(tree: str | Path) -> Found:
    """Import every Python file below a folder, for commands that need no declaration.

    A file without operators may be one that others import.
    """
    found = _load(Path(tree), files(tree), Found())
    if not found.operators and not found.problems:
        raise BadOption(
            f"{tree} has no operators",
            found="no Python file in it has one",
            fix="decorate a function with @opforge.op",
        )
    return found


def load_listed(tree: str | Path) -> Found:
    """As `load_files`; of a tree with an `op.py` also what would keep it from being built."""
    walked = files(tree)
    own = [file for file in walked if file.name == FILE and file.parent.parent == Path(tree)]
    if not own and walked:
        return load_files(tree)
    others = [file for file in walked if file not in own]
    return _load(Path(tree), others, load(tree))


def _load(tree: Path, walked: Sequence[Path], found: Found) -> Found:
    """Import files, and the `op.py` of folders; one that fails does not stop the others."""
    package = _package(tree.resolve())
    seen = {id(op) for _, op in found.operators}
    for path in walked:
        file = path / FILE if path.is_dir() else path
        try:
            if not file.is_file():
                raise BadOption(
                    f"it has no {FILE}",
                    fix=f"write {file}, or prefix the folder's name with _ to skip it",
                )
            places = _places_of(file, [package, *file.relative_to(tree).parent.parts])
            if file != path and not places:
                raise BadOption(
                    f"{FILE} has no operators", fix="decorate a function with @opforge.op"
                )
        except OpforgeError as error:
            found.problems.append(Problem(path, str(error)))
            continue
        found.places += places
        new = {id(op): op for op, _ in places if id(op) not in seen}
        seen |= new.keys()
        found.operators += [(path, op) for op in new.values()]
        if file != path and (undeclared := _undeclared(op for op, _ in places)):
            found.problems.append(Problem(path, undeclared))
    return found


def _places_of(file: Path, package: Sequence[str]) -> list[tuple[Any, Place]]:
    if any("." in step for step in (*package, file.stem)):
        raise BadOption("Python cannot import it because its path has a dot", fix="rename it")
    steps = package if file.name == _INIT else (*package, file.stem)
    return places_in(_imported(".".join(steps), file))


def refuse(tree: str, problems: Sequence[Problem]) -> None:
    """Raise one error for all problems, if there are any."""
    if problems:
        count = counted(len({problem.folder for problem in problems}), "folder")
        told = "\n\n".join(map(str, problems))
        raise BadOption(f"{count} of {tree} cannot be built\n\n{told}")


def _imported(name: str, file: Path) -> ModuleType:
    # `__init__.py` is the package itself, and its siblings are below it.
    package = name if file.name == _INIT else name.rpartition(".")[0]
    with users_own(f"importing {file}"), _siblings_importable(file, package):
        try:
            return importlib.import_module(name)
        except SystemExit as error:
            raise TargetFailed(f"{file.name} exits Python on import: {error!r}") from error


def _undeclared(ops: Iterable[Any]) -> str:
    entries = list({entry.name: entry for entry in map(registry.get, ops)}.values())
    if any(map(declarations_of, entries)):
        return ""
    names = ", ".join(entry.name for entry in entries)
    fix = f"native.declare(op, x=native.tensor(...), ...) in {FILE}"
    return str(NotFound(f"{names} has no native.declare", fix=fix))


def _namesakes(operators: Sequence[tuple[Path, Any]]) -> list[Problem]:
    """Operators that would share a C function; importing one from another folder is fine."""
    from ..frontend import implementations

    first: dict[str, tuple[Path, Any]] = {}
    problems = []
    entries = implementations.operators(registry.get(op) for _, op in operators)
    own = {entry.name for entry in entries}
    for folder, op in operators:
        entry = registry.get(op)
        if entry.name not in own:
            continue
        name = entry.own_name
        there, other = first.setdefault(name, (folder, op))
        if other is not op:
            both = f"{registry.get(other).location}, {entry.location}"
            problems.append(
                Problem(folder, f"{there} has an operator {name} as well\n  found: {both}")
            )
    return problems


def _package(tree: Path) -> str:
    """The tree's package name: its own, unless that name is taken."""
    wanted = tree.name.replace(".", "_") or "operators"
    name, number = wanted, 1
    while not _is_free(name, tree):
        number += 1
        name = f"{wanted}_{number}"
    if name not in sys.modules:
        _enter(name, tree)
    return name


def _is_free(name: str, tree: Path) -> bool:
    if name in sys.modules:
        return list(getattr(sys.modules[name], "__path__", ())) == [str(tree)]
    spec = importlib.util.find_spec(name)
    # A plain folder on the path, such as the tree itself, does not take the name.
    return spec is None or spec.origin in {None, str(tree / _INIT)}


def _enter(name: str, tree: Path) -> None:
    file = tree / _INIT
    if file.is_file():
        places = [str(tree)]
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
    else:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(tree)]
    assert spec is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    if spec.loader is None:
        return
    try:
        with users_own(f"importing {file}"), _siblings_importable(file, name):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def select(ops: Sequence[Any], only: Sequence[str]) -> list[Any]:
    """The operators named `add` or `mylib::add`, in the order found; all if none is named.

    Functions are known by their own names, too, unless an operator has that name. An
    implementation of another operator cannot be selected on its own; it comes with that one.
    """
    from ..frontend import implementations

    found = implementations.operators(registry.get(op) for op in ops)
    known = sorted({name for entry in found for name in (entry.name, entry.own_name)})
    functions = {entry.fn.__name__: entry.name for entry in found}
    only = [functions.get(name, name) if name not in known else name for name in only]
    for wanted in only:
        if wanted not in known:
            raise NotFound(
                f"there is no operator {wanted!r}",
                found=f"the operators {', '.join(name for name in known if '::' not in name)}",
                fix=_named_instead(wanted, known, [registry.get(op) for op in ops]),
            )
    chosen = set(only or known)
    kept = {entry.name for entry in found if chosen & {entry.name, entry.own_name}}

    def is_kept(entry: Entry) -> bool:
        operator = implementations.operator_of(entry)
        return entry.name in kept or (operator is not None and operator.name in kept)

    return [op for op in ops if is_kept(registry.get(op))]


def refuse_undeclared_named(ops: Sequence[Any]) -> None:
    """Raise if operators that a user named have no `native.declare`: a build leaves such out."""
    from ..frontend.implementations import implementing

    entries = [registry.get(op) for op in ops]
    missing = [e for e in entries if not any(declarations_of(part) for part in implementing(e))]
    if missing:
        names = ", ".join(entry.name for entry in missing)
        raise NotFound(
            f"{names} has no native.declare, so it cannot be built",
            fix=f"native.declare({missing[0].own_name}, x=native.tensor(...), ...), or leave it "
            "out of the command",
            location=missing[0].location,
        )


def _named_instead(wanted: str, known: Sequence[str], entries: Sequence[Entry]) -> str:
    from ..frontend.implementations import operator_of

    for entry in entries:
        operator = operator_of(entry)
        if operator is not None and wanted in {entry.name, entry.own_name}:
            return f"it is an implementation of {operator.own_name} and comes with it"
    close = difflib.get_close_matches(wanted, known, n=1)
    return f"did you mean {close[0]}?" if close else "choose one of these"


@contextlib.contextmanager
def _siblings_importable(file: Path, package: str) -> Iterator[None]:
    """While `file` is imported as a module of `package`, the names beside it are modules.

    `import helper` in a file of a tree gives the `helper.py` beside it, as if the file were run
    alone. The tree's own module is what the name stands for, so that nothing is executed twice: in
    `ops/add/op.py`, `helper` is `ops.add.helper`. Other folders have other files of that name.
    """
    finder = _Siblings(file.parent, package)
    finders: list[object] = [*sys.meta_path]
    # Where `sys.path` is searched, and ahead of all that it has: a script's own folder is its head.
    place = finders.index(PathFinder) if PathFinder in finders else len(finders)
    sys.meta_path.insert(place, finder)
    try:
        yield
    finally:
        # The file may have changed the list itself.
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)
        for name in finder.made:
            sys.modules.pop(name, None)


class _Siblings(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folder: Path, package: str) -> None:
        self._folder = folder
        self._package = package
        self.made: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        known = self._has(fullname) if path is None else top in self.made
        if not known or importlib.util.find_spec(self._real(fullname)) is None:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        # Importing gives whatever stands here in the end.
        sys.modules[name] = importlib.import_module(self._real(name))
        self.made.append(name)

    def _real(self, name: str) -> str:
        return f"{self._package}.{name}"

    def _has(self, name: str) -> bool:
        folder = self._folder / name
        if folder.with_name(f"{name}.py").is_file() or (folder / "__init__.py").is_file():
            return True
        # As on `sys.path`, a folder without `__init__.py` comes after all that has one.
        return folder.is_dir() and PathFinder.find_spec(name) is None
