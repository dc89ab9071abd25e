"""Hashes of an operator's source, including the ops that implement it."""

from __future__ import annotations

import hashlib

from ...registration.dependence import op_fingerprint
from ...registry import Entry
from .alternatives import implementing


def source_hash(entry: Entry) -> str:
    """The hash of the registered source, the same at build time and at load time."""
    hashes = [part_hash(part) for part in implementing(entry)]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def part_hash(part: Entry) -> str:
    """The hash of one op alone."""
    return op_fingerprint(part.fn, part.describe().kernels)


def backward_hash(entry: Entry) -> str:
    """The hash of an op's declared backward, and of what saves for it."""
    definition, kernels = entry.registration.definition, entry.describe().backward_kernels
    functions = (definition.backward, definition.setup_context)
    hashes = [op_fingerprint(fn, kernels) for fn in functions if fn is not None]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()
