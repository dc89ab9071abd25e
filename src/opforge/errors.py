"""Every exception opforge raises, each also a builtin kind."""

from __future__ import annotations

import sys
import warnings
from typing import Any


class OpforgeError(Exception):
    """Base of all opforge errors.

    The message is rendered from its parts, so the stage that finds a mistake needs to know only
    the mistake; `locate` adds the op and the user's `file:line` in one place.
    """

    def __init__(
        self,
        what: str,
        *,
        parameter: str | None = None,
        found: str | None = None,
        fix: str | None = None,
        op: str | None = None,
        location: str | None = None,
    ) -> None:
        super().__init__()
        self.what = what
        self.parameter = parameter
        self.found = found
        self.fix = fix
        self.op = op
        self.location = location
        self._render()

    def locate(self, op: str | None, location: str | None) -> OpforgeError:
        """Add the op and its `file:line` where they are not known yet."""
        self.op = self.op or op
        self.location = self.location or location
        self._render()
        return self

    def _render(self) -> None:
        # Kept in args: Dynamo shows an error's repr, which is made from them.
        self.args = (self._text(),)

    def _text(self) -> str:
        place = self.op or self.location
        if self.op and self.location:
            place = f"{self.op} ({self.location})"
        named = f"parameter {self.parameter!r}" if self.parameter else None
        where = ", ".join(filter(None, (place, named)))
        details = {"found": self.found, "fix": self.fix}
        lines = [f"  {title}: {text}" for title, text in details.items() if text]
        return "\n".join([f"{where}: {self.what}" if where else self.what, *lines])

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(cls: type[OpforgeError], state: dict[str, str | None]) -> OpforgeError:
    error = cls(state.get("what") or "")
    error.__dict__.update(state)
    return error.locate(None, None)


def first_line(error: object) -> str:
    """The first line of an error's message, where another message quotes it."""
    return (str(error).strip().splitlines() or [""])[0]


def last_line(error: object) -> str:
    """The same of what a compiler says, which comes to the point at the end."""
    return (str(error).strip().splitlines() or [""])[-1].strip()


class BadName(OpforgeError, ValueError):
    """An operator name that torch cannot take."""


class DuplicateOp(OpforgeError, RuntimeError):
    """A name that another definition holds."""


class NotAnOp(OpforgeError, TypeError):
    """Something other than an opforge operator was given where one is needed."""


class UnregisteredOp(OpforgeError, RuntimeError):
    """A handle of an operator that has been unregistered or replaced was called."""


class NotAFunction(OpforgeError, TypeError):
    """The decorator was applied to something other than a plain Python function."""


class MissingAnnotation(OpforgeError, TypeError):
    """Parameters or the return value have no annotation."""


class UnresolvedAnnotation(OpforgeError, TypeError):
    """A stringified annotation names something that is not in scope."""


class UnsupportedParameterKind(OpforgeError, TypeError):
    """`*args` or `**kwargs`."""


class UnsupportedAnnotation(OpforgeError, TypeError):
    """An annotation that has no place in an operator's schema."""


class UnsupportedReturn(OpforgeError, TypeError):
    """A return annotation that an operator cannot return."""


class MutableDataclass(OpforgeError, TypeError):
    """A dataclass parameter that is not frozen."""


class MixedLiteral(OpforgeError, TypeError):
    """A `Literal` whose values are of several kinds."""


class UnsupportedUnion(OpforgeError, TypeError):
    """A union other than with `None`."""


class NameCollision(OpforgeError, ValueError):
    """Two parameters lower to one schema name."""


class BadDefault(OpforgeError, TypeError):
    """A default that does not fit its annotation, or that no schema can carry."""


class UnknownArgument(OpforgeError, ValueError):
    """A name in `mutates_args`, `fake=[...]` or a similar list that is not a parameter."""


class BadOption(OpforgeError, ValueError):
    """A decorator option with a value that cannot be used."""


class UnknownOption(OpforgeError, TypeError):
    """A decorator option that does not exist."""


class BadSchema(OpforgeError, ValueError):
    """A schema that torch cannot parse, or that does not match the function."""


class FakeSignature(OpforgeError, TypeError):
    """A fake that cannot be called like the op."""


class FakeUnknown(OpforgeError, RuntimeError):
    """No fake was given, and none could be derived."""


class FakeMismatch(OpforgeError, RuntimeError):
    """Real outputs differ from what the fake said."""


class AliasedOutput(OpforgeError, RuntimeError):
    """An output shares memory with an input or with another output."""


class WrongReturn(OpforgeError, TypeError):
    """The body, a fake or a kernel returned something other than the annotation says."""


class WrongArgument(OpforgeError, TypeError):
    """A call passed a value that cannot be taken apart as the parameter's type."""


class BadChoice(OpforgeError, ValueError):
    """A value outside a `Literal` or an `Enum`."""


class MissingBackward(OpforgeError, RuntimeError):
    """Autograd went backward through an op that has no backward."""


class ForwardMode(OpforgeError, NotImplementedError):
    """Forward-mode autograd reached an op, which has no rule for it."""


