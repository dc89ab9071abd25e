"""What a check found: rows, the report of an op, and the summary of many ops.

As text, as JSON, for CI as JUnit's XML, and as a page. A row that raises tells the error, however
deep its wrappers, in one line and a fix.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import _compat
from ..errors import OpforgeError, first_line
from ..notebook import html_table
from ..report.command import Outcome
from ..report.model import Checked, Report

PASS, FAIL, SKIPPED = "pass", "fail", "skipped"
# Of a whole check.
PASSED, FAILED, INCOMPLETE = "passed", "failed", "incomplete"
_UNCHECKED = "not checked"
# Without one of these, nobody has seen what the op computes.
DECISIVE = ("eager", "numerics")


@dataclass(frozen=True)
class Row:
    """One question and its answer.

    `status` is "pass", "fail" or "skipped"; `reason` says why it failed or was skipped, or what
    was seen; `fix` what to do about it; `notes` what the user should know in any case.
    """

    name: str
    status: str
    reason: str = ""
    fix: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


def passed(reason: str = "", *notes: str) -> Row:
    """A row that passes; as of the others, `run` adds its name and time."""
    return Row("", PASS, reason, notes=tuple(filter(None, notes)))


def failed(reason: str, fix: str = "", *notes: str) -> Row:
    return Row("", FAIL, reason, fix, notes=tuple(filter(None, notes)))


def skipped(reason: str, fix: str = "") -> Row:
    return Row("", SKIPPED, reason, fix)


@dataclass(frozen=True)
class CheckReport:
    """Every row of one check; `report["autograd"]` is one of them."""

    op: str
    location: str
    inputs: tuple[str, ...]
    machine: str
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether no row failed; `outcome` also says whether the op ran at all."""
        return not self.failures

    @property
    def outcome(self) -> str:
        """Either "failed", "passed", or "incomplete": nothing failed, but the op did not run."""
        if self.failures:
            return FAILED
        ran = any(row.name in DECISIVE and row.status == PASS for row in self.rows)
        return PASSED if ran else INCOMPLETE

    @property
    def failures(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.status == FAIL)

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no row {name!r}; the rows are {', '.join(r.name for r in self.rows)}")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def as_json(self) -> str:
        """The report as JSON text: op, ok, outcome, and rows with name, status, reason and more."""
        fields = {"ok": self.ok, "outcome": self.outcome, **dataclasses.asdict(self)}
        for row in fields["rows"]:
            row["seconds"] = round(row["seconds"], 3)
        return json.dumps(fields, indent=2)

    def summary(self) -> str:
        if self.outcome != INCOMPLETE:
            return self.counts()
        return f"{self.counts()}; {INCOMPLETE}: neither {' nor '.join(DECISIVE)} ran"

    def counts(self) -> str:
        """`11 passed, 1 failed, 5 skipped in 17.3 s`."""
        counts = Counter(row.status for row in self.rows)
        passed, failed, skipped = (counts[status] for status in (PASS, FAIL, SKIPPED))
        seconds = sum(row.seconds for row in self.rows)
        return f"{passed} passed, {failed} failed, {skipped} skipped in {seconds:.1f} s"

    def render_failures(self) -> str:
        """Only what failed, for the message of a test."""
        return self._rendered(self.failures)

    def _rendered(self, rows: tuple[Row, ...]) -> str:
        lines = [f"{self.op}  ({self.location})", f"  on      {self.machine}"]
        lines += [f"  {'input ' if i == 0 else '      '}  {t}" for i, t in enumerate(self.inputs)]
        return "\n".join([*lines, "", *_table(rows), "", self.summary()])

    def __repr__(self) -> str:
        failed = f"; failed: {', '.join(row.name for row in self.failures)}" if not self.ok else ""
        return f"<CheckReport of {self.op}: {self.summary()}{failed}>"

    def _repr_html_(self) -> str:
        rows = [
            (row.name, row.status, "\n".join([row.reason, *row.notes]).strip(), row.fix)
            for row in self.rows
        ]
        return html_table(f"{self.op}: {self.summary()}", ("", "status", "", "fix"), rows)

    def __str__(self) -> str:
        return self._rendered(self.rows)


