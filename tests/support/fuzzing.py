"""Values that attack what opforge reads: drawn at random, the same ones in every `make test`.

`make fuzz` goes on with others for `OPFORGE_FUZZ_SECONDS`, and keeps what fails in
`tests/fuzz/cases`, which every later run tries first.
"""

import contextlib
import copy
import json
import math
import os
import time
import unittest
from pathlib import Path

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

SECONDS = float(os.environ.get("OPFORGE_FUZZ_SECONDS", "0"))
CASES = Path(__file__).parents[1] / "fuzz" / "cases" / "hypothesis"

_PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck))
_SAME = settings(_PATIENT, derandomize=True, database=None)
_KEEPING = settings(_PATIENT, database=DirectoryBasedExampleDatabase(CASES))
_KEPT = settings(_KEEPING, phases=[Phase.reuse])


def attack(*strategies, examples, known=()):
    """Make a test of a check: `examples` values in `make test`; `known` ones always come first."""

    def decorate(check):
        for one in reversed(known):
            check = example(*one)(check)

        def run(chosen):
            # Hypothesis takes settings once for each function that it makes.
            chosen(given(*strategies)(check))()

        def attacked():
            # Hypothesis skips a test of which nothing was kept.
            with contextlib.suppress(unittest.SkipTest):
                run(_KEPT)
            if not SECONDS:
                run(settings(_SAME, max_examples=examples))
                return
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                run(settings(_KEEPING, max_examples=examples))

        # Not functools.wraps: pytest would take what is drawn for fixtures.
        attacked.__name__, attacked.__doc__ = check.__name__, check.__doc__
        attacked.__module__ = check.__module__
        return attacked

    return decorate


# Of every type and beyond every range; names, terms and values of manifests among them.
ODD = [
    None, True, False, 0, 1, -1, 0.5, 2**31, 2**63, 2**64, -(2**70), 10**400, math.inf, -math.inf,
    math.nan, "", "x", "a b", "a\nb", "\0", "\ud800", "\udcff", "gr\u00f6\u00dfe", "x" * 5000,
    "x=print(1)", "lambda", "../../etc", "/dev/zero", "aten::add", "demo::other", "sm_99999999",
    "Tensor", [], {}, [[]], [{}], [None], {"x": 1}, ["float", "x"], ["dtype", "nope"], ["dtype"],
    ["device", "nope"], ["list"], ["call"], ["item"], ["grad", 0], ["input", 99], ["//", "m", 0],
]  # fmt: skip
# What json.dumps could not write; each is a text in the document until then.
_DEEP = {
    "@lists": "[" * 900 + "]" * 900,
    "@objects": '{"a":' * 900 + "1" + "}" * 900,
    "@terms": '["neg",' * 400 + "1" + "]" * 400,
    "@values": '["list",' * 400 + "1" + "]" * 400,
    "@endless": "[" * 100_000,
}


@st.composite
def forged(draw, document):
    """The bytes of a JSON document with a few things wrong."""
    content = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        groups = _ways(content)
        if groups:
            _change(draw, content, draw(st.sampled_from(draw(st.sampled_from(groups)))))
    text = json.dumps(content)
    for name, deep in _DEEP.items():
        text = text.replace(f'"{name}"', deep)
    return draw(damaged(text.encode()))


@st.composite
def damaged(draw, content):
    """Bytes as they are, cut short, or with some bytes replaced; mostly as they are."""
    kind = draw(st.integers(0, 15))
    if kind > 2:
        return content
    place = draw(st.integers(0, len(content)))
    if kind == 0:
        return content[:place]
    return content[:place] + draw(st.binary(min_size=1, max_size=8)) + content[place + kind :]


def _ways(content):
    """The places in a document; those of one pattern together, or lists would have most of them."""
    groups = {}
    left = [((), (), content)]
    while left:
        way, pattern, value = left.pop()
        if way:
            groups.setdefault(pattern, []).append(way)
        if isinstance(value, dict):
            left += [((*way, k), (*pattern, k), v) for k, v in value.items()]
        elif isinstance(value, list):
            left += [((*way, i), (*pattern, 0), v) for i, v in enumerate(value)]
    return list(groups.values())


def _change(draw, content, way):
    holder = content
    for key in way[:-1]:
        holder = holder[key]
    key = way[-1]
    what = draw(st.sampled_from(["replace"] * 5 + ["delete", "repeat", "rename", "nest"]))
    if what == "delete":
        del holder[key]
    elif what == "repeat" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif what == "rename" and isinstance(holder, dict):
        holder[draw(st.sampled_from(["", "x", "\ud800", "a b"]))] = holder.pop(key)
    elif what == "nest":
        holder[key] = draw(st.sampled_from([[holder[key]], {"x": holder[key]}, *_DEEP]))
    else:
        holder[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
