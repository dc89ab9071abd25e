"""Native tracing with its own algebra, against sympy on the same questions.

    python benchmarks/symbolic_algebra.py

Traces the five operators of examples/native and logs every question to `Algebra`. The log is then
replayed with sympy and torch's value ranges, on operands that were converted beforehand. The ratio
is the trace time with sympy's share instead of ours, over the trace time now. "undecided" counts
comparisons that ours decides and value ranges do not: each would add a guard and a path to the
library. The ratio favours sympy: conversion and all narrowing by guards are left out. Both are
measured in a first trace, in one process per operator. Needs no GPU.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sympy
from rich.console import Console
from rich.table import Table
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from opforge import native
from opforge.native.ir.expr import Expr, Term, Var, is_float
from opforge.native.symbolic.algebra import Algebra
from opforge.registry import registry

ASKED = ("add", "sub", "mul", "floordiv", "mod", "compare", "min_max", "range")
# Method, operands, the ranges then, and the answer.
Log = list[tuple[str, tuple[Any, ...], dict[str, Any], Any]]

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "native"))
import ops  # noqa: E402

_JOINED: dict[str, Callable[..., Any]] = {"//": FloorDiv, "%": Mod, "min": Min, "max": Max}


def to_sympy(term: Term) -> Any:
    if isinstance(term, Var):
        return sympy.Symbol(term.name, integer=True)
    if not isinstance(term, Expr):
        return sympy.Integer(term)
    args = [to_sympy(a) for a in term.args]
    if term.op == "+":
        return sympy.Add(*args)
    if term.op == "*":
        return sympy.expand(sympy.Mul(*args))
    if term.op == "neg":
        return -args[0]
    return _JOINED[term.op](*args)


def bounds(ranges: dict[str, Any]) -> dict[Any, Any]:
    def end(x: float) -> Any:
        return sympy.oo if x == math.inf else -sympy.oo if x == -math.inf else sympy.Integer(int(x))

    return {
        sympy.Symbol(name, integer=True): ValueRanges(end(low), end(high))
        for name, (low, high) in ranges.items()
    }


def decided(a: Any, b: Any, ranges: dict[Any, Any]) -> Any:
    return bound_sympy(sympy.expand(a - b), ranges)


SYMPY: dict[str, Callable[..., Any]] = {
    "add": lambda ranges, a, b: a + b,
    "sub": lambda ranges, a, b: sympy.expand(a - b),
    "mul": lambda ranges, a, b: sympy.expand(a * b),
    "floordiv": lambda ranges, a, b: FloorDiv(a, b),
    "mod": lambda ranges, a, b: Mod(a, b),
    "compare": lambda ranges, a, b: decided(a, b, ranges),
    "min_max": lambda ranges, a, b: decided(a, b, ranges),
    "range": lambda ranges, a: bound_sympy(a, ranges),
}


def traced(op: Any) -> float:
    start = time.perf_counter()
    native.plan([op], (90,))
    return time.perf_counter() - start


def logged(op: Any) -> tuple[Log, float]:
    """The outermost questions of a trace, and the time they took."""
    log: Log = []
    spent, inside = 0.0, False
    originals = {name: getattr(Algebra, name) for name in ASKED}

    def wrap(name: str) -> Callable[..., Any]:
        original = originals[name]

        def asked(self: Algebra, *args: Any) -> Any:
            nonlocal spent, inside
            if inside:
                return original(self, *args)
            inside = True
            known = dict(self.ranges)
            start = time.perf_counter()
            try:
                answer = original(self, *args)
            finally:
                spent += time.perf_counter() - start
                inside = False
            log.append((name, args, known, answer))
            return answer

        return asked

    for name in ASKED:
        setattr(Algebra, name, wrap(name))
    try:
        traced(op)
    finally:
        for name, original in originals.items():
            setattr(Algebra, name, original)
    return log, spent


def replayed(log: Log) -> tuple[float, int, int]:
    """Seconds in sympy for the integer questions of a log, how many, and how many stay open."""
    questions = []
    for name, args, ranges, answer in log:
        terms = [a for a in args if not isinstance(a, str)]
        if any(is_float(t) for t in terms):
            continue
        try:
            operands = [to_sympy(t) for t in terms]
        except KeyError:  # an operation that torch's sympy functions lack
            continue
        questions.append((name, args[0], bounds(ranges), operands, answer))
    answers = []
    start = time.perf_counter()
    for name, _, ranges, operands, _ in questions:
        answers.append(SYMPY[name](ranges, *operands))  # timed
    spent = time.perf_counter() - start
    undecided = sum(
        name == "compare" and isinstance(ours, int) and not is_decided(op, theirs)
        for (name, op, _, _, ours), theirs in zip(questions, answers, strict=True)
    )
    return spent, len(questions), undecided


def is_decided(op: str, difference: Any) -> bool:
    """Whether the range of `a - b` answers `a op b`."""
    low, high = difference.lower, difference.upper
    apart = bool(low > 0 or high < 0)
    return {
        "==": apart or bool(low == high == 0),
        "!=": apart or bool(low == high == 0),
        "<": bool(high < 0 or low >= 0),
        "<=": bool(high <= 0 or low > 0),
    }[op]


def measure(name: str) -> dict[str, Any]:
    entry = registry.get(getattr(ops, name))
    log, ours = logged(entry)
    theirs, count, undecided = replayed(log)
    now = traced(entry)
    return {"now": now, "ours": ours, "theirs": theirs, "count": count, "undecided": undecided}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    columns = ("operator", "trace", "own algebra", "sympy", "questions", "undecided", "ratio")
    table = Table(*columns, box=None)
    for name in ("silu", "add", "rms_norm", "softmax", "gemm"):
        done = subprocess.run(
            [sys.executable, __file__, name], capture_output=True, text=True, check=True
        )
        m = json.loads(done.stdout.splitlines()[-1])
        ratio = (m["now"] - min(m["ours"], m["now"]) + m["theirs"]) / m["now"]
        table.add_row(
            name,
            *(f"{m[part] * 1e3:.0f} ms" for part in ("now", "ours", "theirs")),
            *(str(m[part]) for part in ("count", "undecided")),
            f"{ratio:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
