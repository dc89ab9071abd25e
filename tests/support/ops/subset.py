"""Builds a part of the tree: `python -m support.ops.subset FOLDER ARCH add mul:fp32,i8 mul:u64@2`.

All of an operator, or some of its dtypes, in some ranks: a whole library is compiled in minutes,
and tests mostly need less. With `stand-ins` for an ARCH it is for the stand-in drivers of both
vendors, with little code.
"""

import dataclasses
import sys
from pathlib import Path

import opforge
from opforge import native
from opforge.native.frontend.declaration import declarations_of, keep_declarations
from opforge.native.targets import operators
from opforge.registry import registry
from support.uncompiled import Uncompiled

# What the stand-ins present.
ON_STAND_INS = ["sm_80", "gfx942"]


def narrowed(declaration, dtypes, ranks):
    """The declaration, limited to some dtypes, ranks of `*s`, and the last of listed sizes."""
    types = tuple((v, tuple(t for t in known if t in dtypes)) for v, known in declaration.types)
    lengths = declaration.lengths
    if ranks:
        lengths = tuple((s, tuple(n for n in known if n in ranks)) for s, known in lengths)
    bounds = tuple(
        dataclasses.replace(b, values=b.values[-1:], low=b.values[-1], high=b.values[-1])
        if b.values
        else b
        for b in declaration.bounds
    )
    return dataclasses.replace(declaration, types=types, lengths=lengths, bounds=bounds)


def main(folder, arch, *wanted):
    ops = operators([str(Path("ops").resolve())])
    by_name = {opforge.info(op).name.partition("::")[2]: op for op in ops}
    parts = {}
    for word in wanted:
        name, _, part = word.partition(":")
        dtypes, _, ranks = part.partition("@")
        kept = parts.setdefault(name, [])
        for declaration in declarations_of(registry.get(by_name[name])):
            if dtypes:
                numbers = [int(rank) for rank in ranks.split(",") if rank]
                declaration = narrowed(declaration, dtypes.split(","), numbers)  # noqa: PLW2901
            if all(types for _, types in declaration.types):
                kept.append(declaration)
    for name, kept in parts.items():
        keep_declarations(registry.get(by_name[name]), kept)
    ops = [by_name[name] for name in parts]
    if arch == "stand-ins":
        with Uncompiled() as executor:
            native.build(ops, folder, archs=ON_STAND_INS, executor=executor, cache=None)
    else:
        native.build(ops, folder, archs=[arch])


if __name__ == "__main__":
    main(*sys.argv[1:])
