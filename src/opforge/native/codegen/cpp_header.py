"""The C++ header, over the C one, and the operators as X-macros."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, ScalarParam, TensorParam
from ..ir.program import Library
from .signature import CSignature, enums
from .text import comment, distinct, fill, function, is_global, macro, packed, quoted

_TAKEN = frozenset({"stream", "allocator", "implementation"})
_WIDTH = 100


def cplusplus_header(library: Library, signatures: Sequence[CSignature]) -> str:
    """`include/NAME.hpp`."""
    functions = [text for signature in signatures for text in _functions(signature)]
    return fill(
        "header.hpp",
        name=library.name,
        namespace=namespace(library.name),
        guard=macro(library.name),
        enums="".join(f"\n{_enum(signature, p)}\n" for signature, p in enums(signatures)),
        operations="".join(f"\n{text}\n" for text in functions),
    )


def dispatch(library: Library, signatures: Sequence[CSignature]) -> str:
    """`include/NAME_dispatch.inc`: a line per operator, and one per implementation of it."""
    rows = []
    for signature in signatures:
        op, name = signature.op, signature.cpp_function
        tensors = sum(isinstance(param, TensorParam) for param in op.params)
        counts = f"{tensors}, {len(op.params) - tensors}, {len(op.outputs)}, {signature.function}"
        rows.append(f"OPFORGE_OPERATOR({name}, {len(op.served_by)}, {counts})")
        rows += [
            f"OPFORGE_IMPLEMENTATION({name}, {i}, {quoted(one.name)}, {counts})"
            for i, one in enumerate(op.served_by)
        ]
    shown = "\n".join(rows)
    return fill("dispatch.inc", name=library.name, namespace=namespace(library.name), rows=shown)


def namespace(library: str) -> str:
    """The library's name, unless it means something else in C++: `random_::scale`."""
    named = distinct([library], frozenset({"opforge", "std"}))[library]
    return f"{named}_" if is_global(named) else named