def _table(rows: tuple[Row, ...]) -> list[str]:
    """A row's time is left out below what `0.1 s` rounds."""
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right"):
        table.add_column(no_wrap=True, justify=justify)
    table.add_column(max_width=78)
    shown: set[str] = set()
    for row in rows:
        time = f"{row.seconds:.1f} s" if row.seconds >= 0.05 else ""
        # Ten rows that lack a GPU need to say only once what helps.
        fix = f"fix: {row.fix}" if row.fix and row.fix not in shown else ""
        if row.status == SKIPPED:
            shown.add(row.fix)
        texts = filter(None, (row.reason, fix, *(f"note: {note}" for note in row.notes)))
        table.add_row(f"  {row.name}", row.status, time, Text("\n".join(texts)))
    console = Console(file=io.StringIO(), width=200, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


@dataclass(frozen=True)
class Problem:
    """An op that could not be checked, or a file that could not be loaded."""

    name: str
    message: str

    def __str__(self) -> str:
        # An error that was raised for the op names it already, with its line.
        named = self.message.startswith((f"{self.name} (", f"{self.name}: "))
        return self.message if named else f"{self.name}: {self.message}"


@dataclass(frozen=True)
class Summary:
    """What the checks of many ops found."""

    reports: tuple[CheckReport, ...]
    problems: tuple[Problem, ...] = ()
    # Of one operator, whose report alone is what the user wants to see.
    single: bool = False

    @property
    def ok(self) -> bool:
        return not self.problems and all(report.ok for report in self.reports)

    def __str__(self) -> str:
        if self.single:
            return str(self.reports[0])
        failures = [report.render_failures() for report in self.reports if not report.ok]
        outcomes = [(one.op, one.outcome, one.counts()) for one in self.reports]
        outcomes += [(problem.name, _UNCHECKED, "") for problem in self.problems]
        width = max((len(name) for name, _, _ in outcomes), default=0)
        lines = [
            f"  {name:<{width}}  {outcome:<{len(_UNCHECKED)}}  {text}".rstrip()
            for name, outcome, text in outcomes
        ]
        return "\n\n".join([*failures, "\n".join(lines), self.total()])

    def total(self) -> str:
        """`8 checked: 6 passed, 1 failed, 1 incomplete; 2 not checked; in 31.2 s`."""
        counts = Counter(report.outcome for report in self.reports)
        text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in (PASSED, FAILED, INCOMPLETE))
        unchecked = f"; {len(self.problems)} {_UNCHECKED}" if self.problems else ""
        seconds = sum(row.seconds for report in self.reports for row in report.rows)
        return f"{len(self.reports)} checked: {text}{unchecked}; in {seconds:.1f} s"

    def as_json(self) -> str:
        """`{"ok", "reports", "problems"}`; each report as of one op."""
        if self.single:
            return self.reports[0].as_json()
        fields = {
            "ok": self.ok,
            "reports": [json.loads(report.as_json()) for report in self.reports],
            "problems": [{"name": p.name, "message": str(p)} for p in self.problems],
        }
        return json.dumps(fields, indent=2)

    def as_junit(self) -> str:
        """JUnit's XML, as CI systems read it: a suite per op, a case per row."""
        suites = ET.Element("testsuites", name="opforge check")
        listed = [(report.op, [(report.op, row) for row in report.rows]) for report in self.reports]
        if self.problems:
            rows = [(p.name, Row("check", _UNCHECKED, p.message)) for p in self.problems]
            listed.append((_UNCHECKED, rows))
        for title, cases in listed:
            suite = ET.SubElement(suites, "testsuite", name=title)
            for op, row in cases:
                time = f"{row.seconds:.3f}"
                case = ET.SubElement(suite, "testcase", classname=op, name=row.name, time=time)
                if row.status != PASS:
                    kind, message = _JUNIT[row.status], _printable(first_line(row.reason))
                    mark = ET.SubElement(case, kind, message=message)
                    mark.text = _printable(f"{row.reason}\nfix: {row.fix}")
                if row.notes:
                    ET.SubElement(case, "system-out").text = _printable("\n".join(row.notes))
        for suite in (suites, *suites):
            # Counted from the cases below, so that a reader who adds them up gets the same.
            found = list(suite.iter("testcase"))
            totals = {"tests": len(found)}
            for total, kind in (("failures", "failure"), ("errors", "error"), ("skipped",) * 2):
                totals[total] = len(list(suite.iter(kind)))
            suite.attrib.update({total: str(number) for total, number in totals.items()})
            suite.set("time", f"{sum(float(case.attrib['time']) for case in found):.3f}")
        ET.indent(suites)
        return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"

    def as_html(self) -> str:
        """The page of `opforge report`, with every row."""
        rows = [
            Checked(one.op, row.name, row.status, row.reason, row.fix, row.seconds, row.notes)
            for one in self.reports
            for row in one.rows
        ]
        rows += [Checked(p.name, "check", FAIL, str(p)) for p in self.problems]
        source = "; ".join(dict.fromkeys([self.total(), *(one.machine for one in self.reports)]))
        return Outcome(Report(source, checked=tuple(rows))).to_html()


# By the status of a row.
_JUNIT = {FAIL: "failure", SKIPPED: "skipped", _UNCHECKED: "error"}


def _printable(text: str) -> str:
    """Without what XML cannot hold, such as a terminal's colours."""
    return re.sub(
        r"\x1b\[[0-9;]*m|[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text
    )


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
