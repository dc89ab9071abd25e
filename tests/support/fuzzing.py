"""Values that attack what opforge takes: drawn at random, the same ones in every `make test`.

`make fuzz` goes on with others for `OPFORGE_FUZZ_SECONDS`, and keeps what fails in
`tests/fuzz/cases`, which every later run tries first.
"""

import contextlib
import os
import time
import unittest
from pathlib import Path

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase

SECONDS = float(os.environ.get("OPFORGE_FUZZ_SECONDS", "0"))
CASES = Path(__file__).parents[1] / "fuzz" / "cases" / "hypothesis"

_PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck))
_SAME = settings(_PATIENT, derandomize=True, database=None)
_KEEPING = settings(_PATIENT, database=DirectoryBasedExampleDatabase(CASES))
_KEPT = settings(_KEEPING, phases=[Phase.reuse])


def attack(*strategies, examples, known=()):
    """Make a test of a check: `examples` values in `make test`; `known` ones always come first."""

    def decorate(check):
        for one in reversed(known):
            check = example(*one)(check)

        def run(chosen):
            # Hypothesis takes settings once for each function that it makes.
            chosen(given(*strategies)(check))()

        def attacked():
            # Hypothesis skips a test of which nothing was kept.
            with contextlib.suppress(unittest.SkipTest):
                run(_KEPT)
            if not SECONDS:
                run(settings(_SAME, max_examples=examples))
                return
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                run(settings(_KEEPING, max_examples=examples))

        # Not functools.wraps: pytest would take what is drawn for fixtures.
        attacked.__name__, attacked.__doc__ = check.__name__, check.__doc__
        attacked.__module__ = check.__module__
        return attacked

    return decorate
