"""Triton's autotuners: their configurations and keys, what they are told to choose, and chose."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import re
import textwrap
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any

import torch

from . import kernels, patches
from .bytecode import is_foreign_name
from .kernels import unwrap_constexpr

# Milliseconds of one call: the median, and a lower and an upper quantile.
Clock = Callable[..., Sequence[float]]


def has_choice(kernel: Any) -> bool:
    return hasattr(kernel, "keys") and len(getattr(kernel, "configs", ())) > 1


def key_names(tuner: Any, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a key's values, without those that a launch does not pass."""
    names = set(tuner.arg_names) & given.keys()
    return tuple(name for name in tuner.keys if name in names)


def split_key(key: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Split Triton's own key into its values and the dtypes of the tensors."""
    count = len(key)
    while count and isinstance(key[count - 1], str) and key[count - 1].startswith("torch."):
        count -= 1
    values = tuple(map(plain, key[:count]))
    return values, tuple(text.removeprefix("torch.") for text in key[count:])


def dtypes_of(tuner: Any, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The dtypes of a launch's tensors, in the order in which they are passed."""
    passed = [v for n, v in given.items() if n in tuner.arg_names]
    return tuple(str(v.dtype).removeprefix("torch.") for v in passed if hasattr(v, "dtype"))


def plain(value: Any) -> Any:
    """A value as a table holds it: text where JSON has no such type. Symbols stay as they are."""
    value = unwrap_constexpr(value)
    kept = (bool, int, float, str, type(None), torch.SymInt, torch.SymFloat, torch.SymBool)
    return value if isinstance(value, kept) else str(value)


def hint(value: Any) -> Any:
    """The value of a size when tracing began, without adding a guard; None if it is unknown."""
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymBool)) else value


