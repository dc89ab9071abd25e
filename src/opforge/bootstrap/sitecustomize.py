"""Runs when Python starts under `opforge record` or `serve`: the user's own, then opforge."""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)


def _run_users_own() -> None:
    """The sitecustomize that this one hides, if there is one."""
    places = [place for place in sys.path if place != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _provide_opforge() -> None:
    """Let this program import the opforge that started it, wherever that is installed."""
    if importlib.util.find_spec("opforge") is None:
        folder = Path(__file__).parents[1]
        spec = importlib.util.spec_from_file_location(
            "opforge", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["opforge"] = module
        spec.loader.exec_module(module)


def _start() -> None:
    # Most processes are neither, and import nothing of opforge.
    if not {"OPFORGE_RECORD", "OPFORGE_SERVE"} & os.environ.keys():
        return
    _provide_opforge()
    from opforge.started import start

    start()


try:
    _run_users_own()
finally:
    _start()
