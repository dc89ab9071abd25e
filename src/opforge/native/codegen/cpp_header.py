"""The C++ header, over the C one."""

from __future__ import annotations

from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Op, ScalarParam, TensorParam
from ..ir.program import Library
from .names import comment, distinct, identifier, kept, macro, packed
from .reserved import is_global
from .signature import CSignature, enums
from .templates import fill

# Functions of the library, which no operator may be called.
OWN = frozenset({"load", "unload", "set_allocator", "manifest"})
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
        enums="".join(f"\n{_Operation(library, op).enum(p)}\n" for op, p in enums(library.ops)),
        operations="".join(f"\n{function}\n" for op in made for function in op.functions()),
    )


def namespace(library: str) -> str:
    """The library's name, unless it means something else in C++: `random_::scale`."""
    named = distinct([library], frozenset({"opforge", "std"}))[library]
    return f"{named}_" if is_global(named) else named


def function_name(op: Op) -> str:
    """What an operator is called in the library's namespace."""
    return kept(op.name, OWN)


def enum_name(op: Op, param: ChoiceParam) -> str:
    """What the enum of a choice is called there."""
    if param.enum:
        return kept(param.enum, OWN | {"opforge", "std"})
    return identifier(f"{op.name}_{param.name}")


class _Operation:
    """`silu(x, out, stream)`, `silu_outputs(x)`, `silu(x, allocator, stream)`, `silu_workspace(x)`.

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
        # Each with whether a call may do without it.
        self._outputs = [
            (self._names[name], any(path.outputs[i] is None for path in paths))
            for i, name in enumerate(op.outputs)
        ]

    def functions(self) -> list[str]:
        made = []
        for forced in (False, True):
            made.append(self._call(forced=forced))
            if self._outputs:
                made += [self._described(forced=forced), self._allocating(forced=forced)]
            made.append(self._measured(forced=forced))
        body = [f"return opforge::Implementations(::{self._c.function}_implementations);"]
        name = f"{self._name}_implementations"
        said = "In the order in which they are tried."
        return [*made, _function(said, "opforge::Implementations", name, [], body)]

    def enum(self, param: ChoiceParam) -> str:
        # In lower case, because NULL, NAN or EOF may be macros.
        names = distinct([label.lower() for label in param.labels])
        members = [
            f"    {names[label.lower()]} = {self._c.member(param, label)}, // {_line(value)}"
            for label, value in zip(param.labels, param.values, strict=True)
        ]
        return "\n".join([f"enum class {self._enum_name(param)} {{", *members, "};"])

    def _enum_name(self, param: ChoiceParam) -> str:
        return enum_name(self._op, param)

    def _call(self, *, forced: bool) -> str:
        doc = comment(" ".join(self._op.doc.split()))
        said = f"{doc} {self._c.function} in {self._library}.h says what it takes.".lstrip()
        if forced:
            said = "The same with a given implementation."
        outputs = [
            f"opforge::Tensor {'*' if maybe else '&'}{name}" for name, maybe in self._outputs
        ]
        given = [_raw(name, optional=maybe) for name, maybe in self._outputs]
        body = self._checked("", [*self._passed(), *given, "stream.get()"], forced=forced)
        parameters = [*self._parameters(), *outputs, "opforge::Stream stream = {}"]
        return self._function(said, "void", "", parameters, body, forced=forced)

    def _described(self, *, forced: bool) -> str:
        body = [f"opforge::Tensor {name};" for name, _ in self._outputs]
        passed = [*self._passed(), *(f"{name}.raw()" for name, _ in self._outputs)]
        body += self._checked("_outputs", passed, forced=forced)
        returned = [f"opforge::detail::present({n})" if maybe else n for n, maybe in self._outputs]
        body += self._returned("Tensor", returned)
        name = f"{self._name}_with" if forced else self._name
        said = f"Type, shape, strides and device of the outputs of {name}; no memory."
        parameters = self._parameters(only_read=True)
        result = self._result("Tensor")
        return self._function(said, result, "_outputs", parameters, body, forced=forced)

    def _measured(self, *, forced: bool) -> str:
        given = [_raw(name, optional=True) for name, _ in self._outputs]
        passed = [*self._passed(), *given, "&of_bytes"]
        checked = self._checked("_workspace", passed, forced=forced)
        body = ["std::int64_t of_bytes = 0;", *checked, "return of_bytes;"]
        name = f"{self._name}_with" if forced else self._name
        said = f"The bytes of workspace that {name} would allocate; the tensors need no memory."
        outputs = [f"const opforge::Tensor *{name} = nullptr" for name, _ in self._outputs]
        parameters = [*self._parameters(only_read=True), *outputs]
        result = "std::int64_t"
        return self._function(said, result, "_workspace", parameters, body, forced=forced)

    def _allocating(self, *, forced: bool) -> str:
        names = [name for name, _ in self._outputs]
        arguments = [self._names[p.name] for p in self._op.params]
        # In full, because a parameter may have the operator's name.
        function = f"::{namespace(self._library)}::{self._name}"
        single = len(names) == 1
        # No parameter begins like that.
        local = "of_described"
        ending, first = ("_with", ["implementation"]) if forced else ("", [])
        opening = f"const auto {local} = {function}_outputs{ending}("
        body = _wrapped(opening, [*first, *arguments], ");")
        for i, name in enumerate(names):
            value = local if single else f"std::get<{i}>({local})"
            what = f'"{self._c.function}: {self._c.names[self._op.outputs[i]]}"'
            opening = f"auto {name} = opforge::detail::made("
            body += _wrapped(opening, [value, "allocator", "stream", what], ");")
        given = [
            f"opforge::detail::pointer({name})" if maybe else name for name, maybe in self._outputs
        ]
        body += _wrapped(f"{function}{ending}(", [*first, *arguments, *given, "stream"], ");")
        moved = names if single else [f"std::move({name})" for name in names]
        body += self._returned("Output", moved)
        own = ["const opforge::Allocator &allocator", "opforge::Stream stream = {}"]
        parameters = [*self._parameters(), *own]
        result = self._result("Output")
        return self._function("Allocates the outputs.", result, "", parameters, body, forced=forced)

    def _function(
        self, said: str, result: str, ending: str, parameters: list[str], body: list[str], *,
        forced: bool,
    ) -> str:  # fmt: skip
        if forced:
            ending, parameters = f"{ending}_with", ["int implementation", *parameters]
        return _function(said, result, f"{self._name}{ending}", parameters, body)

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


def _function(said: str, result: str, name: str, parameters: list[str], body: list[str]) -> str:
    head = _wrapped(f"inline {result} {name}(", parameters, ")")
    return "\n".join([f"/* {said} */", *head, "{", *(f"    {line}" for line in body), "}"])


def _wrapped(opening: str, items: list[str], closing: str) -> list[str]:
    """One line, or the items on lines of their own if it would be too long."""
    one = f"{opening}{', '.join(items)}{closing}"
    if len(one) + 4 <= _WIDTH:
        return [one]
    return [opening, *(f"    {line}" for line in packed(items, closing, _WIDTH - 8))]
