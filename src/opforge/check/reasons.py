"""From an exception, however deep its wrappers, to one line and a fix."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .. import _compat
from ..errors import OpforgeError

# What a message says, and what to do about it.
_FIXES = {
    # Before the others: CUDA's text for it also says "Unsupported".
    "keep synchronisation (.item(), .cpu(), print) out of the body": (
        r"when stream is capturing|error during capture"
    ),
    "return a tensor: Dynamo does not accept numbers from operators": r"returned non-Tensor",
    "make the fake return what the body returns: see row fake": (
        r"wrong number of dimensions|expected size \d+==\d+, stride"
    ),
    "register the class of the argument: torch.export.register_dataclass(Cls)": (
        r"unsupported input type|Unsupported input type|pytree\.register|"
        r"is not a supported (input )?type|not registered.*pytree"
    ),
    "return a plain tuple: torch saves only those NamedTuples that an operator returns or takes": (
        r"serialize TreeSpec of namedtuple"
    ),
    "give fake=, a function with the op's signature that does not read tensors' contents": (
        r"data-dependent|GuardOnDataDependent|Could not guard on|\.item\(\)|\.nonzero|_local_scalar"
    ),
    "compute with x.shape[0] in the body, not with a fixed number, and do not branch on it": (
        r"specialized|Constraints violated|marked as dynamic|not all values of|Guard failed|"
        r"Expected input at"
    ),
    "make what breaks the trace an op of its own, or keep this one opaque: mode='custom_op'": (
        r"[Gg]raph break|Unsupported|torch\.compile does not support|marked as skipped|"
        r"Dynamo (does not know|cannot|failed)|[Dd]ata-dependent branching"
    ),
    "return a copy: .clone()": r"alias",
    "check with smaller inputs": r"out of memory",
}
# Lines that wrappers put around what matters.
_NOISE = re.compile(
    r"^(Traceback|During handling|The above exception|from user code|File |Set TORCH|"
    r"You can suppress|Developer debug|import torch\._dynamo|Hint:|For more|To fix|"
    r"backend=.* raised:|While executing|Original traceback|Exception raised|frame #|-{3,}|={3,}|"
    r"Call using an FX-traced Module|opcheck\()"
)
_LONGEST = 300


def reason_of(error: BaseException) -> tuple[str, str]:
    """The first useful line of an error, and a fix where one is known."""
    chain = list(_chain(error))
    for cause in chain:
        if isinstance(cause, OpforgeError):
            found = f" ({cause.found})" if cause.found else ""
            named = f"parameter {cause.parameter!r}: " if cause.parameter else ""
            return cut(f"{named}{cause.what}{found}"), cause.fix or ""
    # A compiler's wrapper rephrases what it wraps; the original says it best.
    checking = _compat.checking
    first = next((e for e in chain if not checking.is_compiler_wrapper(e)), chain[0])
    if any(map(checking.hides_its_cause, chain)):
        first = chain[-1]
    lines = filter(None, map(str.strip, str(first).splitlines()))
    line = next((line for line in lines if not _NOISE.match(line)), "")
    texts = [f"{type(e).__name__}: {e}" for e in (first, *chain)]
    fixes = (fix for text in texts for fix, sign in _FIXES.items() if re.search(sign, text))
    return cut(": ".join(filter(None, (type(first).__name__, line)))), next(fixes, "")


def short_reason(error: BaseException) -> str:
    return reason_of(error)[0]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it wraps, outermost first."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        told = not cause.__suppress_context__ or _compat.checking.hides_its_cause(cause)
        context = cause.__context__ if told else None
        waiting += [getattr(cause, "inner_exception", None), cause.__cause__, context]


def cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
