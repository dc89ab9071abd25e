"""Builds a package's functions as one native library, and calls it against eager torch on a GPU.

    python native_libraries.py FOLDER PACKAGE     # writes FOLDER/results.json

It has what differs, and how many results were compared.
"""

import importlib
import json
import sys
from pathlib import Path

import opforge
from opforge import native
from support.gpu.arch import arch_name
from support.wild.native_functions import EAGER, TRIES, differs, expected, inputs, loaded


def operators(package):
    """The functions of a package, each with its operator."""
    coverage = loaded()
    for number, forward in enumerate(coverage.TABLE):
        if forward.module.partition(".")[0] != package or forward.call not in EAGER:
            continue
        body = coverage.made(forward, importlib.import_module(forward.module))
        name = f"wild_{package}::{forward.name}_{number}"
        op = opforge.op(body, name=name, mode="custom_op", mutates_args=forward.mutates)
        native.declare(op, **forward.specs)
        yield forward, op


def results(folder, package):
    found = dict(enumerate(operators(package)))
    library = f"wild_{package}"
    native.build(
        [op for _, op in found.values()], folder, name=library, archs=[arch_name()], torch=True
    )
    opforge.load(folder)
    said, count = [], 0
    for forward, op in found.values():
        for size in range(TRIES):
            given = inputs(forward, size)
            name = f"{forward.name} {forward.call}, size {size}"
            try:
                with opforge.backend("native"):
                    made = op(*(t.cuda() for t in given.values()))
            except Exception as error:  # noqa: BLE001  # whatever it is, the others go on
                said.append(f"{name}: {type(error).__name__}: {error}")
                continue
            made = made if isinstance(made, tuple) else (made,)
            for place, (one, wanted) in enumerate(zip(made, expected(forward, given), strict=True)):
                count += 1
                if why := differs(one, wanted):
                    said.append(f"{name}, output {place}: {why}")
    return {"differing": said, "count": count}


if __name__ == "__main__":
    _, given_folder, about = sys.argv
    told = results(Path(given_folder) / "dist", about)
    Path(given_folder, "results.json").write_text(json.dumps(told), "utf-8")
