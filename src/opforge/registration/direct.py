"""Calls of an op in eager without the dispatcher, where it would only lead to the op's body.

The dispatcher turns arguments into C++ values and back, which is most of what a call costs. Whether
it would do more is known once its keys were looked at; from then on a guard recognises such calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .. import _compat
from ..locks import fork_safe_lock
from ..model import MISSING, Lowered
from .generated import COUNTED, FOLLOWED, Generated, KernelWriter

# Keys at which a kernel is for every backend that has none of its own.
COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def listed_name(name: str, key: str) -> str:
    """How torch lists a Python kernel; that of the op's own body is taken off its list."""
    return f"{name.replace('::', '/')}/{key}"


def is_overridden(name: str) -> bool:
    """Whether somebody registered a kernel for every backend, in place of the body."""
    return any(listed_name(name, key) in _compat.python_impls for key in COMPOSITE)


class PlainKeysets(dict[int, str]):
    """Raw keyset -> the name under which torch would list somebody else's kernel.

    A keyset is plain if there is exactly one dense backend below the calling key, and nobody else
    registered a kernel for that backend (`torch.library.register_kernel`). torch lists the Python
    kernels of all ops in one set, under names such as "mylib/silu/CPU"; every call tests that the
    name is still absent.

    `only`: the backends that the body is for, and is registered at; None if it is for all.
    """

    def __init__(self, name: str, below: Any, only: frozenset[str] | None = None) -> None:
        super().__init__()
        self._name = name
        self._below = below
        self._only = only
        self._mixed: set[int] = set()

    def clear(self) -> None:
        super().clear()
        self._mixed.clear()

    def learn(self, keyset: Any) -> bool:
        """Whether a keyset is plain, which is remembered."""
        raw = keyset.raw_repr()
        if raw in self._mixed:
            return False
        backend = _compat.backend_of(keyset & self._below)
        if backend is None or not self._runs_body(backend) or is_overridden(self._name):
            # For good: redispatching is always right, and calling the body directly only faster.
            self._mixed.add(raw)
            return False
        self[raw] = listed_name(self._name, backend)
        return True

    def _runs_body(self, backend: str) -> bool:
        if self._only is None:
            return not _compat.has_kernel(self._name, backend)
        return backend in self._only and (
            listed_name(self._name, backend) not in _compat.python_impls
        )


# What a torch raises that has no such guards, or others.
_REFUSED = (AttributeError, ImportError, RuntimeError, TypeError)
# Guards of one op: what else it is called with goes to the dispatcher.
_MOST = 8
# Calls that no guard knows are all examined at first, and then one in so many.
_AT_FIRST, _SELDOM = 16, 64


