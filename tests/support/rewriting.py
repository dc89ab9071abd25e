"""Asserts of test files, rewritten once for all workers.

Workers collect the same files at the same time. In a fresh clone each would rewrite them all, which
takes 9 s.
"""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path


class Unrun:
    """What pytest's loader takes for a module until it would run it: this has no `__dict__`."""

    __slots__ = ("__name__", "__spec__")

    def __init__(self, path):
        self.__name__ = path.stem
        self.__spec__ = importlib.util.spec_from_file_location(path.stem, path)


def rewrite_share(config):
    """Rewrite every n-th file that n workers will collect, so that the others find it done."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker or sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return
    count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    files = [file for place in config.args for file in _test_files(Path(place.partition("::")[0]))]
    for file in files[int(worker.removeprefix("gw")) :: count]:
        with contextlib.suppress(AttributeError):
            config.pluginmanager.rewrite_hook.exec_module(Unrun(file))


def _test_files(place):
    return sorted(place.rglob("test_*.py")) if place.is_dir() else [place]
