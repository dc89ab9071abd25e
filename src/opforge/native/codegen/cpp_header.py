"""The C++ header, over the C one."""

from __future__ import annotations

from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Op, ScalarParam, TensorParam
from ..ir.program import Library
from .names import comment, distinct, identifier, kept, macro
from .signature import CSignature
from .templates import fill

# Functions of the library, which no operator may be called.
_OWN = frozenset({"load", "unload", "set_allocator", "manifest"})
_TAKEN = frozenset({"stream", "allocator", "implementation"})
_WIDTH = 100


def cplusplus_header(library: Library) -> str:
    """`include/NAME.hpp`."""
    made = [_Operation(library, op) for op in library.ops]
    return fill(
        "header.hpp",
        name=library.name,
        namespace=namespace(library.name),
        guard=macro(library.name),
        enums="".join(f"\n{enum}\n" for op in made for enum in op.enums()),
        operations="".join(f"\n{function}\n" for op in made for function in op.functions()),
    )


def namespace(library: str) -> str:
    """The library's name, unless it means something else in C++."""
    return distinct([library], frozenset({"opforge", "std"}))[library]


def function_name(op: Op) -> str:
    """What an operator is called in the library's namespace."""
    return kept(op.name, _OWN)


class _Operation:
    """`silu(x, out, stream)`, `silu_outputs(x)` and `silu(x, allocator, stream)`.

    Each of them also as `silu_with(implementation, ...)`, which is what `forced` means.
    """

    def __init__(self, library: Library, op: Op) -> None:
        self._library = library.name
        self._op = op
        self._c = CSignature(library.name, op)
        self._name = function_name(op)
        # A parameter with the name of a type would hide it from those after it.
        types = {self._enum_name(p) for p in op.params if isinstance(p, ChoiceParam)}
        self._names = distinct([p.name for p in op.params] + list(op.outputs), _TAKEN | types)
        paths = [path for case in op.cases for path in case.paths if path.outputs]
        self._optional = [any(p.outputs[i] is None for p in paths) for i in range(len(op.outputs))]

    def enums(self) -> list[str]:
        return [self._enum(p) for p in self._op.params if isinstance(p, ChoiceParam)]

    def functions(self) -> list[str]:
        made = []
        for forced in (False, True):
            made.append(self._call(forced=forced))
            if self._op.outputs:
                made += [self._outputs(forced=forced), self._allocating(forced=forced)]
        return [*made, self._implementations()]

    def _enum(self, param: ChoiceParam) -> str:
        # In lower case, because NULL, NAN or EOF may be macros.
        names = distinct([label.lower() for label in param.labels])
        members = [
            f"    {names[label.lower()]} = {self._c.member(param, label)}, // {_line(value)}"
            for label, value in zip(param.labels, param.values, strict=True)
        ]
        return "\n".join([f"enum class {self._enum_name(param)} {{", *members, "};"])

    def _enum_name(self, param: ChoiceParam) -> str:
        return identifier(f"{self._op.name}_{param.name}")

    def _implementations(self) -> str:
        function = f"::{self._c.function}_implementations"
        body = [f"return opforge::Implementations({function});"]
        name = f"{self._name}_implementations"
        return "\n".join(
            [
                "/* In the order in which they are tried. */",
                *_function("opforge::Implementations", name, [], body),
            ]
        )

    def _call(self, *, forced: bool) -> str:
        doc = comment(" ".join(self._op.doc.split()))
        said = f"{doc} " if doc else ""
        outputs = [
            f"opforge::Tensor {'*' if optional else '&'}{self._names[name]}"
            for name, optional in zip(self._op.outputs, self._optional, strict=True)
        ]
        given = [
            _raw(self._names[name], optional=optional)
            for name, optional in zip(self._op.outputs, self._optional, strict=True)
        ]
        parameters = [*self._parameters(), *outputs, "opforge::Stream stream = {}"]
        body = self._checked("", [*self._passed(), *given, "stream.get()"], forced=forced)
        shown = (
            "/* The same with a given implementation. */"
            if forced
            else f"/* {said}{self._c.function} in {self._library}.h says what it takes. */"
        )
        return "\n".join([shown, *self._function("void", "", parameters, body, forced=forced)])

    def _outputs(self, *, forced: bool) -> str:
        names = [self._names[name] for name in self._op.outputs]
        body = [f"opforge::Tensor {name};" for name in names]
        passed = [*self._passed(), *(f"{n}.raw()" for n in names)]
        body += self._checked("_outputs", passed, forced=forced)
        values = [
            f"opforge::detail::present({name})" if optional else name
            for name, optional in zip(names, self._optional, strict=True)
        ]
        body += self._returned("Tensor", values)
        parameters = self._parameters(only_read=True)
        name = f"{self._name}_with" if forced else self._name
        result = self._result("Tensor")
        return "\n".join(
            [
                f"/* Type, shape, strides and device of the outputs of {name}; no memory. */",
                *self._function(result, "_outputs", parameters, body, forced=forced),
            ]
        )

    def _allocating(self, *, forced: bool) -> str:
        names = [self._names[name] for name in self._op.outputs]
        arguments = [self._names[p.name] for p in self._op.params]
        # In full, because a parameter may have the operator's name.
        function = f"::{namespace(self._library)}::{self._name}"
        single = len(names) == 1
        local = distinct([*arguments, *names, "of_described"], _TAKEN)["of_described"]
        ending = "_with" if forced else ""
        first = ["implementation"] if forced else []
        opening = f"const auto {local} = {function}_outputs{ending}("
        body = _wrapped(opening, [*first, *arguments], ");")
        for i, name in enumerate(names):
            value = local if single else f"std::get<{i}>({local})"
            what = f'"{self._c.function}: {self._c.names[self._op.outputs[i]]}"'
            opening = f"auto {name} = opforge::detail::made("
            body += _wrapped(opening, [value, "allocator", "stream", what], ");")
        given = [
            f"opforge::detail::pointer({name})" if optional else name
            for name, optional in zip(names, self._optional, strict=True)
        ]
        passed = [*first, *arguments, *given, "stream"]
        body += _wrapped(f"{function}{ending}(", passed, ");")
        moved = names if single else [f"std::move({name})" for name in names]
        body += self._returned("Output", moved)
        parameters = [
            *self._parameters(),
            "const opforge::Allocator &allocator",
            "opforge::Stream stream = {}",
        ]
        return "\n".join(
            [
                "/* Allocates the outputs. */",
                *self._function(self._result("Output"), "", parameters, body, forced=forced),
            ]
        )

    def _function(
        self, result: str, ending: str, parameters: list[str], body: list[str], *, forced: bool
    ) -> list[str]:
        if not forced:
            return _function(result, f"{self._name}{ending}", parameters, body)
        given = ["int implementation", *parameters]
        return _function(result, f"{self._name}{ending}_with", given, body)

    def _result(self, kind: str) -> str:
        types = [
            f"std::optional<opforge::{kind}>" if optional else f"opforge::{kind}"
            for optional in self._optional
        ]
        return types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>"

    def _returned(self, kind: str, values: list[str]) -> list[str]:
        if len(values) == 1:
            return [f"return {values[0]};"]
        return _wrapped(f"return {self._result(kind)}(", values, ");")

    def _parameters(self, *, only_read: bool = False) -> list[str]:
        written = []
        for param in self._op.params:
            name = self._names[param.name]
            if isinstance(param, TensorParam):
                const = "" if param.written and not only_read else "const "
                written.append(f"{const}opforge::Tensor {'*' if param.optional else '&'}{name}")
            elif isinstance(param, ScalarParam):
                dtype = DTYPES[param.dtype]
                kind = "bool" if dtype.torch == "bool" else dtype.c
                written.append(f"{f'std::{kind}' if kind.endswith('_t') else kind} {name}")
            else:
                written.append(f"{self._enum_name(param)} {name}")
        return written

    def _passed(self) -> list[str]:
        passed = []
        for param in self._op.params:
            name = self._names[param.name]
            if isinstance(param, TensorParam):
                passed.append(_raw(name, optional=param.optional))
            elif isinstance(param, ChoiceParam):
                passed.append(f"static_cast<::{self._c.enum(param)}>({name})")
            else:
                passed.append(name)
        return passed

    def _checked(self, ending: str, arguments: list[str], *, forced: bool) -> list[str]:
        if forced:
            ending, arguments = f"{ending}_with", ["implementation", *arguments]
        opening = f"opforge::detail::check(::{self._c.function}{ending}("
        return _wrapped(opening, arguments, f"), ::{self._library}_last_error);")


def _raw(name: str, *, optional: bool) -> str:
    return f"opforge::detail::raw({name})" if optional else f"{name}.raw()"


def _line(text: str) -> str:
    """For a comment to the end of a line, which a backslash would continue."""
    return " ".join(text.split()).rstrip("\\")


def _function(result: str, name: str, parameters: list[str], body: list[str]) -> list[str]:
    head = _wrapped(f"inline {result} {name}(", parameters, ")")
    return [*head, "{", *(f"    {line}" for line in body), "}"]


def _wrapped(opening: str, items: list[str], closing: str) -> list[str]:
    """One line, or the items on lines of their own if it would be too long."""
    one = f"{opening}{', '.join(items)}{closing}"
    if len(one) + 4 <= _WIDTH:
        return [one]
    lines = [opening]
    current = ""
    for i, item in enumerate(items):
        piece = item + (closing if i + 1 == len(items) else ",")
        if current and len(current) + 1 + len(piece) + 8 > _WIDTH:
            lines.append(f"    {current}")
            current = piece
        else:
            current = f"{current} {piece}" if current else piece
    return [*lines, f"    {current}"]
