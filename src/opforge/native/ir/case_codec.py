"""How the cases of an operator stand in the manifest.

Terms are written twice, as Python would write them and as nested lists:

    "n", 128, {"text": "(n + 127) // 128", "term": ["//", ["+", "n", 127], 128]}
"""

from __future__ import annotations

from typing import Any

from .cases import (
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
from .expr import Expr, Term, from_json, text, to_json
from .record_codec import LIST, PAIRS, PLAIN, RecordCodec, each, is_a, maybe, one_of, record


def _write_term(term: Term) -> Any:
    if isinstance(term, Expr):
        return {"text": text(term), "term": to_json(term)}
    return to_json(term)


def _read_term(content: Any) -> Term:
    return from_json(content["term"] if isinstance(content, dict) else content)


_TERM = RecordCodec(_write_term, _read_term)
# Of an input: a variable or a number.
_SIZE = RecordCodec(to_json, from_json)

_TENSOR = one_of(
    ("present", lambda tensor: not tensor.present, record(TensorCase, param=PLAIN, present=PLAIN)),
    (
        "dtype",
        lambda tensor: tensor.present,
        record(TensorCase, param=PLAIN, dtype=PLAIN, shape=each(_SIZE), strides=maybe(each(_SIZE))),
    ),
)
_BOUND = record(Bound, var=PLAIN, low=PLAIN, high=PLAIN, values=LIST)

_POINTER = record(Pointer, name=PLAIN, buffer=PLAIN, offset=_TERM, dtype=PLAIN)
_VALUE = record(ScalarValue, name=PLAIN, value=_TERM)
_VARIANT = record(Variant, kernel=PLAIN, types=LIST, aligned=LIST, divisible=LIST)
_LAUNCH = record(
    Launch,
    renamed={"launch": "kernel_name"},
    launch=PLAIN,
    kernel_location=PLAIN,
    location=PLAIN,
    grid=each(_TERM),
    constants=PAIRS,
    arguments=each(
        one_of(("buffer", is_a(Pointer), _POINTER), ("value", is_a(ScalarValue), _VALUE))
    ),
    variants=each(_VARIANT),
)
_ALLOCATE = record(Allocate, renamed={"allocate": "buffer"}, allocate=PLAIN, bytes=_TERM)
_FILL = record(
    Fill,
    renamed={"fill": "buffer"},
    fill=PLAIN,
    offset=_TERM,
    count=_TERM,
    width=PLAIN,
    pattern=PLAIN,
)
_STEP = one_of(
    ("launch", is_a(Launch), _LAUNCH),
    ("allocate", is_a(Allocate), _ALLOCATE),
    ("fill", is_a(Fill), _FILL),
)

_GUARDS = each(record(Guard, condition=_TERM, location=PLAIN))
_OUTPUT = record(Output, dtype=PLAIN, shape=each(_TERM), strides=each(_TERM))
_PATH = one_of(
    ("refused", lambda path: path.refused, record(Path, guards=_GUARDS, refused=PLAIN)),
    (
        "outputs",
        lambda path: not path.refused,
        record(Path, guards=_GUARDS, outputs=each(maybe(_OUTPUT)), steps=each(_STEP)),
    ),
)

CASE = record(
    Case,
    implementation=PLAIN,
    tensors=each(_TENSOR),
    choices=PAIRS,
    bounds=each(_BOUND),
    paths=each(_PATH),
)
