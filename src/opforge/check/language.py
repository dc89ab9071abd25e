"""The small language of `--input`: `x=randn(8, 128, bf16)`, read with `ast` and never evaluated.

value   = number | 'text' | True | False | None | dtype | device | [value, ...] | (value, ...)
        | randn(shape, dtype, device) | rand(...) | zeros(...) | ones(...)
        | arange([start,] end[, step], dtype, device) | randint(low, high, shape, dtype, device)
shape   = numbers one by one, or a tuple of them
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from ..errors import BadOption, first_line

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
# As `native.declare` spells them.
_NATIVE_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16}
# Some are also Python's types of numbers; as an argument they are dtypes.
_LONG_DTYPES = (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 "
    "float double half float8_e4m3fn float8_e5m2"
)
DTYPES = {
    **SHORT_DTYPES,
    **_NATIVE_DTYPES,
    **{name: getattr(torch, name) for name in _LONG_DTYPES.split()},
    "int": torch.int64,
}
NAMES = {
    **DTYPES,
    "cpu": torch.device("cpu"),
    "cuda": torch.device("cuda"),
    "inf": math.inf,
    "nan": math.nan,
}

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
    fix = "write it like x=randn(8, 128, bf16) or cfg.eps=1e-6"
    if not equals:
        _refuse("an input must look like path=value", text, len(path), fix)
    if not _PATH.fullmatch(name):
        column = len(path) - len(path.lstrip())
        _refuse(f"{name!r} is not a parameter or field", text, column, fix)
    start = len(text) - len(expression.lstrip())
    reader = _Reader(text, start, device, generator or torch.Generator().manual_seed(0))
    return InputValue(name, reader.read(expression.strip()), text)


@dataclass(frozen=True)
class _Reader:
    """Interprets one expression; `start` is where it begins in `text`."""

    text: str
    start: int
    device: str
    generator: torch.Generator

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
            if node.value is None or isinstance(node.value, (bool, int, float, str)):
                return node.value
            self.refuse(f"{node.value!r} is not allowed here", node)
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

    def named(self, node: ast.Name) -> Any:
        name = node.id
        if name in NAMES:
            return NAMES[name]
        if name in MAKERS:
            self.refuse(f"{name} needs a shape", node, fix=f"{name}(8, 128)")
        close = difflib.get_close_matches(name, [*NAMES, *MAKERS])
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        return self.refuse(
            f"{name!r} is not a known name", node, fix=f"{hint}text needs quotes: '{name}'"
        )

    def call(self, node: ast.Call) -> torch.Tensor:
        if not isinstance(node.func, ast.Name):
            name = getattr(node.func, "attr", "")
            fix = f"{name}(...), without a prefix" if name in MAKERS else ""
            self.refuse(f"{_kind(node.func)} cannot be called here", node.func, fix=fix)
        name = node.func.id
        if name not in MAKERS:
            self.refuse(f"{name!r} cannot be called here", node.func)
        arguments = self.arguments(name, node)
        try:
            made = MAKERS[name](arguments, self.generator).to(arguments.device)
            return made.requires_grad_(arguments.requires_grad)
        except ImportError:
            what = f"{name}: torch has nothing here for devices of type {arguments.device.type!r}"
            self.refuse(what, node, fix="leave the device out, or choose cpu or cuda")
        except (RuntimeError, TypeError, ValueError, AssertionError, OverflowError) as error:
            fix = ""
            if arguments.device.type == "cuda" and not torch.cuda.is_available():
                fix = "leave the device out: graphs are traced for a GPU even without one"
            self.refuse(f"{name}: {first_line(error) or type(error).__name__}", node, fix)

    def arguments(self, name: str, node: ast.Call) -> MakerArguments:
        numbers: list[Any] = []
        found: dict[str, Any] = {}
        for one in node.args:
            value = self.value(one)
            if isinstance(value, torch.dtype):
                self.put(found, "dtype", value, one)
            elif isinstance(value, (torch.device, str)):
                self.put(found, "device", self.a_device(value, one), one)
            else:
                numbers += self.numbers(value, one, name)
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
            found["shape"] = self.numbers(value, keyword.value, name)
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
            self.refuse(f"{value!r} is not a device", node, fix=fix)

    def numbers(self, value: Any, node: ast.expr, name: str) -> list[int | float]:
        kinds = (int, float) if name == "arange" else int
        found = list(value) if isinstance(value, (list, tuple)) else [value]
        for number in found:
            if isinstance(number, bool) or not isinstance(number, kinds):
                self.refuse(f"{name} takes numbers, not {number!r}", node)
        return found

    def refuse(self, what: str, node: ast.expr | None, fix: str = "") -> NoReturn:
        # ast counts bytes, people count characters.
        read = self.text[self.start :].encode(errors="surrogatepass")
        before = read[: node.col_offset if node is not None else 0]
        _refuse(what, self.text, self.start + len(before.decode(errors="surrogatepass")), fix)


@dataclass(frozen=True)
class MakerArguments:
    """What a maker was called with."""

    numbers: tuple[Any, ...]
    device: torch.device
    dtype: torch.dtype | None = None
    requires_grad: bool = False


_Maker = Callable[[MakerArguments, torch.Generator], torch.Tensor]


def _random(draw: Callable[..., torch.Tensor]) -> _Maker:
    def make(a: MakerArguments, generator: torch.Generator) -> torch.Tensor:
        # Made in float32 on the CPU, so that a seed gives the same numbers everywhere.
        wide = a.dtype if a.dtype in (torch.float64, torch.complex64, torch.complex128) else None
        return draw(a.numbers, generator=generator, dtype=wide).to(a.dtype or torch.float32)

    return make


def _range(a: MakerArguments, _generator: torch.Generator) -> torch.Tensor:
    if not 1 <= len(a.numbers) <= 3:
        raise ValueError("it takes (end), (start, end) or (start, end, step)")
    return torch.arange(*a.numbers, dtype=a.dtype)


def _integers(a: MakerArguments, generator: torch.Generator) -> torch.Tensor:
    if len(a.numbers) < 3:
        raise ValueError("it takes low, high and a shape: randint(0, 10, 8, 128)")
    low, high, *shape = a.numbers
    return torch.randint(low, high, shape, generator=generator).to(a.dtype or torch.int64)


MAKERS: dict[str, _Maker] = {
    "randn": _random(torch.randn),
    "rand": _random(torch.rand),
    "zeros": lambda a, _: torch.zeros(a.numbers, dtype=a.dtype),
    "ones": lambda a, _: torch.ones(a.numbers, dtype=a.dtype),
    "arange": _range,
    "randint": _integers,
}
ALLOWED = (
    f"{', '.join(MAKERS)}; numbers, 'text', True, False, None, inf, nan; dtypes "
    f"({', '.join(SHORT_DTYPES)}, or as torch names them); devices (cpu, cuda, 'cuda:1'); "
    "lists and tuples of these"
)

_KINDS = {
    (ast.Attribute,): "attribute access",
    (ast.Subscript,): "indexing",
    (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp): "arithmetic",
    (ast.Lambda,): "a lambda",
    (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp): "a comprehension",
    (ast.Dict, ast.Set): "a dict or set",
    (ast.Starred,): "a starred value",
    (ast.JoinedStr,): "an f-string",
}


def _kind(node: ast.expr) -> str:
    return next(
        (kind for types, kind in _KINDS.items() if isinstance(node, types)), "this expression"
    )


def _refuse(what: str, text: str, column: int, fix: str = "") -> NoReturn:
    raise BadOption(pointed(what, text, column), fix=fix or f"allowed: {ALLOWED}")


def pointed(what: str, text: str, column: int) -> str:
    """`what`, and a caret under the column of the text that it is about."""
    return f"{what}\n    {text}\n    {' ' * column}^"
