"""Does an op work everywhere, and if not, where and why: `opforge.check(op, *args)`."""

from .report import CheckReport, Row
from .run import ROW_NAMES, check, check_call
from .subject import Settings

__all__ = ["ROW_NAMES", "CheckReport", "Row", "Settings", "check", "check_call"]
