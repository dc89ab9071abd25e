"""The manifest: what a build writes of its operators is what a reader gets."""

import dataclasses
import subprocess
import sys

import pytest

from opforge.native.codegen.signature import CSignature
from opforge.native.codegen.sources import manifest
from opforge.native.ir.program import KERNEL, Library
from opforge.native.library.manifest_reader import Manifest
from support.native import hand_made


def written_and_read(library):
    signatures = [CSignature(library.name, op) for op in library.ops]
    read = Manifest(manifest(library, signatures))
    assert read.archs == tuple(arch.built_name for arch in sorted(library.archs))
    found = []
    for op in read.ops:
        assert (op.name, op.torch_name, op.schema, op.location, op.has_backward) == (
            op.op.name, op.op.torch_name, op.op.schema, op.op.location, bool(op.op.formula),
        )  # fmt: skip
        found.append(dataclasses.replace(op.op, cases=op.cases))
    assert read.listed("kernels", KERNEL.read) == tuple(map(stored, library.kernels))
    return tuple(found)


def stored(kernel):
    """Without the contents of its images."""
    images = tuple(image._replace(cubin=b"", ptx="") for image in kernel.images)
    return dataclasses.replace(kernel, images=images)


def as_written(op):
    """Without what only the header tells, and with the implementation that an op is for itself."""
    params = tuple(dataclasses.replace(param, doc="") for param in op.params)
    served_by = tuple(dataclasses.replace(one, takes=()) for one in op.served_by)
    return dataclasses.replace(op, params=params, implementations=served_by)


@pytest.mark.parametrize("part", ["every_op", "overlapping", "copying"])
def test_operators_are_read_as_they_were_written(part):
    made = getattr(hand_made, part)()
    library = made if isinstance(made, Library) else hand_made.library(made)
    assert written_and_read(library) == tuple(as_written(op) for op in library.ops)


def test_the_reader_imports_neither_torch_nor_records():
    code = (
        "import sys, opforge.native.library.manifest_reader\n"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('opforge.native.ir')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
