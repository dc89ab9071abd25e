"""What is logged while a test runs.

pytest's own plugin is off: in each of a test's three phases it attaches four handlers to every
logger that hands nothing to its parent. torch has fifty of them. One is its trace of compilations,
and for a listener torch prints each graph, guard and stack.
"""

import contextlib
import logging


@contextlib.contextmanager
def heard(name, level=logging.WARNING):
    """The records of a logger, from `level` on, and of those below it."""
    logger, records = logging.getLogger(name), []
    handler = logging.Handler(level)
    handler.emit = records.append
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield records
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
