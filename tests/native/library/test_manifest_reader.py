"""The manifest: what a build writes of its operators is what a reader gets."""

import copy
import dataclasses
import hashlib
import json
import random
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opforge.errors import NotALibrary
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
from opforge.native.ir.dtypes import DTYPES
from opforge.native.ir.expr import ARITY, Expr, Var
from opforge.native.ir.interface import (
    ChoiceParam,
    Implementation,
    Op,
    ScalarParam,
    SchemaArgument,
    TensorParam,
)
from opforge.native.ir.kernel_codec import BuiltImage, BuiltKernel, read_kernels
from opforge.native.ir.program import Image, Kernel, Library, TensorMap
from opforge.native.library.manifest_reader import Manifest, reading
from support.archs import SM_90, sm
from support.native import hand_made

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
dtypes = st.sampled_from(sorted(DTYPES))
words = st.text("abxyz_", min_size=1, max_size=4)
numbers = st.integers(-(2**62), 2**62)
floats = st.floats(allow_nan=False)
sizes = numbers | st.builds(Var, words, is_float=st.booleans())
terms = st.recursive(
    sizes | floats,
    lambda inner: st.sampled_from(sorted(ARITY)).flatmap(
        lambda op: st.builds(
            Expr,
            st.just(op),
            st.lists(inner, min_size=ARITY[op] or 1, max_size=ARITY[op] or 3).map(tuple),
        )
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
    st.builds(ScalarParam, words, dtypes),
    st.builds(ChoiceParam, words, tuples(words), tuples(words)),
)  # fmt: skip
arguments = st.builds(
    SchemaArgument, words, words, tuples(flats),
    fixed=st.booleans(), keyword_only=st.booleans(), default=tuples(flats, 1),
)  # fmt: skip
tensors = st.builds(TensorCase, words, present=st.just(False)) | st.builds(
    TensorCase,
    words,
    dtype=dtypes,
    shape=tuples(sizes),
    strides=st.none() | tuples(sizes),
)
variants = st.builds(
    Variant, words, tuples(words), tuples(st.integers(0, 9)), tuples(st.integers(0, 9))
)
steps = st.one_of(
    st.builds(Allocate, words, terms),
    st.builds(Fill, words, terms, terms, st.integers(1, 8), st.integers(0, 2**62)),
    st.builds(
        Launch, words, words, st.tuples(terms, terms, terms),
        tuples(
            st.builds(Pointer, words, words, terms, dtypes) | st.builds(ScalarValue, words, terms)
        ),
        tuples(variants), pairs, words,
    ),
)  # fmt: skip
guards = tuples(st.builds(Guard, terms, words))
outputs = tuples(st.none() | st.builds(Output, dtypes, tuples(terms), tuples(terms)))
paths = st.builds(Path, guards, refused=words) | st.builds(Path, guards, outputs, tuples(steps))
bounds = st.builds(Bound, words, numbers, st.none() | numbers, tuples(numbers))
choices = st.dictionaries(words, st.integers(0, 3), max_size=2).map(lambda d: tuple(d.items()))
cases = st.builds(Case, tuples(tensors), choices, tuples(bounds), tuples(paths), st.integers(0, 1))
implementations = st.builds(Implementation, words, words, words, words, words, words)
naturals = st.integers(0, 2**62)
maps = st.builds(TensorMap, naturals, naturals, naturals, tuples(naturals), st.booleans())
images = st.builds(
    Image, st.sampled_from(sm(80, 90)), st.binary(), words, naturals, naturals, st.just("") | words,
    registers=naturals, spills=naturals, maps=tuples(maps),
)  # fmt: skip
kernels = st.builds(
    Kernel, words, words, words, tuples(words), pairs, tuples(images, 1), tuples(naturals), words,
    pairs,
)  # fmt: skip
ops = st.builds(
    Op, words, words, words, tuples(params), tuples(words), st.just(()), words, words, words,
    tuples(arguments), tuples(words), tuples(words), tuples(flats), tuples(implementations),
)  # fmt: skip


def written_and_read(library):
    read = Manifest(manifest(library))
    assert read.archs == tuple(arch.built_name for arch in sorted(library.archs))
    found = []
    for op in read.ops:
        assert (op.name, op.torch_name, op.schema, op.location, op.has_backward) == (
            op.op.name, op.op.torch_name, op.op.schema, op.op.location, bool(op.op.formula),
        )  # fmt: skip
        found.append(dataclasses.replace(op.op, cases=op.cases))
    assert read_kernels(read.content) == tuple(map(built, library.kernels))
    return tuple(found)


def built(kernel):
    told = tuple(
        BuiltImage(
            one.arch.built_name, len(one.cubin), sha256(one.cubin),
            sha256(one.ptx.encode()) if one.ptx else None,
            one.num_warps, one.shared, one.registers, one.spills,
        )
        for one in sorted(kernel.images, key=lambda one: one.arch)
    )  # fmt: skip
    return BuiltKernel(dataclasses.replace(kernel, images=()), told)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


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
    assert written_and_read(Library("demo", (op,), (), sm(80))) == (as_written(op),)


@patient
@given(kernels)
def test_every_kernel_is_read_as_it_was_written(kernel):
    written_and_read(Library("demo", (), (kernel,), sm(80, 90)))


@patient
@given(cases)
def test_every_case_is_read_as_it_was_written(case):
    content = json.loads(json.dumps(CASE.write(case)))
    assert CASE.read(content) == case


WRONG = [
    None, True, -1, 2**70, 1.5, "", 'x"; run(', [], [[]], {}, {"a": 1},
    ["var"], ["float"], ["const", "x"], ["+"], ["//", 1], ["not", 1, 2],
]  # fmt: skip


def places(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*path, key)
        if isinstance(item, (dict, list)):
            yield from places(item, (*path, key))


def forgeries(base, count):
    """Manifests with one field left out or of another type, and the way to that field."""
    everywhere = list(places(base))
    chance = random.Random(0)
    for _ in range(count):
        *way, last = chance.choice(everywhere)
        forged = at = copy.deepcopy(base)
        for key in way:
            at = at[key]
        if isinstance(at, dict) and chance.random() < 0.3:
            del at[last]
        else:
            at[last] = chance.choice(WRONG)
        yield [*way, last], json.dumps(forged).encode()


def read_all(text):
    read = Manifest(text)
    found = [read.archs, *((op.op, op.cases) for op in read.ops), read.runs_on(SM_90)]
    with reading("a library"):
        return [*found, read_kernels(read.content)]


def refusal(text):
    try:
        read_all(text)
    except NotALibrary as error:
        return str(error)
    return None


def test_a_forged_manifest_is_refused_by_the_name_of_its_field():
    base = json.loads(manifest(hand_made.library(hand_made.copying())))
    told = [(way, refusal(text)) for way, text in forgeries(base, 400)]
    refused = [(way, said) for way, said in told if said is not None]
    assert len(refused) > 200
    for way, said in refused:
        # A broken form is told at the object that has it.
        assert any(key in said for key in way if isinstance(key, str)), (way, said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "Expecting value"),
        (b"\xff", "can't decode"),
        (b"[]", r"it is \[\], expected dict"),
        (b'{"format": "2"}', "format is '2', expected int"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"kernels": []}', "ops is missing"),
        (b'{"ops": [{"name": "f"}]}', r"ops\[0\]\.function is missing"),
        (b'{"ops": [], "kernels": [{}]}', r"kernels\[0\]\.images is missing"),
    ],
)
def test_what_is_not_a_manifest_is_told(text, said):
    with pytest.raises(NotALibrary, match=said):
        read_all(text)


def test_the_reader_imports_neither_torch_nor_records():
    code = (
        "import sys, opforge.native.library.manifest_reader\n"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('opforge.native.ir')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
