"""Checks an op in every runtime: `opforge.check(op, *args)`."""

from .report import CheckReport, Row
from .run import ROW_NAMES, check, check_call
from .subject import Settings

__all__ = ["ROW_NAMES", "CheckReport", "Row", "Settings", "check", "check_call"]
