"""The outcome of a row."""

from __future__ import annotations

from dataclasses import dataclass

from .report import FAIL, PASS, SKIPPED


@dataclass(frozen=True)
class Verdict:
    """A row without its name and time."""

    status: str
    reason: str = ""
    fix: str = ""
    notes: tuple[str, ...] = ()


def passed(reason: str = "", *notes: str) -> Verdict:
    return Verdict(PASS, reason, notes=tuple(n for n in notes if n))


def failed(reason: str, fix: str = "", *notes: str) -> Verdict:
    return Verdict(FAIL, reason, fix, tuple(n for n in notes if n))


def skipped(reason: str, fix: str = "") -> Verdict:
    return Verdict(SKIPPED, reason, fix)
