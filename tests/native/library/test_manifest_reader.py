"""The manifest: what a build writes of its operators is what a reader gets."""

import dataclasses
import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opforge.native.codegen.manifest import manifest
from opforge.native.ir.case_codec import CASE
from opforge.native.ir.cases import (
    Allocate,
    Bound,
    Case,
    Fill,
    Guard,
    Launch,
    Output,
    Path,
    Pointer,
    ScalarValue,
    TensorCase,
    Variant,
)
from opforge.native.ir.expr import OPERATIONS, Expr, Var
from opforge.native.ir.interface import (
    ChoiceParam,
    Implementation,
    Op,
    ScalarParam,
    SchemaArgument,
    TensorParam,
)
from opforge.native.ir.program import Library
from opforge.native.library.manifest_reader import Manifest
from support.native import hand_made

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
words = st.text("abxyz_", min_size=1, max_size=4)
numbers = st.integers(-(2**62), 2**62)
floats = st.floats(allow_nan=False)
sizes = numbers | st.builds(Var, words, is_float=st.booleans())
terms = st.recursive(
    sizes | floats,
    lambda inner: st.builds(
        Expr,
        st.sampled_from(sorted(OPERATIONS)),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=5,
)
flats = st.recursive(
    st.none() | st.booleans() | numbers | floats | words,
    lambda inner: st.lists(inner, max_size=2).map(lambda items: ("list", *items)),
    max_leaves=4,
)


def tuples(values, most=2):
    return st.lists(values, max_size=most).map(tuple)


pairs = st.dictionaries(words, words, max_size=2).map(lambda found: tuple(found.items()))
params = st.one_of(
    st.builds(
        TensorParam, words, st.booleans(), st.booleans(),
        broadcast=st.booleans(), group=st.integers(0, 2),
    ),
    st.builds(ScalarParam, words, words),
    st.builds(ChoiceParam, words, tuples(words), tuples(words)),
)  # fmt: skip
arguments = st.builds(
    SchemaArgument, words, words, tuples(flats),
    fixed=st.booleans(), keyword_only=st.booleans(), default=tuples(flats, 1),
)  # fmt: skip
tensors = st.builds(TensorCase, words, present=st.just(False)) | st.builds(
    TensorCase,
    words,
    dtype=words,
    shape=tuples(sizes),
    strides=st.none() | tuples(sizes),
)
variants = st.builds(
    Variant, words, tuples(words), tuples(st.integers(0, 9)), tuples(st.integers(0, 9))
)
steps = st.one_of(
    st.builds(Allocate, words, terms),
    st.builds(Fill, words, terms, terms, st.integers(1, 8), numbers),
    st.builds(
        Launch, words, words, st.tuples(terms, terms, terms),
        tuples(
            st.builds(Pointer, words, words, terms, words) | st.builds(ScalarValue, words, terms)
        ),
        tuples(variants), pairs, words,
    ),
)  # fmt: skip
guards = tuples(st.builds(Guard, terms, words))
outputs = tuples(st.none() | st.builds(Output, words, tuples(terms), tuples(terms)))
paths = st.builds(Path, guards, refused=words) | st.builds(Path, guards, outputs, tuples(steps))
bounds = st.builds(Bound, words, numbers, st.none() | numbers, tuples(numbers))
choices = st.dictionaries(words, st.integers(0, 3), max_size=2).map(lambda d: tuple(d.items()))
cases = st.builds(Case, tuples(tensors), choices, tuples(bounds), tuples(paths), st.integers(0, 1))
implementations = st.builds(Implementation, words, words, words, words, words, words)
ops = st.builds(
    Op, words, words, words, tuples(params), tuples(words), st.just(()), words, words, words,
    tuples(arguments), tuples(words), tuples(flats), tuples(implementations),
)  # fmt: skip


def written_and_read(library):
    read = Manifest(manifest(library))
    assert read.archs == tuple(f"sm_{arch}{'a' * (arch >= 90)}" for arch in sorted(library.archs))
    found = []
    for op in read.ops:
        assert (op.name, op.torch_name, op.schema, op.location, op.has_backward) == (
            op.op.name, op.op.torch_name, op.op.schema, op.op.location, bool(op.op.formula),
        )  # fmt: skip
        found.append(dataclasses.replace(op.op, cases=op.cases))
    return tuple(found)


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


@patient
@given(ops)
def test_every_operator_is_read_as_it_was_written(op):
    assert written_and_read(Library("demo", (op,), (), (80,))) == (as_written(op),)


@patient
@given(cases)
def test_every_case_is_read_as_it_was_written(case):
    content = json.loads(json.dumps(CASE.write(case)))
    assert CASE.read(content) == case


def test_the_reader_imports_neither_torch_nor_records():
    code = (
        "import sys, opforge.native.library.manifest_reader\n"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('opforge.native.ir')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