class _Operation:
    """`silu(x, out, stream)`, `silu_outputs(x)`, `silu(x, allocator, stream)`, `silu_workspace(x)`.

    With `forced`, each of them as `silu_with(implementation, ...)`.
    """

    def __init__(self, signature: CSignature, *, forced: bool) -> None:
        self._c = signature
        self._op = op = signature.op
        self._with, self._first = ("_with", ["implementation"]) if forced else ("", [])
        self._name = signature.cpp_function
        # A parameter with the name of a type would hide it from those after it.
        types = {signature.cpp_enum(param) for param in signature.choices}
        self._names = distinct([p.name for p in op.params] + list(op.outputs), _TAKEN | types)
        paths = [path for case in op.cases for path in case.paths if path.outputs]
        # Each with whether a call may do without it.
        self._outputs = [
            (self._names[name], any(path.outputs[i] is None for path in paths))
            for i, name in enumerate(op.outputs)
        ]
        # The parameters: as a call has them, where its tensors are only read, and as C gets them.
        self._parameters: list[str] = []
        self._read: list[str] = []
        self._passed: list[str] = []
        for param in op.params:
            name = self._names[param.name]
            if isinstance(param, TensorParam):
                read = f"const opforge::Tensor {'*' if param.optional else '&'}{name}"
                declared = read.removeprefix("const ") if param.written else read
                passed = _raw(name, optional=param.optional)
            elif isinstance(param, ScalarParam):
                dtype = DTYPES[param.dtype]
                kind = "bool" if dtype.torch == "bool" else dtype.c
                declared = read = f"{f'std::{kind}' if kind.endswith('_t') else kind} {name}"
                passed = name
            else:
                declared = read = f"{signature.cpp_enum(param)} {name}"
                passed = f"static_cast<::{signature.enum(param)}>({name})"
            self._parameters.append(declared)
            self._read.append(read)
            self._passed.append(passed)

    def functions(self) -> list[str]:
        of_outputs = [self._described(), self._allocating()] if self._outputs else []
        return [self._call(), *of_outputs, self._measured()]

    def _call(self) -> str:
        doc = comment(" ".join(self._op.doc.split()))
        said = f"{doc} {self._c.function} in {self._c.library}.h says what it takes.".lstrip()
        if self._first:
            said = "The same with a given implementation."
        outputs = [
            f"opforge::Tensor {'*' if maybe else '&'}{name}" for name, maybe in self._outputs
        ]
        raw = [_raw(name, optional=maybe) for name, maybe in self._outputs]
        body = self._checked("", [*self._passed, *raw, "stream.get()"])
        parameters = [*self._parameters, *outputs, "opforge::Stream stream = {}"]
        return self._function(said, "void", "", parameters, body)

    def _described(self) -> str:
        body = [f"opforge::Tensor {name};" for name, _ in self._outputs]
        passed = [*self._passed, *(f"{name}.raw()" for name, _ in self._outputs)]
        body += self._checked("_outputs", passed)
        returned = [f"opforge::detail::present({n})" if maybe else n for n, maybe in self._outputs]
        body += self._returned("Tensor", returned)
        name = self._name + self._with
        said = f"Type, shape, strides and device of the outputs of {name}; no memory."
        return self._function(said, self._result("Tensor"), "_outputs", self._read, body)

    def _measured(self) -> str:
        raw = [_raw(name, optional=True) for name, _ in self._outputs]
        checked = self._checked("_workspace", [*self._passed, *raw, "&of_bytes"])
        body = ["std::int64_t of_bytes = 0;", *checked, "return of_bytes;"]
        name = self._name + self._with
        said = f"The bytes of workspace that {name} would allocate; the tensors need no memory."
        outputs = [f"const opforge::Tensor *{name} = nullptr" for name, _ in self._outputs]
        parameters = [*self._read, *outputs]
        return self._function(said, "std::int64_t", "_workspace", parameters, body)

    def _allocating(self) -> str:
        names = [name for name, _ in self._outputs]
        arguments = [*self._first, *(self._names[p.name] for p in self._op.params)]
        # In full, because a parameter may have the operator's name.
        called = f"::{namespace(self._c.library)}::{self._name}"
        single = len(names) == 1
        # No parameter begins like that.
        local = "of_described"
        body = _wrapped(f"const auto {local} = {called}_outputs{self._with}(", arguments, ");")
        for i, name in enumerate(names):
            value = local if single else f"std::get<{i}>({local})"
            what = f'"{self._c.function}: {self._c.names[self._op.outputs[i]]}"'
            opening = f"auto {name} = opforge::detail::made("
            body += _wrapped(opening, [value, "allocator", "stream", what], ");")
        pointers = [
            f"opforge::detail::pointer({name})" if maybe else name for name, maybe in self._outputs
        ]
        body += _wrapped(f"{called}{self._with}(", [*arguments, *pointers, "stream"], ");")
        moved = names if single else [f"std::move({name})" for name in names]
        body += self._returned("Output", moved)
        own = ["const opforge::Allocator &allocator", "opforge::Stream stream = {}"]
        parameters = [*self._parameters, *own]
        said = "Allocates the outputs."
        return self._function(said, self._result("Output"), "", parameters, body)

    def _function(
        self, said: str, result: str, ending: str, parameters: list[str], body: list[str]
    ) -> str:
        index = [f"int {name}" for name in self._first]
        name = f"{self._name}{ending}{self._with}"
        return _function(said, result, name, [*index, *parameters], body)

    def _result(self, kind: str) -> str:
        types = [
            f"std::optional<opforge::{kind}>" if maybe else f"opforge::{kind}"
            for _, maybe in self._outputs
        ]
        return types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>"

    def _returned(self, kind: str, values: list[str]) -> list[str]:
        if len(values) == 1:
            return [f"return {values[0]};"]
        return _wrapped(f"return {self._result(kind)}(", values, ");")

    def _checked(self, ending: str, arguments: list[str]) -> list[str]:
        opening = f"opforge::detail::check(::{self._c.function}{ending}{self._with}("
        closing = f"), ::{self._c.library}_last_error);"
        return _wrapped(opening, [*self._first, *arguments], closing)


def _functions(signature: CSignature) -> list[str]:
    made = [f for forced in (False, True) for f in _Operation(signature, forced=forced).functions()]
    body = [f"return opforge::Implementations(::{signature.function}_implementations);"]
    name = f"{signature.cpp_function}_implementations"
    said = "In the order in which they are tried."
    return [*made, _function(said, "opforge::Implementations", name, [], body)]


def _enum(signature: CSignature, param: ChoiceParam) -> str:
    # In lower case, because NULL, NAN or EOF may be macros.
    names = distinct([label.lower() for label in param.labels])
    members = [
        f"    {names[label.lower()]} = {signature.member(param, label)}, // {_line(value)}"
        for label, value in zip(param.labels, param.values, strict=True)
    ]
    return "\n".join([f"enum class {signature.cpp_enum(param)} {{", *members, "};"])


def _raw(name: str, *, optional: bool) -> str:
    return f"opforge::detail::raw({name})" if optional else f"{name}.raw()"


def _line(text: str) -> str:
    """For a comment to the end of a line, which a backslash would continue."""
    return " ".join(text.split()).rstrip("\\")


def _function(said: str, result: str, name: str, parameters: list[str], body: list[str]) -> str:
    head = _wrapped(f"inline {result} {name}(", parameters, ")")
    return function("\n".join([f"/* {said} */", *head]), body)


def _wrapped(opening: str, items: list[str], closing: str) -> list[str]:
    """One line, or the items on lines of their own if it would be too long."""
    one = f"{opening}{', '.join(items)}{closing}"
    if len(one) + 4 <= _WIDTH:
        return [one]
    return [opening, *(f"    {line}" for line in packed(items, closing, _WIDTH - 8))]
