"""Kernels of a folder in place of Triton's JIT: which launches they serve, and what others do."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from .. import _compat
from ..errors import NotFound, NotServable, NotServed, warn
from ..native.artifacts.hashes import VerifiedFiles, fault, read_sums, sums_path
from ..native.ir.kernels import (
    Image,
    ServedFunction,
    ServedInstance,
    ServedVariant,
    image_file,
)
from ..recording.constants import CannotRecord, decode, name_of
from . import manifest as manifests
from .manifest import AGAIN, DESCRIPTOR, EXTENSION

COVER = "record it with `opforge record`, and build again with `opforge build`"
_NOTES = "fix what `opforge build --force ...` notes about it"
_ALWAYS = "such launches are always Triton's; serve without strict to allow them"
_SETTINGS = "set it as it was, or record and build again"
_CONSTANT = "use a number, or another constant, in its place, record it and build again"
# Of the rows in the table that is made for a kernel: its launch compares its source.
_OWN = ""
_LOOK = "leave that out: only Triton's compiler can tell"


class Gap(NamedTuple):
    """`reason` is one of few, without values; `detail`, if there is one, has those of a launch.

    Where recording would not help, `fix` says what would. A call that Triton refuses is its own to
    refuse, in strict mode, too.
    """

    reason: str
    fix: str = COVER
    detail: str = ""
    is_refused: bool = False

    def __str__(self) -> str:
        return self.detail or self.reason

    def warning(self, name: str, instead: str) -> str:
        said = f"{name} is {instead}: {self}"
        return said if self.fix == _ALWAYS else f"{said}. To serve it, {self.fix}"


def from_extension(reason: str, detail: str, remedy: str) -> Gap:
    """As the extension tells it."""
    if remedy == "arch":
        return other_arch(reason)
    fixes = {"record": COVER, "build": _NOTES}
    return Gap(reason, fixes.get(remedy, _ALWAYS), detail, remedy == "call")


def other_arch(reason: str) -> Gap:
    """Nothing was built for the current device."""
    arch = _compat.device.device_arch()
    return Gap(reason, f"build again with `opforge build ... --arch {arch}`")


def undeclared(name: str) -> Gap:
    """A parameter is given a constant, and has no annotation that says so."""
    return Gap(
        f"{name} is a constant, but not annotated as tl.constexpr",
        f"annotate it ({name}: tl.constexpr), record it and build again",
    )


_TUPLES = Gap("nothing was built for tuples of these lengths")


class _Passed(threading.local):
    """What the program passed to a launch, while it is tried in another form."""

    launch: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    # Whose launch it is: others may be made meanwhile.
    fn: Any = None


class Counted:
    """Kernels of one name: there may be several jitted functions, graphs and sources of it."""

    def __init__(self) -> None:
        self.kernels: list[Any] = []

    def counts(self) -> dict[str, int]:
        each = [kernel.counts() for kernel in self.kernels]
        return {name: sum(counts[name] for counts in each) for name in ("served", "general")}


class ServedFolder(_compat.autotuning.Adviser):
    """A folder that is served; `kernel_of` is asked at the first launch of a jitted function."""

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
        sums = folder / sums_path("served")
        # Without hashes, as a folder that was copied in part may be, every name will do.
        self._listed = read_sums(sums).keys() if sums.exists() else None
        self.handed_over: Counter[tuple[str, str]] = Counter()
        self.served: dict[str, Counted] = {}
        self._known: dict[str, list[ServedFunction]] = {}
        self._of_scripts: dict[str, list[ServedFunction]] = {}
        self._choices: dict[str, Any] = {}
        self._images: dict[str, Any] = {}
        self._configured = False
        self._passed = _Passed()
        for kernel in self.manifest.functions:
            self._known.setdefault(f"{kernel.module}:{kernel.name}", []).append(kernel)
            if kernel.module.endswith(".py"):
                self._of_scripts.setdefault(kernel.name, []).append(kernel)

    def kernel_of(self, fn: Any) -> Any:
        """What serves a jitted function, or hands its launches over."""
        name = name_of(_compat.compiled.function_of(fn))
        known = self._kernels_of(fn)
        if not known:
            return _Unserved(self, fn, Gap(f"{name} is not in {self.folder}"))
        try:
            hashed = _compat.kernel_hash.kernel_hash(fn)
        except _compat.kernel_hash.NoText as error:
            return _Unserved(self, fn, Gap(str(error), _CONSTANT))
        kernel = next((kernel for kernel in known if kernel.source == hashed.digest), None)
        if kernel is None:
            edited = (
                f"it is not the kernel that {self.folder} was built from: it, or something that it "
                "uses, has been edited"
            )
            return _Unserved(self, fn, Gap(edited))
        otherwise = self.set_otherwise()
        if otherwise:
            return _Unserved(self, fn, Gap(otherwise, _SETTINGS))
        if any(instance.names for instance in kernel.instances):
            made = _TupleKernel(self, fn, kernel, hashed.watched)
        else:
            made = self.make(fn, kernel, hashed.watched)
        self.served.setdefault(name, Counted()).kernels.append(made)
        return made

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

    def _kernels_of(self, fn: Any) -> list[ServedFunction]:
        """What the folder has for a function, also if it was recorded in the main script."""
        function = _compat.compiled.function_of(fn)
        name, own = name_of(function), function.__qualname__
        known = self._known.get(name) or self._known.get(f"{function.__code__.co_filename}:{own}")
        moved = self._of_scripts.get(own)
        if known or not moved or not name.rpartition(":")[0].endswith(".py"):
            return known or []
        # A script that runs under another path now, if it is the same.
        source = _compat.kernel_hash.hash_or_unique(fn).digest
        return [kernel for kernel in moved if kernel.source == source]

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
        missing = []
        for key in self.manifest.keys:
            try:
                self.image(key).load()
            except LookupError as error:  # noqa: PERF203  # they are loaded once
                missing.append(str(error))
        # Some kernels may not compile for every architecture.
        if not missing or len(missing) < len(self.manifest.keys):
            return
        gap = other_arch(missing[0])
        if self.strict:
            raise NotServed(f"{self.folder} does not cover this GPU: {gap}", fix=gap.fix)
        warn(f"{self.folder} does not cover this GPU: {gap}. To serve it, {gap.fix}")

    def make(
        self,
        fn: Any,
        kernel: ServedFunction,
        watched: Iterable[Any],
        whole: _TupleKernel | None = None,
    ) -> Any:
        """A kernel of the extension; `whole` is that of the function that takes the tuples."""
        original = fn if whole is None else whole.fn
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

        def give_up(grid: Any, args: Any, kwargs: Any, gap: Gap) -> Any:
            # Triton gets what the program passed, not what was tried in its place.
            if whole is not None:
                args, kwargs = whole.passed.launch or (args, kwargs)
            return self.hand_over(original, grid, args, kwargs, gap)

        def hand_over(grid: Any, args: Any, kwargs: Any, *said: str) -> Any:
            passed = self._passed
            if passed.fn is fn and passed.launch is not None:
                args, kwargs = passed.launch
                passed.fn = passed.launch = None
                return give_up(grid, args, kwargs, from_extension(*said))
            plain = _compat.served.plain_arguments(fn, args, kwargs)
            constant = _undeclared(fn, args, kwargs)
            if plain is None or constant is not None:
                return give_up(grid, args, kwargs, constant or from_extension(*said))
            passed.fn, passed.launch = fn, (args, kwargs)
            try:
                return made.bind(grid)(*plain[0], **plain[1])
            finally:
                passed.fn = passed.launch = None

        watches = tuple(_compat.served.watches_of(original, watched))
        defaults = _compat.served.default_options(fn)
        classes = _compat.tma.descriptor_classes(gluon=_compat.kernels.is_gluon(fn))
        made = self.extension.Kernel(
            kernel.name, params, hand_over, watches, defaults, kernel.location, classes
        )
        for instance in kernel.instances:
            self._add(made, fn, instance, whole)
        return made

    def _add(
        self, made: Any, fn: Any, instance: ServedInstance, whole: _TupleKernel | None
    ) -> None:
        try:
            constants = {n: decode(value, _find_loaded) for n, value in instance.constants}
            given = {n: decode(value, _find_loaded) for n, value in instance.options}
        except (NotFound, CannotRecord):
            # No launch can pass what is not there any more.
            return
        # Triton, too, tells launches apart by the parameter alone where an option is one.
        options = {n: value for n, value in given.items() if n not in fn.arg_names}
        constexprs = {param.name for param in fn.params if param.is_constexpr}
        passed = [name for name in fn.arg_names if name not in constexprs]

        def variant(one: ServedVariant) -> tuple[Any, ...]:
            compiled = functools.partial(self._by_triton, fn, instance, one, constants, given)
            again = _Relaunch(whole or made, passed, constants, options, compiled)
            return one.types, self.image(one.kernel), again

        kinds = tuple(map(_compat.compiled.dtype_of, instance.kinds))
        others = _compat.served.other_options(fn, options)
        made.add(tuple(constants.values()), kinds, others, [*map(variant, instance.variants)])

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
        looked = Gap(f"the program looks at .{attribute} of what it returned", _LOOK)
        self._tell_of(fn, looked)
        asked = _for_triton(fn, instance, variant.types, constants, options)
        return _compat.compiling.by_triton(asked)

    def image(self, key: str) -> Any:
        """The extension's image of a kernel, made once: several variants may share it."""
        if key not in self._images:
            functions = [self._function(key, image) for image in self.manifest.images(key)]
            self._images[key] = self.extension.Image(functions)
        return self._images[key]

    def _function(self, key: str, image: Image) -> tuple[Any, ...]:
        return (
            image.arch.number,
            self._content(key, image),
            image.function,
            image.arch.warp_size * image.num_warps,
            image.shared,
            image.num_ctas,
            image.cooperative,
            image.global_scratch_size,
            image.global_scratch_align,
            image.pdl,
            tuple(
                (one.element, one.element_size, one.swizzle, one.is_padded_fp4, one.block)
                for one in image.maps
            ),
            image.descriptor_flags,
            image.arch.vendor,
        )

    def _content(self, key: str, image: Image) -> bytes:
        """What is loaded of an image; `NotServable` for one that is cut short or not listed."""
        file = image_file(key, image.arch)
        path = self.folder / file
        if self._verified is not None:
            return self._verified.read(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise NotServable(
                f"{self.folder} lacks {file}, an image for {image.arch}: {error.strerror}",
                fix=AGAIN,
            ) from None
        why = ""
        if len(content) != image.size:
            why = f"it has {len(content)} bytes of {image.size}"
        elif self._listed is not None and file not in self._listed:
            why = "SHA256SUMS does not list it"
        if why:
            raise NotServable(f"{path} is damaged: {why}", fix=AGAIN)
        return content

    def hand_over(
        self, fn: Any, grid: Any, args: Any, kwargs: Any, gap: Gap, *, warmup: bool = False
    ) -> Any:
        """A launch that is not covered: Triton's, or an error."""
        if not (gap.is_refused or _compat.served.has_unknown_options(fn, kwargs)):
            self._tell_of(fn, gap)
        return _compat.served.run_jitted(fn, grid, args, kwargs, warmup=warmup)

    def _tell_of(self, fn: Any, gap: Gap) -> None:
        name = name_of(_compat.compiled.function_of(fn))
        self.tell(name, gap, "launched by Triton", _compat.kernels.kernel_location(fn))

    def tell(self, name: str, gap: Gap, instead: str, location: str | None = None) -> None:
        """Raise in strict mode, or warn once, of a launch or a graph's kernel that needs Triton."""
        if self.strict:
            what = name if location is None else f"this launch of {name}"
            raise NotServed(
                f"{what} is not covered by {self.folder}: {gap}",
                location=location,
                fix=gap.fix,
            ) from None
        if not self.handed_over[name, gap.reason]:
            warn(gap.warning(name, instead))
        self.handed_over[name, gap.reason] += 1

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

    def _table(self, tuner: Any, kernels: list[ServedFunction]) -> Any:
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

    def _recorded_config(self, tuner: Any, kernels: list[ServedFunction]) -> Any:
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

    def __init__(self, server: ServedFolder, fn: Any, gap: Gap) -> None:
        self._server, self._fn, self._gap = server, fn, gap

    def bind(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self._server.hand_over(
            self._fn, grid, args, kwargs, self._gap
        )


class _TupleKernel:
    """Launches with tuples as arguments: a kernel for each way in which they are made up.

    It is given their items.
    """

    def __init__(
        self, server: ServedFolder, fn: Any, kernel: ServedFunction, watched: Iterable[Any]
    ) -> None:
        self._server, self.fn = server, fn
        self.passed = _Passed()
        self._kernels = {}
        for names in {(), *(instance.names for instance in kernel.instances)}:
            own = tuple(one for one in kernel.instances if one.names == names)
            flat = _flattened(fn, names) if names else fn
            made = server.make(flat, kernel._replace(instances=own), watched, self)
            self._kernels[names] = made

    def bind(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self._launch(grid, args, kwargs)

    def _launch(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        fn, plain = self.fn, self._kernels[()]
        named = {name: value for name, value in kwargs.items() if name in fn.arg_names}
        try:
            bound = fn.signature.bind(*args, **named)
        except TypeError:
            # Triton refuses it.
            return plain.bind(grid)(*args, **kwargs)
        bound.apply_defaults()
        free = {param.name for param in fn.params if not param.is_constexpr}
        items: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            items.update(_items(name, value) if name in free else [(name, value)])
        names = tuple(name for name in items if name.partition(".")[0] in free)
        if not any("." in name for name in names):
            return plain.bind(grid)(*args, **kwargs)
        if names not in self._kernels:
            return self._server.hand_over(fn, grid, args, kwargs, _TUPLES)
        if callable(grid):
            grid = grid(dict(bound.arguments))
        options = {name: value for name, value in kwargs.items() if name not in named}
        self.passed.launch = args, kwargs
        try:
            return self._kernels[names].bind(grid)(**items, **options)
        finally:
            self.passed.launch = None

    def counts(self) -> dict[str, int]:
        counted = Counted()
        counted.kernels += self._kernels.values()
        return counted.counts()


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """`xs.0` and `xs.1` of a tuple `xs`; anything else as it is."""
    if type(value) is not tuple:
        yield name, value
        return
    for at, item in enumerate(value):
        yield from _items(f"{name}.{at}", item)


def _flattened(fn: Any, names: tuple[str, ...]) -> Any:
    """The jitted function, with items of tuples for parameters."""
    flat = object.__new__(type(fn))
    vars(flat).update(vars(fn))
    flat.params = []
    for param in fn.params:
        if param.is_constexpr:
            flat.params.append(param)
            continue
        flat.params += [
            SimpleNamespace(
                name=name,
                is_constexpr=False,
                has_default=False,
                default=None,
                do_not_specialize=param.do_not_specialize,
                do_not_specialize_on_alignment=param.do_not_specialize_on_alignment,
                annotation_type=param.annotation_type,
            )
            for name in names
            if name.partition(".")[0] == param.name
        ]
    return flat


class _Relaunch:
    """Launches again: wrappers of packages keep it, for `returned[grid](*args)`.

    They pass all arguments or, as some versions of Triton want it, those without constants. Its
    other attributes are those of Triton's kernel: `compiled(attribute)` makes it for the first.
    """

    def __init__(
        self,
        kernel: Any,
        passed: list[str],
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
        compiled: Callable[[str], Any],
    ) -> None:
        self._kernel, self._passed = kernel, passed
        self._constants, self._options = constants, options
        self._compiled, self._made = compiled, None

    def __getitem__(self, grid: Any) -> Any:
        launch = self._kernel.bind(grid)

        def again(*args: Any, **named: Any) -> Any:
            if len(args) == len(self._passed):
                named |= dict(zip(self._passed, args, strict=True))
            elif args:
                return launch(*args, **named, **self._options)
            return launch(**{**self._constants, **self._options, **named})

        return again

    def __getattr__(self, name: str) -> Any:
        # Python asks for those that it knows: to copy, to pickle, to show.
        if name.startswith("__"):
            raise AttributeError(name)
        if self._made is None:
            self._made = self._compiled(name)
        return getattr(self._made, name)


def _for_triton(
    fn: Any,
    instance: ServedInstance,
    types: tuple[str, ...],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
) -> _compat.compiling.Variant:
    """What Triton is to compile for a variant: ("*fp16", "p16") is "*fp16", divisible by 16."""
    # Of a kernel whose tuples are taken apart, the names of their items.
    names = [param.name for param in fn.params]
    runtime = [param.name for param in fn.params if not param.is_constexpr]
    signature, values = dict.fromkeys(names, "constexpr"), dict(constants)
    divisible = set()
    for name, kind, assumed in zip(runtime, instance.kinds, types, strict=True):
        if assumed in {"1", "none"}:
            values[name] = 1 if assumed == "1" else None
            continue
        base, _, by_16 = assumed.partition(":")
        signature[name] = kind if assumed in {"p", "p16", DESCRIPTOR} else base
        if by_16 or assumed == "p16":
            divisible.add(name)
    return _compat.compiling.Variant(
        fn,
        _compat.device.device_arch(),
        signature,
        values,
        options,
        tuple(at for at, name in enumerate(names) if name in divisible),
    )


def _find_loaded(name: str, source: str | None) -> Any:
    """What `module:qualified.name` is here; a jitted function only if it has the source.

    A launch passes what is imported already.
    """
    home, _, path = name.rpartition(":")
    for module in _modules(home):
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        if source is None and found is not None:
            return found
        kernel = _compat.kernels.innermost(found)
        if (
            _compat.compiled.is_jitted(kernel)
            and _compat.kernel_hash.hash_or_unique(kernel).digest == source
        ):
            return kernel
    from .find import find_constant

    return find_constant(name, source)


def _modules(home: str) -> Iterator[ModuleType]:
    """The module of a name, or those of a script's file: the program that runs it, first."""
    if not home.endswith(".py"):
        yield from filter(None, [sys.modules.get(home)])
        return
    mains = [sys.modules[name] for name in ("__main__", "__mp_main__") if name in sys.modules]
    for module in [*mains, *sys.modules.values()]:
        if getattr(module, "__file__", None) == home:
            yield module


def _undeclared(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Gap | None:
    """A constant of a launch whose parameter does not say that it takes one."""
    given = {**dict(zip(fn.arg_names, args, strict=False)), **kwargs}
    for param in fn.params:
        value = given.get(param.name, param.default)
        if _compat.served.is_undeclared_constant(param, value):
            return undeclared(param.name)
    return None


def extension_file(folder: Path) -> Path:
    """The extension module of a folder; `NotServable` if it is not there, or cut short."""
    path = folder / f"{EXTENSION}.abi3.so"
    why = fault(path, folder, "served") if path.is_file() else "there is no such file"
    if why:
        raise NotServable(f"{path} cannot be used: {why}", fix=AGAIN)
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