def triton_key(tuner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key under which an autotuner keeps its choice for a launch."""
    given = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    passed = {n: v for n, v in given.items() if n in tuner.arg_names}
    key = [passed[n] for n in tuner.keys if n in passed]
    return (*key, *(str(v.dtype) for v in passed.values() if hasattr(v, "dtype")))


def measure(
    tuner: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    clock: Clock,
    configs: Sequence[Any] | None = None,
) -> Iterator[tuple[Any, float]]:
    """Configurations, by default those that pruning leaves, each with its time in microseconds.

    The time is infinite where the GPU lacks the resources for it, as in Triton's own tuning.
    """
    # On a copy: a tuner that other threads use keeps its own clock and arguments.
    measured = copy.copy(tuner)
    measured.nargs = dict(zip(tuner.arg_names, args, strict=False))
    vars(measured)["do_bench"] = clock
    for config in measured.prune_configs(dict(kwargs)) if configs is None else configs:
        median = measured._bench(*args, config=config, **kwargs)[0]
        yield config, float(median) * 1e3


def default_clock() -> Clock:
    """Triton's own: warms up, clears the cache between calls, and takes the median."""
    from triton.testing import do_bench

    return functools.partial(do_bench, warmup=25, rep=100)


_unmeasured: weakref.WeakSet[Any] = weakref.WeakSet()


def take_first(tuner: Any) -> None:
    """Let an autotuner take the first configuration that its pruning leaves, unmeasured."""
    _unmeasured.add(tuner)
    patches.install(patches.AUTOTUNER_CLOCK.by("_bench", _all_equal))
    patches.install(patches.AUTOTUNER_CLOCK.by("check_disk_cache", _past_the_disk))


def _all_equal(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The first of equals wins.
        return [0.0] * 3 if self in _unmeasured else original(self, *args, **kwargs)

    return bench


def _past_the_disk(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def check(self: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> Any:
        if self not in _unmeasured:
            return original(self, tuning_key, configs, bench_fn)
        # The key of the cache on disk needs a GPU and a compiled kernel.
        bench_fn()
        return False

    return check


def choose_config(tuner: Any, key: tuple[Any, ...], config: Any) -> None:
    """Set the choice for a key, so that the next launch does not measure."""
    tuner.cache[key] = config


def with_one_config(tuner: Any, config: Any) -> Any:
    """The same autotuner with a single configuration."""
    copied = copy.copy(tuner)
    copied.configs = [config]
    copied.cache = {}
    return copied


def source_hash(kernel: Any) -> str:
    """A hash of a kernel's function and of the jitted functions and constants that it uses.

    It depends neither on where the function stands in its file nor on the version of Triton, and
    is the same under the interpreter.
    """
    hasher = hashlib.sha256()
    waiting, seen = [kernels.innermost(kernel)], set()
    while waiting:
        base = waiting.pop()
        fn = getattr(base, "fn", base)
        if id(fn) in seen:
            continue
        seen.add(id(fn))
        hasher.update(_text(fn).encode() + b"\0")
        for name, value in sorted(_used(fn).items()):
            if kernels.is_kernel(value) and not _is_foreign(value):
                waiting.append(kernels.innermost(value))
            elif _is_constant(value := unwrap_constexpr(value)):
                hasher.update(f"{name}={value!r}".encode() + b"\0")
    return hasher.hexdigest()[:32]


def _is_constant(value: Any) -> bool:
    """Whether a value has the same repr in every process: numbers, strings, dtypes, tuples."""
    import triton.language as tl

    if isinstance(value, (tuple, list)):
        return all(_is_constant(unwrap_constexpr(item)) for item in value)
    return isinstance(value, (bool, int, float, str, type(None), tl.dtype, torch.dtype))


def _text(fn: Any) -> str:
    text = textwrap.dedent(inspect.getsource(fn))
    match = re.search(r"^def\s", text, re.MULTILINE)
    return text[match.start() :] if match else text


def _used(fn: Any) -> dict[str, Any]:
    names = [*fn.__code__.co_names]
    found = {n: fn.__globals__[n] for n in names if n in fn.__globals__}
    found |= inspect.getclosurevars(fn).nonlocals
    for module in [v for v in found.values() if isinstance(v, ModuleType)]:
        if not is_foreign_name(module.__name__):
            found |= {f"{module.__name__}.{n}": vars(module)[n] for n in names if n in vars(module)}
    return found


def _is_foreign(kernel: Any) -> bool:
    home = getattr(getattr(kernels.innermost(kernel), "fn", kernel), "__module__", "")
    return is_foreign_name(str(home))


# Packages have autotuners of their own: subclasses whose `run` replaces Triton's, with a database
# for a cache. All of them test `key in self.cache` before they measure, so that is where they meet
# advice.
class Adviser:
    """Knows configurations, or wants to know which ones were chosen."""

    def advise(self, tuner: Any, key: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """A configuration; None lets the autotuner measure."""
        return None

    def chosen(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None:
        """Told once for each key and edition."""


class _AdviceState:
    def __init__(self) -> None:
        self.advisers: dict[patches.Patch, Adviser] = {}
        # A new one makes all earlier advice invalid.
        self.edition = 0


_state = _AdviceState()


def ask_first(adviser: Adviser, patch: patches.Patch = patches.AUTOTUNER_ADVICE) -> None:
    """Let every autotuner ask for a configuration before it measures."""
    _state.advisers[patch] = adviser
    patches.install(patch.by("cache", lambda _original: _CACHE))
    ask_again()


def ask_no_more(patch: patches.Patch = patches.AUTOTUNER_ADVICE) -> None:
    """Let autotuners measure again; they keep what they have measured."""
    _state.advisers.pop(patch, None)
    patches.undo(patch)
    ask_again()


def ask_again() -> None:
    """Let autotuners forget the advice that they were given."""
    _state.edition += 1


def _read(tuner: Any) -> Any:
    found = vars(tuner)["cache"]
    if type(found) is not _Choices:
        found = vars(tuner)["cache"] = _Choices(tuner, found)
    return found


def _write(tuner: Any, value: Any) -> None:
    vars(tuner)["cache"] = value


# In front of what an autotuner keeps under that name.
_CACHE = property(_read, _write)


def _pruned(tuner: Any, asked: FrameType | None) -> Any:
    """The autotuner with the configurations that its pruning allows for the launch under way."""
    if not getattr(tuner, "early_config_prune", None):
        return tuner
    # `run` asks its cache, and has the keywords that pruning is given.
    caller = asked and asked.f_back
    kwargs = {} if caller is None else caller.f_locals.get("kwargs", {})
    pruned = copy.copy(tuner)
    # What it estimates decides what is fast, not what is right.
    pruned.perf_model = None
    pruned.configs = pruned.prune_configs(dict(kwargs))
    return pruned


class _Choices(dict[Any, Any]):
    """An autotuner's choices by key; it tests `key in cache` before it reads one."""

    def __init__(self, tuner: Any, own: Any) -> None:
        super().__init__()
        # Kept for keys that get no advice. It need not be a dict.
        self._own = own
        self._tuner = tuner
        self._edition = _state.edition

    def __contains__(self, key: object) -> bool:
        if self._edition != _state.edition:
            self.clear()
            self._edition = _state.edition
        if super().__contains__(key):
            return True
        assert isinstance(key, tuple)
        asking = _pruned(self._tuner, inspect.currentframe())
        advice = (adviser.advise(asking, key) for adviser in _state.advisers.values())
        found = next(filter(None, advice), None) or self._own.get(key)
        if found is None:
            return False
        self._take(key, found)
        return True

    def __setitem__(self, key: Any, config: Any) -> None:
        self._own[key] = config
        self._take(key, config)

    def _take(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        for adviser in _state.advisers.values():
            adviser.chosen(self._tuner, key, config)
