"""Kernels of a folder in place of Triton's JIT: which launches they serve, and what others do."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import _compat
from ..errors import NotFound, NotServable, NotServed, warn
from ..locks import fork_safe_lock
from ..native.artifacts.hashes import VerifiedFiles, fault
from ..recording.constants import CannotRecord, ConstantChanged, decode, name_of
from . import manifest as manifests
from .gaps import COVER, Gap, from_extension, gap, other_arch, undeclared
from .inductor import CompiledGraphs, Counted
from .kinds import INTEGERS, OTHERS
from .loaded import find_loaded
from .manifest import EXTENSION, ServedImage, ServedInstance, ServedKernel, ServedVariant
from .relaunch import Relaunch, for_triton
from .tuples import whole, with_tuples

_AGAIN = "build it again with `opforge build launches.json`"
_SETTINGS = "set it as it was, or record and build again"
_CONSTANT = "use a number, or another constant, in its place, record it and build again"
# Of the rows in the table that is made for a kernel: its launch compares its source.
_OWN = ""
_LOOK = "leave that out: only Triton's compiler can tell"
_ANNOTATE = "leave the annotation out, record it and build again"


class _Tried(threading.local):
    """A launch that is tried with plain types: the function, and what it was really given."""

    given: tuple[Any, Any, Any] | None = None


class ServedFolder(_compat.advice.Adviser):
    """A folder that is served; `kernel_of` is asked once for each jitted function."""

    def __init__(
        self,
        folder: Path,
        *,
        strict: bool,
        tune_missing: bool,
        verified: VerifiedFiles | None = None,
    ) -> None:
        self.folder, self.strict, self.tune_missing = folder, strict, tune_missing
        self._verified = verified
        text = None if verified is None else verified.read(folder / manifests.NAME)
        self.manifest = manifests.read(folder, text)
        self.extension = load_extension(folder, verified)
        self.handed_over: Counter[tuple[str, str]] = Counter()
        self.served: dict[str, Counted] = {}
        # By the id of a jitted function, which what is made for it keeps.
        self._made_of: dict[int, Any] = {}
        self._lock = fork_safe_lock()
        self._known: dict[str, list[ServedKernel]] = {}
        self._of_scripts: dict[str, list[ServedKernel]] = {}
        self._choices: dict[str, Any] = {}
        self._images: dict[tuple[str, ...], Any] = {}
        self._configured = False
        self._tried = _Tried()
        self.compiled_graphs = CompiledGraphs(self)
        for kernel in self.manifest.kernels:
            self._known.setdefault(f"{kernel.module}:{kernel.name}", []).append(kernel)
            if kernel.module.endswith(".py"):
                self._of_scripts.setdefault(kernel.name, []).append(kernel)

    def kernel_of(self, fn: Any) -> Any:
        """What serves a jitted function, or hands its launches over."""
        name = name_of(_compat.compiled.function_of(fn))
        known = self._kernels_of(fn)
        if not known:
            return _Unserved(self, fn, self._absent(fn, name))
        try:
            hashed = _compat.kernel_hash.kernel_hash(fn)
        except _compat.kernel_hash.NoText as error:
            return _Unserved(self, fn, gap(str(error), _CONSTANT))
        source = hashed.digest
        found = next((kernel for kernel in known if kernel.source == source), None)
        if found is None:
            return _Unserved(self, fn, gap(self._changed(fn, name)))
        odd = _odd_annotation(fn)
        if odd:
            return _Unserved(self, fn, gap(odd, _ANNOTATE))
        otherwise = self.set_otherwise()
        if otherwise:
            return _Unserved(self, fn, gap(otherwise, _SETTINGS))
        with self._lock:
            # Of one function there may be several jitted ones, each with hooks of its own.
            if id(fn) not in self._made_of:
                make = functools.partial(self._made, watched=hashed.watched)
                made = self._made_of[id(fn)] = with_tuples(fn, found, make, self.hand_over)
                self.served.setdefault(name, Counted()).kernels.append(made)
            return self._made_of[id(fn)]

    def set_otherwise(self) -> str:
        """Which variable would have Triton compile other code than the folder has, if one does."""
        settings = _compat.settings
        found = settings.difference(self.manifest.settings, settings.current())
        if found is None:
            return ""
        name, then, now = found
        return (
            f"{name}, which changes what Triton compiles, is {settings.told(now)}, but was "
            f"{settings.told(then)} when {self.folder} was built"
        )

    def _kernels_of(self, fn: Any) -> list[ServedKernel]:
        """What the folder has for a function, also if it was recorded in the main script."""
        function = _compat.compiled.function_of(fn)
        by_file = f"{function.__code__.co_filename}:{function.__qualname__}"
        known = self._known.get(name_of(function)) or self._known.get(by_file)
        return known or self._of_moved_script(fn)

    def _of_moved_script(self, fn: Any) -> list[ServedKernel]:
        """What the folder has of a script that runs under another path now, if it is the same."""
        moved = self._of_scripts.get(_compat.compiled.function_of(fn).__qualname__, [])
        if not moved or not _is_of_script(fn):
            return []
        source = _compat.kernel_hash.hash_or_unique(fn).digest
        return [kernel for kernel in moved if kernel.source == source]

    def _absent(self, fn: Any, name: str) -> Gap:
        """Why the folder does not have a kernel."""
        others = self._of_scripts.get(_compat.compiled.function_of(fn).__qualname__, [])
        if others and _is_of_script(fn):
            place, _, kernel = name.rpartition(":")
            return gap(f"{self.folder} has {kernel} from {others[0].module}, whose source differs "
                       f"from {kernel} in {place}")  # fmt: skip
        return gap(f"{name} is not in {self.folder}")

    def configure(self) -> None:
        """Ask Triton for its driver, which only a process that launches has."""
        if not self._configured:
            try:
                _compat.served.configure(self.extension)
            except AttributeError as error:
                raise NotServable(
                    "this torch cannot launch on a GPU", found=str(error),
                    fix="install a torch that was built with CUDA",
                ) from None  # fmt: skip
            self._configured = True
            os.register_at_fork(after_in_child=self.extension.forget)

    def preload(self) -> None:
        """Load every image onto the current device."""
        instances = [i for kernel in self.manifest.kernels for i in kernel.instances]
        missing = [self._load(variant) for one in instances for variant in one.variants]
        # Some kernels may not compile for every architecture.
        if missing and all(missing):
            self._not_preloaded(other_arch(missing[0]))

    def _load(self, variant: ServedVariant) -> str:
        try:
            self.image(variant).load()
        except LookupError as error:
            return str(error)
        return ""

    def _not_preloaded(self, found: Gap) -> None:
        if self.strict:
            raise NotServed(f"{self.folder} does not cover this GPU: {found.told}", fix=found.fix)
        warn(f"{self.folder} does not cover this GPU: {found.told}. To serve it, {found.fix}")

    def _made(self, fn: Any, kernel: ServedKernel, watched: Iterable[Any]) -> Any:
        params = tuple(
            (
                param.name,
                param.is_constexpr,
                param.has_default,
                _compat.served.plain_for(param, param.default) if param.has_default else None,
                not param.do_not_specialize,
                not param.do_not_specialize_on_alignment,
                bool(param.annotation_type),
            )
            for param in fn.params
        )

        def hand_over(grid: Any, args: Any, kwargs: Any, *said: str) -> Any:
            tried, self._tried.given = self._tried.given, None
            if tried is not None and tried[0] is fn:
                # Triton gets what the program passed, not what was tried in its place.
                return self.hand_over(fn, grid, tried[1], tried[2], from_extension(*said))
            plain = _compat.served.plain_arguments(fn, args, kwargs)
            constant = _undeclared(fn, args, kwargs)
            if plain is None or constant is not None:
                found = constant or from_extension(*said)
                return self.hand_over(fn, grid, args, kwargs, found)
            self._tried.given = fn, args, kwargs
            try:
                return made.bind(grid)(*plain[0], **plain[1])
            finally:
                self._tried.given = None

        watches = tuple(_compat.served.watches_of(fn, watched))
        defaults = _compat.served.default_options(fn)
        classes = _compat.tma.descriptor_classes(gluon=_compat.kernels.is_gluon(fn))
        made = self.extension.Kernel(
            kernel.name, params, hand_over, watches, defaults, kernel.location, classes
        )
        for instance in kernel.instances:
            self._add(made, fn, instance)
        return made

    def _add(self, made: Any, fn: Any, instance: ServedInstance) -> None:
        try:
            constants = {n: decode(value, find_loaded) for n, value in instance.constants}
            given = {n: decode(value, find_loaded) for n, value in instance.options}
        except (NotFound, ConstantChanged):
            # No launch can pass what is not there any more.
            return
        except CannotRecord as error:
            raise NotServable(
                f"{self.folder} has a constant that cannot be read", found=str(error), fix=_AGAIN
            ) from None
        # Triton, too, tells launches apart by the parameter alone where an option is one.
        options = {n: value for n, value in given.items() if n not in fn.arg_names}
        passed = [param.name for param in fn.params if not param.is_constexpr]

        def variant(one: ServedVariant) -> tuple[Any, ...]:
            compiled = functools.partial(self._by_triton, fn, instance, one, constants, given)
            return one.types, self.image(one), Relaunch(made, passed, constants, options, compiled)

        variants = [variant(one) for one in instance.variants]
        kinds = tuple(map(_compat.compiled.dtype_of, instance.kinds))
        others = _compat.served.other_options(fn, options)
        made.add(tuple(constants.values()), kinds, others, variants)

    def _by_triton(  # noqa: PLR0917
        self,
        fn: Any,
        instance: ServedInstance,
        variant: ServedVariant,
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
        attribute: str,
    ) -> Any:
        """Triton's kernel of a variant, for a program that looks at what a launch returned."""
        looked = gap(f"the program looks at .{attribute} of what it returned", _LOOK)
        self._tell(fn, looked)
        asked = for_triton(fn, instance, variant.types, constants, options)
        return _compat.compiling.by_triton(asked)

    def image(self, variant: ServedVariant) -> Any:
        """The extension's image of a variant, made once: several instances may share it."""
        files = tuple(image.file for image in variant.images)
        if files not in self._images:
            functions = [self._function(image) for image in variant.images]
            self._images[files] = self.extension.Image(functions)
        return self._images[files]

    def _function(self, image: ServedImage) -> tuple[Any, ...]:
        return (
            image.arch.number,
            read_image(self.folder, image, self._verified),
            image.symbol,
            image.arch.warp_size * image.num_warps,
            image.shared,
            image.num_ctas,
            image.cooperative,
            image.scratch_size,
            image.scratch_align,
            image.pdl,
            tuple(
                (one.element, one.element_size, one.swizzle, one.is_padded_fp4, one.block)
                for one in image.maps
            ),
            image.descriptor_flags,
            image.arch.vendor,
        )

    def _changed(self, fn: Any, name: str) -> str:
        """Why an edited kernel is not served; nothing stale is ever launched."""
        reason = (
            f"it is not the kernel that {self.folder} was built from: it, or something that it "
            "uses, has been edited"
        )
        if self.strict:
            raise NotFound(
                f"{name}: {reason}", location=_compat.kernels.kernel_location(fn), fix=COVER
            )
        return reason

    def hand_over(
        self, fn: Any, grid: Any, args: Any, kwargs: Any, found: Gap, *, warmup: bool = False
    ) -> Any:
        """A launch that is not covered: Triton's, or an error."""
        fn, kwargs = whole(fn, kwargs)
        if not (found.is_refused or _compat.served.has_unknown_options(fn, kwargs)):
            self._tell(fn, found)
        return _compat.served.run_jitted(fn, grid, args, kwargs, warmup=warmup)

    def _tell(self, fn: Any, found: Gap) -> None:
        """Raise in strict mode, or warn once, of a launch that needs Triton."""
        name = name_of(_compat.compiled.function_of(fn))
        if self.strict:
            raise NotServed(
                f"this launch of {name} is not covered by {self.folder}: {found.told}",
                location=_compat.kernels.kernel_location(fn),
                fix=found.fix,
            )
        if not self.handed_over[name, found.reason]:
            warn(found.warning(name))
        self.handed_over[name, found.reason] += 1

    def advise(self, tuner: Any, key: tuple[Any, ...]) -> Any:
        """The configuration that was recorded for a key, or the nearest; None lets it measure."""
        fn = _compat.kernels.innermost(tuner)
        name = name_of(_compat.compiled.function_of(fn))
        known = self._kernels_of(fn)
        if self.tune_missing or not known:
            return None
        if name not in self._choices:
            self._choices[name] = self._table(tuner, known)
        from ..tuning.choose import choose

        values, dtypes = _compat.autotuning.split_key(key)
        arch = _compat.device.device_arch()
        choice = choose(self._choices[name], tuner, arch, dtypes, values, source=_OWN)
        if choice.index is not None:
            return tuner.configs[choice.index]
        found = self._recorded_config(tuner, known)
        if found is None and self.strict:
            raise NotServed(
                f"{self.folder} has none of the configurations that {name} chooses from",
                location=_compat.kernels.kernel_location(fn),
                fix=COVER,
            )
        return found

    def _table(self, tuner: Any, kernels: list[ServedKernel]) -> Any:
        from ..tuning.table import TunedKernel, TuningRow, TuningTable, as_config

        table = TuningTable()
        for choice in (choice for kernel in kernels for choice in kernel.choices):
            tuned = TunedKernel(
                _compat.kernels.kernel_name(tuner),
                _OWN,
                choice.arch,
                choice.dtypes,
                tuple(name for name, _ in choice.key),
            )
            at = tuple(value for _, value in choice.key)
            table.add(tuned, TuningRow(at, as_config(dict(choice.config)), 0.0))
        return table

    def _recorded_config(self, tuner: Any, kernels: list[ServedKernel]) -> Any:
        """A configuration that is in the folder, where none was measured for the key."""
        given = [
            {**dict(instance.constants), **dict(instance.options)}
            for kernel in kernels
            for instance in kernel.instances
        ]
        for config in tuner.configs:
            wanted = {
                name: value for name, value in config.all_kwargs().items() if value is not None
            }
            if any(wanted.items() <= one.items() for one in given):
                return config
        return None


