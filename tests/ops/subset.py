"""Builds operators of the tree for some dtypes only: `subset.py FOLDER ARCH add mul:fp32,i8`.

All of a library is compiled in minutes; tests mostly need less.
"""

import dataclasses
import sys
from pathlib import Path

import opforge
from opforge import native
from opforge.native import tree
from opforge.registry import registry


def narrowed(declaration, dtypes):
    """For those of the dtypes that were declared; type variables only, which tie all others."""
    types = tuple((v, tuple(t for t in known if t in dtypes)) for v, known in declaration.types)
    return dataclasses.replace(declaration, types=types)


def main(folder, arch, *wanted):
    found = tree.load(Path("ops").resolve())
    by_name = {opforge.info(op).name.partition("::")[2]: op for _, op in found.operators}
    ops = []
    for word in wanted:
        name, _, listed = word.partition(":")
        ops.append(by_name[name])
        if listed:
            entry = registry.get(by_name[name])
            made = [narrowed(d, listed.split(",")) for d in entry.declarations]
            entry.declarations[:] = [d for d in made if all(types for _, types in d.types)]
    native.build(ops, folder, archs=[arch])


if __name__ == "__main__":
    main(*sys.argv[1:])
