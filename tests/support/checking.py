"""Checks of one row, for tests: fast, and without Inductor where it makes no difference."""

from opforge.check import Settings, check_call


def row(name, op, *args, reference=None, tolerance=None, backend="aot_eager", **kwargs):
    settings = Settings(reference=reference, tolerance=tolerance, backend=backend)
    return check_call(op, args, kwargs, settings=settings, only=name)[name]


def statuses(op, *args, **kwargs):
    """Every row except the slow package, by name."""
    settings = Settings(backend="aot_eager")
    report = check_call(op, args, kwargs, settings=settings, skip="package")
    return {r.name: r.status for r in report}
