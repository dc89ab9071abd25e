"""The reports of many ops: as text, as JSON, for CI as JUnit's XML, and as a page."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from html import escape
from xml.etree import ElementTree as ET

from ..errors import first_line
from .report import DECISIVE, FAIL, FAILED, INCOMPLETE, PASSED, SKIPPED, CheckReport, Row

_UNCHECKED = "not checked"


@dataclass(frozen=True)
class Problem:
    """An op that could not be checked, or a file that could not be loaded."""

    name: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        # An error that was raised for the op names it already, with its line.
        named = self.message.startswith((f"{self.name} (", f"{self.name}: "))
        said = self.message if named else f"{self.name}: {self.message}"
        return said + (f"\n  or:    {self.fix}" if self.fix else "")


@dataclass(frozen=True)
class Summary:
    """What the checks of many ops found."""

    reports: tuple[CheckReport, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems and all(report.ok for report in self.reports)

    def __str__(self) -> str:
        failed = [report.render_failures() for report in self.reports if not report.ok]
        return "\n\n".join([*failed, "\n".join(self._lines()), self.total()])

    def _lines(self) -> list[str]:
        """A line per op."""
        width = max((len(name) for name, _, _ in self._outcomes()), default=0)
        return [
            f"  {name:<{width}}  {outcome:<{len(_UNCHECKED)}}  {text}".rstrip()
            for name, outcome, text in self._outcomes()
        ]

    def _outcomes(self) -> list[tuple[str, str, str]]:
        checked = [(one.op, one.outcome, one.counts()) for one in self.reports]
        return [*checked, *((p.name, _UNCHECKED, "") for p in self.problems)]

    def total(self) -> str:
        """`8 checked: 6 passed, 1 failed, 1 incomplete; 2 not checked; in 31.2 s`."""
        counts = Counter(report.outcome for report in self.reports)
        said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in (PASSED, FAILED, INCOMPLETE))
        beside = f"; {len(self.problems)} {_UNCHECKED}" if self.problems else ""
        seconds = sum(row.seconds for report in self.reports for row in report.rows)
        return f"{len(self.reports)} checked: {said}{beside}; in {seconds:.1f} s"

    def leaves_open(self) -> str:
        """What the exit status does not tell, if that is 0 although ops did not run."""
        skipped = [
            report.op
            for report in self.reports
            if report.outcome == INCOMPLETE and any(row.name in DECISIVE for row in report.rows)
        ]
        if not skipped or not self.ok:
            return ""
        return (
            f"{', '.join(skipped)} did not run here. That is not a failure: the exit status is 0; "
            f"--require {DECISIVE[0]} makes it 1."
        )

    def as_json(self) -> str:
        """`{"ok", "reports", "problems"}`; each report as of one op."""
        fields = {
            "ok": self.ok,
            "reports": [json.loads(report.as_json()) for report in self.reports],
            "problems": [{"name": p.name, "message": str(p)} for p in self.problems],
        }
        return json.dumps(fields, indent=2)

    def as_junit(self) -> str:
        """JUnit's XML, as CI systems read it: a suite per op, a case per row."""
        suites = ET.Element("testsuites", name="opforge check")
        for report in self.reports:
            suite = ET.SubElement(suites, "testsuite", name=report.op)
            for row in report.rows:
                _case(suite, report.op, row)
        if self.problems:
            suite = ET.SubElement(suites, "testsuite", name=_UNCHECKED)
            for problem in self.problems:
                case = _timed_case(suite, problem.name, "check", 0.0)
                told = _printable(first_line(problem.message))
                error = ET.SubElement(case, "error", message=told)
                error.text = _printable(str(problem))
        for totalled in (suites, *suites):
            _add_totals(totalled)
        ET.indent(suites)
        return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"

    def as_html(self) -> str:
        """A page with the summary and every table."""
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td class={outcome.split()[0]}>{outcome}</td>"
            f"<td>{escape(text)}</td></tr>"
            for name, outcome, text in self._outcomes()
        )
        tables = "\n".join(
            f"<h2>{escape(r.op)}</h2><pre>{escape(r.location)}\n{escape(r.circumstances())}</pre>"
            f"{r._repr_html_()}"
            for r in self.reports
        )
        problems = "".join(f"<pre>{escape(str(problem))}</pre>" for problem in self.problems)
        page = _PAGE.format(total=escape(self.total()), rows=rows, problems=problems, tables=tables)
        return _encodable(page)


def _add_totals(suite: ET.Element) -> None:
    """Counted from the cases below, so that a reader who adds them up gets the same."""
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    for total, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(total, str(len(list(suite.iter(kind)))))
    suite.set("time", f"{sum(float(case.attrib['time']) for case in cases):.3f}")


def _timed_case(suite: ET.Element, op: str, name: str, seconds: float) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=op, name=name, time=f"{seconds:.3f}")


def _case(suite: ET.Element, op: str, row: Row) -> None:
    case = _timed_case(suite, op, row.name, row.seconds)
    if row.status == SKIPPED:
        ET.SubElement(case, "skipped", message=_printable(row.reason))
    if row.status == FAIL:
        failure = ET.SubElement(case, "failure", message=_printable(row.reason))
        failure.text = _printable(f"{row.reason}\nfix: {row.fix}" if row.fix else row.reason)
    if row.notes:
        ET.SubElement(case, "system-out").text = _printable("\n".join(row.notes))


def _printable(text: str) -> str:
    """Without what XML cannot hold, such as a terminal's colours."""
    return re.sub(
        r"\x1b\[[0-9;]*m|[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text
    )


def _encodable(page: str) -> str:
    """Without a terminal's colours; what a file cannot hold, or shows badly, as escapes."""
    return re.sub(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]",
        lambda found: found[0].encode("unicode_escape").decode(),
        re.sub(r"\x1b\[[0-9;]*m", "", page),
    )


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>opforge check</title>
<style>
body {{ font: 15px/1.5 sans-serif; margin: 2em; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: 0.2em 1em 0.2em 0; }}
caption {{ text-align: left; }}
.passed {{ color: #116329; }} .failed, .not {{ color: #a40e26; }} .incomplete {{ color: #7d4e00; }}
</style>
</head>
<body>
<h1>opforge check</h1>
<p>{total}</p>
<table>{rows}</table>
{problems}
{tables}
</body>
</html>
"""