class _Unserved:
    """In place of a kernel that the folder does not have: each launch is handed over."""

    def __init__(self, server: ServedFolder, fn: Any, found: Gap) -> None:
        self._server, self._fn, self._found = server, fn, found

    def bind(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self._server.hand_over(
            self._fn, grid, args, kwargs, self._found
        )

    def counts(self) -> Mapping[str, int]:
        return {}


def _is_of_script(fn: Any) -> bool:
    return name_of(_compat.compiled.function_of(fn)).rpartition(":")[0].endswith(".py")


def _odd_annotation(fn: Any) -> str:
    """Which parameter has a type that is never served; such a kernel is not built either."""
    for param in fn.params:
        if param.annotation_type and param.annotation_type not in (*INTEGERS, *OTHERS):
            return f"{param.name} is annotated as {param.annotation_type}, which is never served"
    return ""


def _undeclared(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Gap | None:
    """A constant of a launch whose parameter does not say that it takes one."""
    given = {**dict(zip(fn.arg_names, args, strict=False)), **kwargs}
    for param in fn.params:
        value = given.get(param.name, param.default)
        if _compat.served.is_undeclared_constant(param, value):
            return undeclared(param.name)
    return None


def read_image(folder: Path, image: ServedImage, verified: VerifiedFiles | None = None) -> bytes:
    """The content of an image, which is what is loaded; `NotServable` if it is cut short."""
    if verified is not None:
        return verified.read(folder / image.file)
    try:
        content = (folder / image.file).read_bytes()
    except OSError as error:
        raise NotServable(
            f"{folder} lacks {image.file}, an image for {image.arch}: {error.strerror}",
            fix=_AGAIN,
        ) from None
    if len(content) != image.size:
        found = f"it has {len(content)} bytes of {image.size}"
        raise NotServable(f"{folder / image.file} is damaged: {found}", fix=_AGAIN)
    return content


def extension_file(folder: Path) -> Path:
    """The extension module of a folder; `NotServable` if it is not there, or cut short."""
    path = folder / f"{EXTENSION}.abi3.so"
    why = fault(path, folder, "served") if path.is_file() else "there is no such file"
    if why:
        raise NotServable(f"{path} cannot be used: {why}", fix=_AGAIN)
    return path


def load_extension(folder: Path, verified: VerifiedFiles | None = None) -> ModuleType:
    """That module, imported; of verified files, what was compared with its hash."""
    if verified is None:
        return _imported(str(extension_file(folder)))
    content = verified.read(folder / f"{EXTENSION}.abi3.so")
    with tempfile.TemporaryDirectory(prefix="opforge-") as private:
        copy = Path(private, f"{EXTENSION}.abi3.so")
        copy.write_bytes(content)
        return _imported(str(copy))


def _imported(file: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(EXTENSION, file)
    spec = importlib.util.spec_from_loader(EXTENSION, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
