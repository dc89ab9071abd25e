"""What opforge has registered, and how to undo it; nothing else keeps such state."""

from __future__ import annotations

import contextlib
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from . import _compat
from .deferred import run_deferred
from .errors import BadRegistration, WrongArgument
from .locks import fork_safe_lock
from .model import Lowered, OpInfo

if TYPE_CHECKING:
    # Only the type: a loaded library's first call gets by without registration.
    from .registration.register import Definition, Registration

# "amending": its kernels are about to be replaced, and then are, "amended".
Event = Literal["added", "removed", "amending", "amended"]


@dataclass(frozen=True, eq=False)
class Entry:
    """One op: its handle (what the user calls), and how to describe and remove it.

    `given` lists the options that the user gave. A function in mode "none" has neither `lowered`,
    which `flat` computes on demand, nor anything `registered`.
    """

    name: str
    handle: Any
    overload: Any
    fn: Callable[..., Any]
    location: str
    definition_pass: types.CodeType | None
    describe: Callable[[], OpInfo]
    explain: Callable[[], str]
    undo: Callable[[str], None]
    is_open: Callable[[], bool] = bool
    lowered: Lowered | None = None
    given: Callable[[], frozenset[str]] = frozenset
    lower: Callable[[], Lowered] | None = None
    registered: Registration | None = field(default=None, repr=False)
    # Defined by a library that was loaded; the op's source takes its place when it is imported.
    stands_in: bool = False

    @classmethod
    def of(cls, registration: Registration, **more: Any) -> Entry:
        """That of an op that torch knows; `more` is what the registration does not hold."""
        definition = registration.definition
        return cls(
            name=definition.name,
            handle=registration.handle,
            overload=registration.overload,
            fn=definition.fn,
            location=definition.location,
            undo=registration.undo,
            lowered=definition.lowered,
            registered=registration,
            **more,
        )

    @property
    def registration(self) -> Registration:
        """What torch holds of an op in any mode but "none"."""
        assert self.registered is not None
        return self.registered

    @property
    def own_name(self) -> str:
        """Without the namespace."""
        return self.name.partition("::")[2] or self.name

    @property
    def signature(self) -> inspect.Signature:
        """As the op is called: a given schema may have other names than the function."""
        return inspect.signature(self.handle)

    def flat(self) -> Lowered:
        """The flat signature, in any mode; raises for a function in mode "none" that has none."""
        if self.lowered is not None:
            return self.lowered
        assert self.lower is not None
        return self.lower()


class Registry:
    """All ops, by name; functions in mode "none" by identity."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._by_name: dict[str, Entry] = {}
        self._plain: dict[int, Entry] = {}
        # Told of every op that is added or removed, so that other rooms can keep what is theirs.
        self.watchers: list[Callable[[Event, Entry], None]] = []

    @property
    def lock(self) -> threading.RLock:
        """To be held while ops are added and removed; no work is deferred once it is held."""
        run_deferred()
        return self._lock

    def __iter__(self) -> Iterator[Entry]:
        with self.lock:
            return iter([*self._by_name.values(), *self._plain.values()])

    @contextlib.contextmanager
    def room_for(self, definition: Definition) -> Iterator[_compat.DefinedOp | None]:
        """Take what is redefined out of the way; raise if the name belongs to something else.

        If torch can keep the schema of an op that stood in, and with it handles and calls that are
        under way, that is handed on; calls that begin meanwhile wait.
        """
        old = self._by_name.get(definition.name)
        if old is None:
            yield None
        elif not old.stands_in:
            self._refuse_other(old, definition)
            self.remove(old, "replaced by a new definition")
            yield None
        elif not old.registration.fits(definition):
            self.remove(old, "replaced by its source")
            yield None
        else:
            with _compat.waiting(old.overload, self._lock):
                try:
                    yield old.registration.hand_on()
                except BaseException:
                    self.remove(old, "replaced by its source")
                    raise

    def amend(self, entry: Entry, definition: Definition) -> None:
        """Give an op other kernels and rules; calls that begin meanwhile wait."""
        with self.lock, _compat.waiting(entry.overload, self._lock):
            self._tell("amending", entry)
            try:
                entry.registration.amend(definition)
            except BaseException:
                self.remove(entry, "not amended")
                raise
            self._tell("amended", entry)

    def _refuse_other(self, old: Entry, new: Definition) -> None:
        if not _redefines(old, new.fn):
            found = f"already defined at {old.location}, again at {new.location}"
            fix = "rename one of them, or opforge.unregister the first"
            first, second = old.fn.__module__, new.fn.__module__
            if old.location == new.location and first != second:
                found = f"its file is loaded twice, as {first} and as {second}"
                fix = "import it under one name; a script's ops go into a module that it imports"
            raise BadRegistration(
                f"{new.name} is defined twice",
                found=found,
                fix=fix,
                op=new.name,
                location=new.location,
            )

    def add(self, entry: Entry) -> None:
        if entry.overload is not None:
            self._by_name[entry.name] = entry
            self._tell("added", entry)
            return
        for old in [e for e in self._plain.values() if _redefines(e, entry.fn)]:
            self.remove(old, "replaced by a new definition")
        self._plain[id(entry.handle)] = entry

    def remove(self, entry: Entry, why: str) -> None:
        with self.lock:
            self._tell("removed", entry)
            entry.undo(why)
            if entry.overload is None:
                self._plain.pop(id(entry.handle), None)
            else:
                self._by_name.pop(entry.name, None)

    def _tell(self, event: Event, entry: Entry) -> None:
        for watcher in self.watchers:
            watcher(event, entry)

    def find(self, op: Any) -> Entry | None:
        """The entry of a handle, an overload, a packet or a "ns::op" name."""
        run_deferred()
        # Of any object nothing but the type is looked at: more may run code of the object's.
        kind = type(op)
        if issubclass(kind, str):
            return self._by_name.get(op)
        plain = self._plain.get(id(op))
        if plain is not None:
            return plain
        if "stands_for_overload" in type.__getattribute__(kind, "__dict__"):
            op = op.overload
        overload = _compat.overload_of(op)
        if overload is None:
            overload = _compat.operators.marked_overload(op)
        if overload is None:
            return None
        entry = self._by_name.get(_compat.qualified_name(overload))
        return entry if entry is not None and entry.overload is overload else None

    def is_op(self, value: Any) -> bool:
        """Whether a value, rather than the name that a string holds, is an op."""
        return not issubclass(type(value), str) and self.find(value) is not None

    def get(self, op: Any) -> Entry:
        entry = self.find(op)
        if entry is None:
            raise WrongArgument(
                f"{op!r} is not an opforge op",
                found=type(op).__name__,
                fix="decorate it with @opforge.op; if you did, it was unregistered or replaced",
            )
        return entry


def running_pass(namespace: dict[str, Any]) -> types.CodeType | None:
    """The module-level code of `namespace` that is running now, if it is.

    Importing, reloading and running a notebook cell each compile the code again, so the code
    object tells two passes apart, while two definitions in one pass share it.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is namespace:
            return frame.f_code
        frame = frame.f_back
    return None


def _redefines(old: Entry, fn: Any) -> bool:
    same = (old.fn.__module__, old.fn.__qualname__) == (fn.__module__, fn.__qualname__)
    if not same or "<locals>" in fn.__qualname__:
        return False
    now = running_pass(fn.__globals__)
    return now is not None and now is not old.definition_pass


registry = Registry()
