"""Numbers that a dtype cannot hold: torch refuses them where it converts a number by itself."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch

from ...ir.dtypes import DTYPES
from ...ir.expr import Term, Var, is_float, make
from ...symbolic.symint import Symbols, is_symbolic, term_of

# The only ones of opforge's without an infinity.
_FINITE = {torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}


def is_number(value: Any) -> bool:
    """Whether a value may be too large; a bool is not."""
    is_bool = isinstance(value, bool)
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not is_bool


def refuse_beyond(symbols: Symbols, number: Any, dtype: torch.dtype) -> None:
    """Raise as torch does for a number that a dtype cannot hold; one of a call becomes a guard."""
    if isinstance(number, (bool, torch.SymBool)) or dtype is torch.bool:
        return
    if is_symbolic(number):
        fits = symbols.ask(_condition(symbols, term_of(number), dtype))
    else:
        fits = _fits(number, dtype)
    if not fits:
        name = str(dtype).removeprefix("torch.")
        raise RuntimeError(f"value cannot be converted to type {name} without overflow")


def _fits(number: float, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point:
        if math.isinf(number):
            return dtype not in _FINITE
        return math.isnan(number) or abs(number) <= torch.finfo(dtype).max
    low, high = _ends(dtype, of_float=isinstance(number, float))
    return low <= number <= high


def _ends(dtype: torch.dtype, *, of_float: bool) -> tuple[int, int]:
    """The least and the largest number; torch lets small negative integers become unsigned ones."""
    info = torch.iinfo(dtype)
    return (info.min if info.min or of_float else -info.max), info.max


def _condition(symbols: Symbols, term: Term, dtype: torch.dtype) -> Term:
    """That a number of a call fits."""
    algebra = symbols.algebra
    if not dtype.is_floating_point:
        low, high = _ends(dtype, of_float=is_float(term))
        return algebra.both(algebra.compare("<=", low, term), algebra.compare("<=", term, high))
    most = torch.finfo(dtype).max
    if isinstance(term, Var) and term.name in symbols.declared:
        given = getattr(torch, DTYPES[symbols.declared[term.name]].torch)
        if given.is_floating_point and torch.finfo(given).max <= most:
            return 1
    size = make("abs", term)
    fits = algebra.compare("<=", size, most)
    if not is_float(term):
        return fits
    is_infinite = 0 if dtype in _FINITE else algebra.compare("<", sys.float_info.max, size)
    return algebra.either(fits, is_infinite, algebra.compare("!=", term, term))