class MutatedLeaf(OpforgeError, RuntimeError):
    """An op mutates a leaf tensor that requires grad while autograd records."""


class GradientCount(OpforgeError, ValueError):
    """`backward` returned the wrong number of gradients."""


class GradientField(OpforgeError, ValueError):
    """`backward` returned a gradient for a field that does not exist."""


class GradientMisplaced(OpforgeError, ValueError):
    """`backward` returned a gradient for something that is not differentiable."""


class GradientType(OpforgeError, TypeError):
    """`backward` returned something that is not a gradient."""


class GradientShape(OpforgeError, ValueError):
    """`backward` returned a gradient of the wrong shape."""


class TargetNotFound(OpforgeError, ValueError):
    """A `module:op` or `file.py:op` that leads nowhere."""


class NotAKernel(BadOption, RuntimeError):
    """`kernels=` names something that Triton cannot launch."""


class ModeRefused(OpforgeError, ValueError):
    """The body does something that the requested mode does not allow."""


class CannotCapture(OpforgeError, RuntimeError):
    """A launch that cannot become part of a compiler's graph."""

    # What is launched; it need not pickle.
    kernel: Any = None

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), {**self.__dict__, "kernel": None})


class UndeclaredWrite(OpforgeError, RuntimeError):
    """A body writes to an input that `mutates_args` does not name."""


class NeedsGpu(OpforgeError, RuntimeError):
    """Kernels were to run, or results to be read, where there is no GPU."""


class AmbiguousOption(OpforgeError, TypeError):
    """An option of `opforge.check` that is also a parameter of the op."""


class BadInput(OpforgeError, ValueError):
    """An `--input` that cannot be read; a caret shows where."""

    def __init__(self, what: str, *, text: str = "", column: int = 0, fix: str = "") -> None:
        self.text = text
        self.column = column
        super().__init__(what, fix=fix or None)

    def _text(self) -> str:
        first, *rest = super()._text().split("\n")
        pointed = [f"    {self.text}", f"    {' ' * self.column}^"] if self.text else []
        return "\n".join([first, *pointed, *rest])


class UnknownInput(OpforgeError, ValueError):
    """An `--input` for a parameter that the op does not have."""


class MissingInput(OpforgeError, ValueError):
    """A parameter without a default got no `--input`."""


class TargetFailed(OpforgeError, ImportError):
    """A target raised while its module was imported, or when it was called."""


class UnknownRow(OpforgeError, ValueError):
    """A name that is not a row of a check."""


class Undeclared(OpforgeError, LookupError):
    """An op that is to be built has no `native.declare`."""


class UnknownParameter(OpforgeError, TypeError):
    """`native.declare` names something that is not a parameter of the op."""


class MissingParameter(OpforgeError, TypeError):
    """A parameter without a default that `native.declare` leaves out."""


class UnknownDtype(OpforgeError, ValueError):
    """A dtype that Triton cannot store, or something that is not a dtype."""


class UnboundType(OpforgeError, ValueError):
    """`native.declare` uses a type variable and does not say what it stands for."""


class BadDims(OpforgeError, ValueError):
    """The text of a tensor's dims cannot be read, or contradicts the rest of the declaration."""


class BadRanks(OpforgeError, ValueError):
    """`ranks` is missing, not needed, or not possible for a tensor's dims."""


class BadBounds(OpforgeError, ValueError):
    """`dims={...}` gives a size an impossible range."""


class UnusedName(OpforgeError, ValueError):
    """A bound or a type variable that no parameter of the declaration uses."""


class BadSpec(OpforgeError, TypeError):
    """A spec that does not fit its parameter."""


class NoNativeForm(OpforgeError, TypeError):
    """A parameter or an output that a C function cannot have."""


class ConflictingDeclarations(OpforgeError, ValueError):
    """Two declarations of one op ask for different C functions."""


class DifferentImplementations(OpforgeError, TypeError):
    """Implementations of one operator have different signatures."""


class BadImplementations(OpforgeError, ValueError):
    """A list of implementations that makes no sense, or contradicts another."""


class TooManyCases(OpforgeError, ValueError):
    """Declarations whose dtypes, ranks and choices multiply to more than a build can hold."""


class CannotTrace(OpforgeError, RuntimeError):
    """A body does something that a native library cannot do."""


class EndedTrace(OpforgeError, RuntimeError):
    """A size or property of the GPU that a body kept is used after its trace."""


class NeedsBound(OpforgeError, ValueError):
    """A size becomes a constant of a kernel but could take too many values."""


class NotPackageable(OpforgeError, TypeError):
    """Something that is neither a module nor an operator was given to `package`."""


class BadInputs(OpforgeError, TypeError):
    """Arguments that a model cannot be called with."""


class BadPackagePath(OpforgeError, ValueError):
    """A path that no package can be written to."""


class BadDynamic(OpforgeError, ValueError):
    """`dynamic` names an argument or a dimension that is not there, or contradicts itself."""


class ExportFailed(OpforgeError, RuntimeError):
    """torch.export cannot trace a model."""


