"""Checks in a test suite: `check_op`, and the pytest fixture `opforge_check`.

An installed opforge registers the fixture itself; otherwise put
`pytest_plugins = ["opforge.testing"]` into conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .check import CheckReport, check


def check_op(op: Any, /, *args: Any, **kwargs: Any) -> CheckReport:
    """`opforge.check` that raises AssertionError with what failed.

    def test_silu():
        check_op(silu, torch.randn(8, 128), reference=torch.nn.functional.silu)
    """
    __tracebackhide__ = True
    report = check(op, *args, **kwargs)
    if not report.ok:
        raise AssertionError(report.render_failures())
    return report


@pytest.fixture
def opforge_check() -> Callable[..., CheckReport]:
    """`opforge.testing.check_op` as a fixture."""
    return check_op
