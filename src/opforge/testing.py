"""Checks in a test suite: `check_op`, and the pytest fixture `opforge_check`.

An installed opforge registers the fixture itself; otherwise put
`pytest_plugins = ["opforge.testing"]` into conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .check import CheckReport


def check_op(op: Any, /, *args: Any, **kwargs: Any) -> CheckReport:
    """`opforge.check` that raises AssertionError with what failed.

        def test_silu():
            check_op(silu, torch.randn(8, 128), reference=torch.nn.functional.silu)

    Where the op cannot run, and nothing failed, the test is skipped.
    """
    __tracebackhide__ = True
    # Not before: every pytest of an environment with opforge imports this module, and torch takes
    # seconds.
    from .check import check
    from .check.report import DECISIVE, INCOMPLETE

    report = check(op, *args, **kwargs)
    if not report.ok:
        raise AssertionError(report.render_failures())
    asked = [row for row in report if row.name in DECISIVE]
    if report.outcome == INCOMPLETE and asked:
        pytest.skip(f"{report.op}: {asked[0].reason}; other rows: {report.counts()}")
    return report


@pytest.fixture
def opforge_check() -> Callable[..., CheckReport]:
    """`opforge.testing.check_op` as a fixture."""
    return check_op
