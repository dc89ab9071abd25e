"""The small language of `--input`: `x=randn(8, 128, bf16)`, read with `ast` and never evaluated.

value   = number | 'text' | True | False | None | dtype | device | [value, ...] | (value, ...)
        | randn(shape, dtype, device) | rand(...) | zeros(...) | ones(...)
        | arange([start,] end[, step], dtype, device) | randint(low, high, shape, dtype, device)
shape   = numbers one by one, or a tuple of them
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from ..errors import BadInput

SHORT_DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
}
LONG_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (*SHORT_DTYPES.values(), torch.bool, torch.complex64, torch.complex128)
}
# These are also Python's types of numbers; as an argument they are dtypes.
WORDS = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "int": torch.int64}
DTYPES = {
    **SHORT_DTYPES,
    **LONG_DTYPES,
    **WORDS,
    **{name: getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2")},
}
DEVICES = ("cpu", "cuda")
NUMBERS = {"inf": math.inf, "nan": math.nan}
MAKERS = ("randn", "rand", "zeros", "ones", "arange", "randint")
ALLOWED = (
    f"{', '.join(MAKERS)}; numbers, 'text', True, False, None, inf, nan; dtypes "
    f"({', '.join(SHORT_DTYPES)}, or as torch names them); devices (cpu, cuda, 'cuda:1'); "
    "lists and tuples of these"
)

_PATH = re.compile(r"[^\W\d]\w*(\.\w+)*")


@dataclass(frozen=True)
class InputValue:
    """One `path=value`, with the text to point into."""

    path: str
    value: Any
    text: str


def parse_input(
    text: str, *, device: str = "cpu", generator: torch.Generator | None = None
) -> InputValue:
    """Read one `--input`; tensors without a device are made on `device`.

    >>> parse_input("x=zeros(2, 3, bf16)").value.dtype
    torch.bfloat16
    """
    text = " ".join(text.splitlines())
    path, equals, expression = text.partition("=")
    name = path.strip()
    if not equals or not _PATH.fullmatch(name):
        column = len(path) if not equals else len(path) - len(path.lstrip())
        _refuse(
            "an input must look like path=value"
            if not equals
            else f"{name!r} is not a parameter or field",
            text,
            column,
            fix="write it like x=randn(8, 128, bf16) or cfg.eps=1e-6",
        )
    start = len(path) + 1
    start += len(expression) - len(expression.lstrip())
    reader = _Reader(text, start, device, generator or torch.Generator().manual_seed(0))
    return InputValue(name, reader.read(expression.strip()), text)


class _Reader:
    """Interprets one expression; `start` is where it begins in `text`."""

    def __init__(self, text: str, start: int, device: str, generator: torch.Generator) -> None:
        self.text = text
        self.start = start
        self.device = device
        self.generator = generator

    def read(self, expression: str) -> Any:
        if not expression:
            self.refuse("there is no value after the =", None)
        try:
            tree = ast.parse(expression, mode="eval")
        except SyntaxError as error:
            column = self.start + max((error.offset or 1) - 1, 0)
            _refuse(f"this does not parse: {error.msg}", self.text, min(column, len(self.text)))
        except (ValueError, RecursionError, MemoryError) as error:
            self.refuse(f"this does not parse: {error}", None)
        return self.value(tree.body)

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return self.constant(node)
        if isinstance(node, (ast.List, ast.Tuple)):
            items = [self.value(item) for item in node.elts]
            return items if isinstance(node, ast.List) else tuple(items)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            number = self.value(node.operand)
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                return -number if isinstance(node.op, ast.USub) else number
        if isinstance(node, ast.Name):
            return self.named(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        return self.refuse(f"{_kind(node)} is not allowed here", node)

    def constant(self, node: ast.Constant) -> Any:
        if node.value is None or isinstance(node.value, (bool, int, float, str)):
            return node.value
        return self.refuse(f"{node.value!r} is not allowed here", node)

    def named(self, node: ast.Name) -> Any:
        name = node.id
        if name in DTYPES:
            return DTYPES[name]
        if name in DEVICES:
            return torch.device(name)
        if name in NUMBERS:
            return NUMBERS[name]
        if name in MAKERS:
            return self.refuse(f"{name} needs a shape", node, fix=f"{name}(8, 128)")
        return self.refuse(
            f"{name!r} is not a known name", node, fix=f"text needs quotes: '{name}'"
        )

    def call(self, node: ast.Call) -> torch.Tensor:
        if not isinstance(node.func, ast.Name):
            return self.refuse(f"{_kind(node.func)} cannot be called here", node.func)  # type: ignore[no-any-return]
        name = node.func.id
        if name not in MAKERS:
            return self.refuse(f"{name!r} cannot be called here", node.func)  # type: ignore[no-any-return]
        arguments = self.arguments(name, node)
        try:
            made: torch.Tensor = _MAKE[name](arguments, self.generator)
            made = made.to(arguments.device)
            if arguments.requires_grad:
                made.requires_grad_()
        except (RuntimeError, TypeError, ValueError, AssertionError, OverflowError) as error:
            said = str(error).strip().splitlines()
            why = said[0] if said else type(error).__name__
            fix = ""
            if arguments.device.type == "cuda" and not torch.cuda.is_available():
                fix = "leave the device out: graphs are traced for a GPU even without one"
            return self.refuse(f"{name}: {why}", node, fix)  # type: ignore[no-any-return]
        return made

    def arguments(self, name: str, node: ast.Call) -> MakerArguments:
        numbers: list[Any] = []
        found: dict[str, Any] = {}
        for one in node.args:
            value = self.value(one)
            if isinstance(value, torch.dtype):
                self.put(found, "dtype", value, one)
            elif isinstance(value, (torch.device, str)):
                self.put(found, "device", self.a_device(value, one), one)
            elif isinstance(value, (list, tuple)):
                numbers += [self.a_number(v, one, name) for v in value]
            else:
                numbers.append(self.a_number(value, one, name))
        for keyword in node.keywords:
            self.add_keyword(found, keyword, name)
        shape = found.pop("shape", ())
        return MakerArguments((*numbers, *shape), **{"device": torch.device(self.device), **found})

    def add_keyword(self, found: dict[str, Any], keyword: ast.keyword, name: str) -> None:
        value = self.value(keyword.value)
        if keyword.arg == "dtype" and isinstance(value, torch.dtype):
            self.put(found, "dtype", value, keyword.value)
        elif keyword.arg == "device":
            self.put(found, "device", self.a_device(value, keyword.value), keyword.value)
        elif keyword.arg == "requires_grad" and isinstance(value, bool):
            found["requires_grad"] = value
        elif keyword.arg in ("shape", "size"):
            sizes = value if isinstance(value, (list, tuple)) else (value,)
            found["shape"] = tuple(self.a_number(v, keyword.value, name) for v in sizes)
        else:
            shown = "**" if keyword.arg is None else f"{keyword.arg}={value!r}"
            self.refuse(
                f"{name} does not take {shown}",
                keyword.value,
                fix="its keywords are dtype=, device=, requires_grad= and shape=",
            )

    def put(self, found: dict[str, Any], key: str, value: Any, node: ast.expr) -> None:
        if key in found:
            self.refuse(f"{key} is given twice", node, fix="give it once")
        found[key] = value

    def a_device(self, value: Any, node: ast.expr) -> torch.device:
        if isinstance(value, torch.device):
            return value
        fix = "cpu, cuda, or 'cuda:1'"
        if isinstance(value, str) and value in DTYPES:
            fix = f"a dtype has no quotes: {value}"
        try:
            return torch.device(value)
        except (RuntimeError, TypeError):
            return self.refuse(f"{value!r} is not a device", node, fix=fix)  # type: ignore[no-any-return]

    def a_number(self, value: Any, node: ast.expr, name: str) -> int | float:
        whole = name != "arange"
        if isinstance(value, bool) or not isinstance(value, (int,) if whole else (int, float)):
            return self.refuse(f"{name} takes numbers, not {value!r}", node)  # type: ignore[no-any-return]
        return value

    def refuse(self, what: str, node: ast.expr | None, fix: str = "") -> Any:
        # ast counts bytes, people count characters.
        before = self.text[self.start :].encode()[: node.col_offset if node is not None else 0]
        at = self.start + len(before.decode())
        _refuse(what, self.text, at, fix=fix)


@dataclass(frozen=True)
class MakerArguments:
    """What a maker was called with."""

    numbers: tuple[int | float, ...]
    device: torch.device
    dtype: torch.dtype | None = None
    requires_grad: bool = False


def _normal(a: MakerArguments, generator: torch.Generator) -> torch.Tensor:
    # Made in float32 on the CPU, so that a seed gives the same numbers everywhere.
    wide = a.dtype if a.dtype in (torch.float64, torch.complex64, torch.complex128) else None
    return torch.randn(_shape(a), generator=generator, dtype=wide).to(a.dtype or torch.float32)


def _uniform(a: MakerArguments, generator: torch.Generator) -> torch.Tensor:
    wide = a.dtype if a.dtype in (torch.float64, torch.complex64, torch.complex128) else None
    return torch.rand(_shape(a), generator=generator, dtype=wide).to(a.dtype or torch.float32)


def _range(a: MakerArguments, _generator: torch.Generator) -> torch.Tensor:
    if not 1 <= len(a.numbers) <= 3:
        raise ValueError("it takes (end), (start, end) or (start, end, step)")
    return torch.arange(*a.numbers, dtype=a.dtype)


def _integers(a: MakerArguments, generator: torch.Generator) -> torch.Tensor:
    if len(a.numbers) < 3:
        raise ValueError("it takes low, high and a shape: randint(0, 10, 8, 128)")
    low, high, *shape = (int(n) for n in a.numbers)
    return torch.randint(low, high, tuple(shape), generator=generator).to(a.dtype or torch.int64)


def _shape(a: MakerArguments) -> tuple[int, ...]:
    return tuple(int(n) for n in a.numbers)


_MAKE: dict[str, Callable[[MakerArguments, torch.Generator], torch.Tensor]] = {
    "randn": _normal,
    "rand": _uniform,
    "zeros": lambda a, _: torch.zeros(_shape(a), dtype=a.dtype),
    "ones": lambda a, _: torch.ones(_shape(a), dtype=a.dtype),
    "arange": _range,
    "randint": _integers,
}


def _kind(node: ast.expr) -> str:
    kinds: Iterator[tuple[tuple[type[ast.expr], ...], str]] = iter(
        (
            ((ast.Attribute,), "attribute access"),
            ((ast.Subscript,), "indexing"),
            ((ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp), "arithmetic"),
            ((ast.Lambda,), "a lambda"),
            ((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "a comprehension"),
            ((ast.Dict, ast.Set), "a dict or set"),
            ((ast.Starred,), "a starred value"),
            ((ast.JoinedStr,), "an f-string"),
        )
    )
    return next((word for types, word in kinds if isinstance(node, types)), "this expression")


def _refuse(what: str, text: str, column: int, fix: str = "") -> NoReturn:
    raise BadInput(what, text=text, column=column, fix=fix or f"allowed: {ALLOWED}")