class DirectCalls:
    """The function in front of an op's dispatcher, and the guards of the calls that it makes."""

    def __init__(
        self,
        generated: Generated,
        overload: Any,
        writer: KernelWriter,
        body_keys: frozenset[str] | None,
        autocast: Collection[str],
    ) -> None:
        """`autocast`: the device types with a rule for it."""
        self._generated = generated
        self._lowered: Lowered = generated.lowered
        self._overload = overload
        self._writer = writer
        self._autocast = autocast
        arguments = self._lowered.arguments
        self._by_place = sum(not a.keyword_only for a in arguments)
        # The defaults that complete a call with so many arguments.
        self._tails = {
            count: tuple(a.default for a in arguments[count:])
            for count in range(self._by_place + 1)
            if all(a.default is not MISSING for a in arguments[count:])
        }
        self._keysets = PlainKeysets(generated.name, _compat.after_inplace_or_view, body_keys)
        self._misses = 0
        self._is_refused = False
        self._scope: Any = None
        self._is_over = False
        self._lock = fork_safe_lock()

    def begin(self) -> bool:
        """Make calls directly from now on; returns whether anything has changed."""
        with self._lock:
            if self._scope or self._is_over or _compat.is_waited_for(self._overload):
                return False
            try:
                guards = _compat.guards
            except _REFUSED:
                return False
            self._put_in_front(guards)
            return True

    def _put_in_front(self, guards: Any) -> None:
        namespace = self._generated.namespace
        self.forget()
        namespace.update(
            _of_placed=self._placed,
            _of_missed=self._missed,
            _of_profiled=guards.is_profiled,
            _of_modes=guards.count_modes,
            _of_function_modes=guards.has_function_modes,
            _of_count_writes=guards.increment_versions,
            **{f"_of_absent_{a.name}": None for a in self._lowered.tensors},
        )
        direct = namespace.get("_of_direct")
        if direct is None:
            direct = self._generated.later("_of_direct", self._writer.direct)
        self._scope = _compat.in_front(
            self._overload, direct, lambda op: namespace.update(_of_op=op)
        )
        self._scope.__enter__()

    def end(self, *, for_good: bool = True) -> None:
        """Let the dispatcher have every call again."""
        with self._lock:
            self._is_over = self._is_over or for_good
            self.forget()
            if self._scope is not None:
                self._scope.__exit__(None, None, None)
                self._scope = None

    def forget(self) -> None:
        """Examine calls anew."""
        self._generated.namespace.update(_of_guards=(), _of_watched=frozenset())
        self._keysets.clear()
        self._misses = 0

    def _placed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """All arguments of a call by place; None if torch has to refuse it."""
        if not kwargs:
            tail = self._tails.get(len(args))
            return None if tail is None else (*args, *tail)
        given, used = [*args], 0
        for argument in self._lowered.arguments[len(args) :]:
            value = kwargs.get(argument.name, MISSING)
            used += value is not MISSING
            given.append(argument.default if value is MISSING else value)
        lacks = any(value is MISSING for value in given)
        misplaced = used != len(kwargs) or len(args) > self._by_place
        return None if lacks or misplaced else tuple(given)

    def _missed(self, *tensors: Any) -> None:
        self._misses += 1
        if self._misses > _AT_FIRST and self._misses % _SELDOM:
            return
        namespace = self._generated.namespace
        is_full = len(namespace["_of_guards"]) >= _MOST
        if not (is_full or self._is_refused):
            try:
                self._learn(tensors)
            except _REFUSED:
                self._is_refused = True

    def _learn(self, tensors: Sequence[Any]) -> None:
        """Make a guard for calls like this one, if the dispatcher would do nothing to it."""
        given = [t for t in tensors if t is not None]
        if not given or not _compat.guards.are_plain(given):
            return
        device = given[0].device.type
        casts = "" if device in self._autocast else f"Autocast{_compat.backend_key(device)}"
        keys = _compat.guards.Keys(given, casts)
        backend = keys.backend(given)
        if backend is None:
            return
        # A guard asks whether inputs require grad, and not whether grad is enabled.
        asks = self._writer.guarded or keys.has_autograd
        followed = asks and any(t.requires_grad for t in given)
        name, namespace = self._generated.name, self._generated.namespace
        # Wherever somebody may register a kernel that would run in place of the op's own.
        watched = [backend, "Autograd", f"Autograd{backend}", "BackendSelect", casts, *COMPOSITE]
        if not self._lowered.mutated:
            watched.append("ADInplaceOrView")
        listed = {listed_name(name, key) for key in watched if key}
        if not self._keysets.learn(keys.below) or not _compat.python_impls.isdisjoint(listed):
            return
        for argument, value in zip(self._lowered.tensors, tensors, strict=True):
            if value is None and namespace[f"_of_absent_{argument.name}"] is None:
                namespace[f"_of_absent_{argument.name}"] = _compat.guards.absent()
        present = [
            namespace[f"_of_absent_{a.name}"] if value is None else value
            for a, value in zip(self._lowered.tensors, tensors, strict=True)
        ]
        check = _compat.guards.guard(present, backend)
        if check is not None:
            counted = keys.counts_writes and bool(self._lowered.mutated)
            how = COUNTED * counted | FOLLOWED * followed
            namespace["_of_watched"] |= listed
            namespace["_of_guards"] = (*namespace["_of_guards"], (check, how))
