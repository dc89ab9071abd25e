"""From a function to its syntax tree, once per process and without `inspect.getsource`.

`inspect` tokenizes the text to find where a function ends; code objects know their lines.
"""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from .identity import cached_by_identity

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Source:
    """A function's tree. Line n of the tree is line n + `offset` of the file."""

    node: FunctionNode
    offset: int


@cached_by_identity
def read_source(code: types.CodeType, module: dict[str, Any]) -> Source | None:
    """The tree of a function, or None where its source is not available."""
    return _parse(code, module)


def _parse(code: types.CodeType, module: dict[str, Any]) -> Source | None:
    lines = linecache.getlines(code.co_filename, module)
    if not 0 < code.co_firstlineno <= len(lines):
        return None
    if code.co_name == "<lambda>":
        return _find_lambda(code, "".join(lines))
    first = code.co_firstlineno - 1
    text = "".join(lines[first : _end(lines, first, _last_line(code))])
    indented = text[:1].isspace()
    tree = _try_parse("if 1:\n" + text if indented else text)
    if tree is not None and tree.body:
        node = tree.body[0]
        node = node.body[0] if indented and isinstance(node, ast.If) else node
        if _is_function(node, code.co_name):
            return Source(node, first - indented)
    return _find_def(code, "".join(lines))


def _is_function(node: ast.AST, name: str) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    # A private method's code object has its name as written or, in older Pythons, mangled.
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and name.endswith(node.name)


def _last_line(code: types.CodeType) -> int:
    nested = [_last_line(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return max([last_line(code), *nested])


@cached_by_identity
def last_line(code: types.CodeType) -> int:
    """The last line of a function's code, without those nested in it."""
    lines = [line for _, _, line in code.co_lines() if line]
    return max(lines, default=code.co_firstlineno)


def _end(lines: list[str], first: int, last: int) -> int:
    """Where a block ends whose last line of code is `last`: closing brackets may follow it."""
    margin = len(lines[first]) - len(lines[first].lstrip())
    while last < len(lines):
        line = lines[last].lstrip()
        if line and len(lines[last]) - len(line) <= margin and line[0] not in ")]}#":
            break
        last += 1
    return last


def _try_parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@functools.lru_cache(maxsize=8)
def _functions_of(text: str) -> tuple[FunctionNode, ...]:
    tree = _try_parse(text)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return tuple(n for n in ast.walk(tree) if isinstance(n, kinds)) if tree is not None else ()


def _find_def(code: types.CodeType, text: str) -> Source | None:
    for node in _functions_of(text):
        if isinstance(node, ast.Lambda) or not _is_function(node, code.co_name):
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if first == code.co_firstlineno:
            return Source(node, 0)
    return None


def _find_lambda(code: types.CodeType, text: str) -> Source | None:
    """The lambda on that line whose body contains the code, or that has the code's names."""
    on_line = [
        n
        for n in _functions_of(text)
        if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno
    ]
    if len(on_line) > 1:
        spans = set(_positions(code))
        exact = [n for n in on_line if (n.body.lineno, n.body.col_offset) in spans]
        exact = [n for n in exact if _inside(n.body, spans)]
        on_line = exact or [n for n in on_line if _names(n) == _code_names(code)]
    return Source(on_line[0], 0) if on_line else None


def _positions(code: types.CodeType) -> Iterator[tuple[int, int]]:
    if hasattr(code, "co_positions"):  # Python 3.11 and later
        for line, _, column, _ in code.co_positions():
            # The prologue is at column 0 of the first line.
            if line is not None and column:
                yield line, column


def _inside(body: ast.expr, spans: set[tuple[int, int]]) -> bool:
    first = (body.lineno, body.col_offset)
    last = (body.end_lineno or body.lineno, body.end_col_offset or 0)
    return all(first <= span < last for span in spans)


def _names(node: ast.Lambda) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return names | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def _code_names(code: types.CodeType) -> set[str]:
    names = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _code_names(const)
    return {n for n in names if not n.startswith(".")}
