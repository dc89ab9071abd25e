"""Every exception opforge raises, each also a builtin kind."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal


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
        return _rebuild, (type(self), self._state())

    def _state(self) -> dict[str, Any]:
        return self.__dict__.copy()


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


class BadSignature(OpforgeError, TypeError):
    """A function, an annotation or a default that no operator, fake or C function can have."""


class BadDeclaration(OpforgeError, ValueError):
    """A name, a schema or a declaration for a library that contradicts itself or the function."""


class BadOption(OpforgeError, ValueError):
    """An option, or a choice among fixed values, with a value that cannot be used."""


class BadRegistration(OpforgeError, RuntimeError):
    """A name that another definition holds, or an operator that is no longer registered."""


class WrongArgument(OpforgeError, TypeError):
    """An argument of a call that is missing, unknown or of a type that cannot be taken."""


class WrongReturn(OpforgeError, TypeError):
    """The body, a fake, a kernel or a backward returned something other than it must."""


class WrongResult(OpforgeError, RuntimeError, ArithmeticError):
    """Results, aliases or writes that are not what the fake, the schema or eager says."""


class BadGradient(OpforgeError, ValueError):
    """`backward` returned gradients that do not fit the parameters."""


class MissingBackward(OpforgeError, NotImplementedError):
    """Autograd reached an operator that has no rule for it."""


class ModeRefused(OpforgeError, ValueError):
    """The body does something that the requested mode does not allow."""


class UnsupportedBody(OpforgeError, RuntimeError):
    """A body that a compiler, an exporter or the native tracer cannot follow."""

    # Of a launch that no graph can hold, if it is known.
    kernel: Any = None

    def __init__(
        self, what: str, *, cause: Literal["", "launch", "outlived"] = "", **parts: str | None
    ) -> None:
        super().__init__(what, **parts)
        # What opforge itself asks for: a launch, or a value that outlived its trace.
        self.cause = cause

    def _state(self) -> dict[str, Any]:
        # A kernel cannot be pickled.
        return {**super()._state(), "kernel": None}


class NeedsGpu(OpforgeError, RuntimeError):
    """Kernels were to run, or results to be read, where there is no GPU."""


class TargetFailed(OpforgeError, ImportError):
    """The file or module that defines the operators failed when it was imported."""


class NotFound(OpforgeError, LookupError, ValueError):
    """An operator, a declaration or a recorded kernel that is not there, or not as it was."""


class BuildFailed(OpforgeError, RuntimeError):
    """A kernel, a C file or a package that could not be compiled, run or measured."""

    # Of kernels: (key of the request, architecture) of each, and why.
    failed: Mapping[tuple[str, Any], str] = MappingProxyType({})


class OutputNotWritable(OpforgeError, OSError):
    """An output that cannot be written."""


class NotALibrary(OpforgeError, OSError):
    """A folder or file that is not a library for this machine, or is damaged."""


class StaleLibrary(OpforgeError, RuntimeError):
    """A library and its adapter, or what it was linked with, come from different builds."""


class Untrusted(OpforgeError, RuntimeError):
    """Files that are not what their build wrote, or that no trusted key has signed."""


class NativeCallFailed(OpforgeError, RuntimeError):
    """A native library refuses a call; `status` is the end of its C name, such as UNCOVERED."""

    status = ""


class Uncovered(NativeCallFailed):
    """A call that a loaded library was not built for."""


class NotServable(OpforgeError, ValueError):
    """A recording, or a kernel of it, that cannot be built or served."""


class NotServed(OpforgeError, RuntimeError):
    """A launch that the served folder does not hold, where strict serving forbids to compile it."""


# What each class stands for; tests/docs/mistakes.md and the page of errors have an example of each.
mistakes: dict[type[OpforgeError], tuple[str, ...]] = {
    BadSignature: (
        "The decorator was applied to something other than a plain Python function",
        "Parameters or the return value have no annotation",
        "A stringified annotation names something that is not in scope",
        "`*args` or `**kwargs`",
        "An annotation that has no place in an operator's schema",
        "A return annotation that an operator cannot return",
        "A dataclass parameter that is not frozen",
        "A `Literal` whose values are of several kinds",
        "A union other than with `None`",
        "A default that does not fit its annotation, or that no schema can carry",
        "A fake that cannot be called like the op",
        "A parameter or an output that a C function cannot have",
        "Implementations of one operator have different signatures",
        "Something that is neither a module nor an operator was given to `package`",
    ),
    BadDeclaration: (
        "An operator name that torch cannot take",
        "Two parameters lower to one schema name",
        "A schema that torch cannot parse, or that does not match the function",
        "A dtype that Triton cannot store, or something that is not a dtype",
        "`native.declare` uses a type variable and does not say what it stands for",
        "The text of a tensor's dims cannot be read, or contradicts the rest of the declaration",
        "`ranks` is missing, not needed, or not possible for a tensor's dims",
        "`dims={...}` gives a size an impossible range",
        "A bound or a type variable that no parameter of the declaration uses",
        "Two declarations of one op ask for different C functions",
        "A list of implementations that makes no sense, or contradicts another",
        "Declarations whose dtypes, ranks and choices multiply to more than a build can hold",
        "A size becomes a constant of a kernel but could take too many values",
    ),
    BadOption: (
        "A name in `mutates_args`, `fake=[...]` or a similar list that is not a parameter",
        "A decorator option with a value that cannot be used",
        "`kernels=` names something that Triton cannot launch",
        "A value outside a `Literal` or an `Enum`",
        "A `module:op` or `file.py:op` that leads nowhere",
        "An `--input` for a parameter that the op does not have",
        "A parameter without a default got no `--input`",
        "An `--input` that cannot be evaluated",
        "A name that is not a row of a check",
        "A folder of operators is empty, or some of its subfolders cannot be used",
        "A GPU architecture that does not exist, or that this Triton does not know",
        "A name that a native library, or two of its functions, cannot have",
        "A number of jobs below one",
        "A native library's description contradicts itself, or cannot be written as C",
        "Sizes to measure are missing, or were not declared",
        "A tuning table cannot be read or written",
        "A file that `opforge report` cannot read, or files that make no report",
        "A path that no package can be written to",
        "`dynamic` names an argument or a dimension that is not there, or contradicts itself",
        "A name that is not a backend",
    ),
    BadRegistration: (
        "A name that another definition holds",
        "A handle of an operator that has been unregistered or replaced was called",
        "An op that stays opaque in a package cannot be imported in another process",
    ),
    WrongArgument: (
        "A decorator option that does not exist",
        "Something other than an opforge operator was given where one is needed",
        "A call passed a value that cannot be taken apart as the parameter's type",
        "An option of `opforge.check` that is also a parameter of the op",
        "`native.declare` names something that is not a parameter of the op",
        "A parameter without a default that `native.declare` leaves out",
        "A spec that does not fit its parameter",
        "Arguments that a model cannot be called with",
    ),
    WrongReturn: (
        "The body, a fake or a kernel returned something other than the annotation says",
        "`backward` returned something that is not a gradient",
    ),
    WrongResult: (
        "A body writes to an input that `mutates_args` does not name",
        "Real outputs differ from what the fake said",
        "An output shares memory with an input or with another output",
        "A package computes something different from the model in eager",
    ),
    BadGradient: (
        "`backward` returned the wrong number of gradients",
        "`backward` returned a gradient for a field that does not exist",
        "`backward` returned a gradient for something that is not differentiable",
        "`backward` returned a gradient of the wrong shape",
    ),
    MissingBackward: (
        "Autograd went backward through an op that has no backward",
        "Forward-mode autograd reached an op, which has no rule for it",
    ),
    ModeRefused: ("The body does something that the requested mode does not allow",),
    UnsupportedBody: (
        "A launch that cannot become part of a compiler's graph",
        "No fake was given, and none could be derived",
        "An op mutates a leaf tensor that requires grad while autograd records",
        "A body does something that a native library cannot do",
        "A size or property of the GPU that a body kept is used after its trace",
        "torch.export cannot trace a model",
        "A model that launches a Triton kernel outside of any op is exported non-strict",
    ),
    NeedsGpu: (
        "Kernels were to run, or results to be read, where there is no GPU",
        "The command needs a GPU, or a different one",
    ),
    TargetFailed: ("A target raised while its module was imported, or when it was called",),
    NotFound: (
        "An op that is to be built has no `native.declare`",
        "A requested operator is not among those found",
        "A recorded kernel cannot be found again, so it cannot be built",
        "A kernel is not the one that was recorded or built",
    ),
    BuildFailed: (
        "Kernels that Triton cannot compile, or that a native library cannot launch",
        "There is no C compiler to build a native library with",
        "The C compiler refuses a native library's sources",
        "An op cannot be measured at some sizes",
        "A model fails in eager for arguments that its package should take",
        "AOTInductor cannot compile an exported program",
        "The process that loads and runs a package died, or would die",
        "A package cannot be loaded, or fails when it is called",
        "A torch or Triton that was not tested, and has changed what a feature is made of",
    ),
    OutputNotWritable: ("A folder that a build's files cannot be written to",),
    NotALibrary: (
        "A file or folder that is not a native library, or has a different ABI",
        "A library was not built for the GPUs of this machine",
    ),
    StaleLibrary: (
        "A library and its adapter, or what it was linked with, come from different builds",
    ),
    Untrusted: ("Files that are not what their build wrote, or that no trusted key has signed",),
    NativeCallFailed: ("A native library refuses a call",),
    Uncovered: ("A call that a loaded library was not built for",),
    NotServable: (
        "A file is not a recording of launches, or one that this opforge cannot read",
        "A folder does not hold kernels that can be served, or has been altered",
    ),
    NotServed: (
        "A launch is not covered by the kernels that are served, and strict=True forbids the JIT",
    ),
}


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