class BareKernel(ExportFailed):
    """A model that launches a Triton kernel outside of any op is exported non-strict."""


class EagerFailed(OpforgeError, RuntimeError):
    """A model fails in eager for arguments that its package should take."""


class CompileFailed(OpforgeError, RuntimeError):
    """AOTInductor cannot compile an exported program."""


class OpNotImportable(OpforgeError, RuntimeError):
    """An op that stays opaque in a package cannot be imported in another process."""


class PackageCrashed(OpforgeError, RuntimeError):
    """The process that loads and runs a package died, or would die."""


class PackageRefused(OpforgeError, RuntimeError):
    """A package cannot be loaded, or fails when it is called."""


class PackageMismatch(OpforgeError, ArithmeticError):
    """A package computes something different from the model in eager."""


class BadTree(OpforgeError, ValueError):
    """A folder of operators is empty, or some of its subfolders cannot be used."""


class UnknownOperator(OpforgeError, LookupError):
    """A requested operator is not among those found."""


class KernelFailed(OpforgeError, RuntimeError):
    """Kernels that Triton cannot compile, or that a native library cannot launch."""

    # (key of the request, architecture) of each, and why.
    failed: dict[tuple[str, Any], str]


class BadLibraryName(OpforgeError, ValueError):
    """A name that a native library, or two of its functions, cannot have."""


class UnknownArch(OpforgeError, ValueError):
    """A GPU architecture that does not exist, or that this Triton does not know."""


class BadJobs(OpforgeError, ValueError):
    """A number of jobs below one."""


class OutputNotWritable(OpforgeError, OSError):
    """A folder that a build's files cannot be written to."""


class BadProgram(OpforgeError, ValueError):
    """A native library's description contradicts itself, or cannot be written as C."""


class NoCompiler(OpforgeError, RuntimeError):
    """There is no C compiler to build a native library with."""


class CCompileFailed(OpforgeError, RuntimeError):
    """The C compiler refuses a native library's sources."""


class BadTuning(OpforgeError, ValueError):
    """A tuning table cannot be read or written."""


class BadReport(OpforgeError, ValueError):
    """A file that `opforge report` cannot read, or files that make no report."""


class NotARecording(OpforgeError, ValueError):
    """A file is not a recording of launches, or one that this opforge cannot read."""


class KernelNotFound(OpforgeError, LookupError):
    """A recorded kernel cannot be found again, so it cannot be built."""


class KernelChanged(OpforgeError, ValueError):
    """A kernel is not the one that was recorded or built."""


class NotServable(OpforgeError, ValueError):
    """A folder does not hold kernels that can be served, or has been altered."""


class NotServed(OpforgeError, RuntimeError):
    """A launch is not covered by the kernels that are served, and strict=True forbids the JIT."""


class NoGpu(OpforgeError, RuntimeError):
    """The command needs a GPU, or a different one."""


class NoSizes(OpforgeError, ValueError):
    """Sizes to measure are missing, or were not declared."""


class TuningFailed(OpforgeError, RuntimeError):
    """An op cannot be measured at some sizes."""


class NotALibrary(OpforgeError, OSError):
    """A file or folder that is not a native library, or has a different ABI."""


class Untrusted(OpforgeError, RuntimeError):
    """Files that are not what their build wrote, or that no trusted key has signed."""


class NativeCallFailed(OpforgeError, RuntimeError):
    """A native library refuses a call; `status` is the end of its C name, such as UNCOVERED."""

    status = ""


class Uncovered(NativeCallFailed):
    """A call that a loaded library was not built for."""


class WrongArchitecture(OpforgeError, OSError):
    """A library was not built for the GPUs of this machine."""


class StaleLibrary(OpforgeError, RuntimeError):
    """A library and its adapter, or what it was linked with, come from different builds."""


class UnknownBackend(OpforgeError, ValueError):
    """A name that is not a backend."""


class UnsupportedVersion(OpforgeError, RuntimeError):
    """A torch or Triton that was not tested, and has changed what a feature is made of."""


class OpforgeWarning(UserWarning):
    """A fallback or a decision that the user should know about; given once per op."""


def warn(text: str) -> None:
    """Warn at the line that called, outside of opforge, its generated code, torch and Triton."""
    package, count = _caller()
    if package == "click":
        # The command has no such line, and click's would say nothing.
        warnings.warn_explicit(text, OpforgeWarning, "opforge", 1)
    else:
        warnings.warn(text, OpforgeWarning, stacklevel=count)


# Their functions call ours, between a user's and torch's.
_BETWEEN = {"contextlib", "functools", "opforge", "torch", "triton"}


def _caller() -> tuple[str, int]:
    """The package that called, and the stacklevel, for the function that calls this."""
    frame, count = sys._getframe(1), 1  # noqa: SLF001  # as `warnings` itself counts frames
    while True:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        generated = frame.f_code.co_filename.startswith("<opforge")
        if frame.f_back is None or (not generated and package not in _BETWEEN):
            return package, count
        frame, count = frame.f_back, count + 1
