"""Writes the source of an op's kernels from its flat signature.

Kernels are straight-line code, because every microsecond of a call counts: on an aarch64 CPU with
two small tensors, `custom_op` adds 24 us to the plain function, these add 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..lowering.codegen import (
    FunctionSource,
    argument_list,
    emit_arguments,
    emit_flat_result,
    emit_rebuild,
    emit_result,
    pass_on,
)
from ..model import FlatArgument, Leaf, Lowered

Writer = Callable[[FunctionSource, Lowered], None]

# The default is in the set, so that an unknown keyset is examined.
_PLAIN = (
    "_of_plain.get(_of_keyset.raw_repr(), _of_listed) not in _of_impls "
    "and _of_composite not in _of_impls and _of_composite_too not in _of_impls "
    "or _of_plain.learn(_of_keyset)"
)


def write_bind(source: FunctionSource, lowered: Lowered) -> None:
    """`_of_bind(fn)`: rebuild the arguments, call fn, flatten its result."""
    with source.block("def _of_bind(_of_fn):"):
        with source.block(f"def call({argument_list(source, lowered.arguments)}):"):
            source.add(f"_of_out = _of_fn({emit_arguments(source, lowered)})")
            source.add(f"return {emit_flat_result(source, lowered)}")
        source.add("return call")


def write_structure(source: FunctionSource, lowered: Lowered) -> None:
    """`_of_inputs` and `_of_result` rebuild inputs and outputs; `_of_flat` flattens outputs."""
    with source.block(f"def _of_inputs({argument_list(source, lowered.arguments)}):"):
        names = [a.name for a in lowered.arguments]
        values = [emit_rebuild(source, p.node, names) for p in lowered.signature.parameters]
        source.add(f"return ({''.join(f'{v}, ' for v in values)})")
    with source.block("def _of_flat(_of_out):"):
        source.add(f"return {emit_flat_result(source, lowered)}")
    with source.block("def _of_result(_of_flat_out):"):
        emit_result(source, lowered, "_of_flat_out")


@dataclass(frozen=True)
class KernelWriter:
    """Writes the kernels that run an op's body, with the guarantees of `custom_op`.

    `guarded`: there is no Autograd kernel above, so the kernel keeps autograd from recording.
    `verified`: the fake rests on an assumption, which the first real call checks.
    `views`: the user's schema declares aliases, so outputs may alias inputs.
    `launches`: whether the body may launch kernels, asked when the text is written.
    """

    guarded: bool
    verified: bool
    views: bool
    launches: Callable[[], bool]

    def kernel(self, source: FunctionSource, lowered: Lowered) -> None:
        """`_of_kernel`: the body as the dispatcher calls it."""
        with source.block(f"def _of_kernel({argument_list(source, lowered.arguments)}):"):
            if self.guarded and lowered.tensors:
                _emit_tangent_check(source, lowered)
                _emit_needs_grad(source, lowered)
                source.add("if _of_needs and _of_grad_enabled():")
                source.add(f"    return _of_unrecorded({pass_on(lowered.arguments)})")
            self._emit_body(source, lowered)

    def autograd(self, source: FunctionSource, lowered: Lowered) -> None:
        """`_of_autograd`, at the Autograd key: record, or call the body directly.

        Redispatching costs 5 us. It is needed only if something comes between autograd and a plain
        backend: a mode, a functorch level, a tensor subclass, somebody else's kernel.
        """
        arguments = pass_on(lowered.arguments)
        listed = argument_list(source, lowered.arguments)
        with source.block(f"def _of_autograd(_of_keyset, {listed}):"):
            if lowered.tensors:
                _emit_tangent_check(source, lowered)
            source.add(f"_of_direct = {_PLAIN}")
            if lowered.tensors:
                _emit_needs_grad(source, lowered)
                source.add("if _of_needs and _of_grad_enabled():")
                keyset = "None if _of_direct else _of_keyset"
                source.add(f"    return _of_record({keyset}, {arguments})")
            source.add("if not _of_direct:")
            source.add(f"    return _of_redispatch(_of_keyset & _of_after_autograd, {arguments})")
            self._emit_body(source, lowered)

    def direct(self, source: FunctionSource, lowered: Lowered) -> None:
        """`_of_direct`, in front of the dispatcher: the body, if nothing would come in between.

        `_of_op` is torch's own call. It gets the arguments as they were given, wherever it would
        refuse or convert one.
        """
        names = "".join(f"{a.name}, " for a in lowered.arguments)
        tensors = ", ".join(a.name for a in lowered.tensors)
        guarded = ", ".join(_never_none(a) for a in lowered.tensors)
        with source.block("def _of_direct(*_of_args, **_of_kwargs):"):
            source.add(f"if _of_kwargs or _of_len(_of_args) != {len(lowered.arguments)}:")
            source.add("    _of_given = _of_placed(_of_args, _of_kwargs)")
            source.add("    if _of_given is None:")
            source.add("        return _of_op(*_of_args, **_of_kwargs)")
            source.add(f"    {names}= _of_given")
            source.add("else:")
            source.add(f"    {names}= _of_args")
            # What no guard sees: who watches calls without a dispatch key of its own, and numbers.
            with source.block("try:"):
                source.add("_of_fits = (")
                source.add("    not _of_modes() and not _of_function_modes()")
                source.add("    and not _of_profiled()")
                source.add("    and _of_forward_ad._current_level < 0")
                source.add("    and _of_impls.isdisjoint(_of_watched)")
                for argument in lowered.arguments:
                    source.add(f"    and {_handed_on(argument)}")
                source.add(")")
            source.add("except _of_AttributeError:")
            source.add("    _of_fits = False")
            source.add("if not _of_fits:")
            source.add("    return _of_op(*_of_args, **_of_kwargs)")
            with source.block("for _of_check, _of_how in _of_guards:"):
                source.add(f"if _of_check({guarded}):")
                source.add("    break")
            with source.block("else:"):
                source.add(f"_of_missed({tensors})")
                source.add("return _of_op(*_of_args, **_of_kwargs)")
            with source.block("if _of_how:"):
                if lowered.mutated:
                    written = "".join(f"{a.name}, " for a in lowered.mutated)
                    source.add(f"if _of_how & {COUNTED}:")
                    source.add(f"    _of_count_writes(({written}))")
                record = "_of_unrecorded(" if self.guarded else "_of_record(None, "
                source.add(f"if _of_how & {FOLLOWED} and _of_grad_enabled():")
                source.add(f"    return {record}{pass_on(lowered.arguments)})")
            self._emit_body(source, lowered)

    def _emit_body(self, source: FunctionSource, lowered: Lowered) -> None:
        """Call the user's function, check what it returns, and return it flattened."""
        call = f"_of_fn({emit_arguments(source, lowered)})"
        tensors = "".join(f", {a.name}" for a in lowered.tensors)
        launches = self.launches()
        if launches:
            # Like `set_wrap_triton_enabled(False)`, without the cost of a context manager.
            source.add("_of_wrapped = _of_wrap_enabled()")
            source.add("_of_wrap_state.value = False")
        source.add("try:")
        source.add(f"    _of_out = {call}")
        source.add("except _of_Exception as _of_error:")
        source.add(f"    _of_explain_failure(_of_error{tensors})")
        source.add("    raise")
        if launches:
            source.add("finally:")
            source.add("    _of_wrap_state.value = _of_wrapped")
        if lowered.signature.returns is None:
            source.add("if _of_out is not None:")
            source.add("    _of_not_none()")
            source.add("return None")
        else:
            self._emit_checks(source, lowered)

    def _emit_checks(self, source: FunctionSource, lowered: Lowered) -> None:
        returns, inputs = lowered.returns, "".join(f"{a.name}, " for a in lowered.tensors)
        outputs = "(_of_out,)" if len(returns) == 1 else "_of_out"
        tensors = [leaf for leaf in returns if leaf.is_tensor]
        value = emit_flat_result(source, lowered)
        if value != "_of_out":
            source.add(f"_of_out = {value}")
        # The common case: one tensor, and each test is an attribute read.
        alone = len(returns) == 1 and bool(tensors) and not returns[0].container
        if alone:
            source.add("if _of_type(_of_out) is not _of_Tensor:")
            source.add("    _of_check_one(_of_out)")
        if tensors and not self.views and (inputs or not alone):
            source.add(f"if _of_aliases(({inputs}), _of_no_kwargs, {outputs}):")
            source.add(f"    _of_aliased(({inputs}), {outputs})")
        for index, name in enumerate(lowered.returned):
            source.add(f"if {'_of_out' if alone else f'_of_out[{index}]'} is not {name}:")
            source.add(f"    _of_not_returned({name!r})")
        viewed = f", ({inputs})" if self.views else ""
        if alone:
            present = "_of_out is not None and " if returns[0].optional else ""
            source.add(f"if {present}_of_out.requires_grad:")
            source.add(f"    _of_out = _of_unrecord(_of_out{viewed})")
        else:
            self._emit_check_of_several(source, lowered, viewed)
        if self.verified and tensors:
            source.add("if _of_pending:")
            source.add(f"    _of_verify({outputs}, {pass_on(lowered.arguments)})")
        source.add("return _of_out")

    @staticmethod
    def _emit_check_of_several(source: FunctionSource, lowered: Lowered, viewed: str) -> None:
        """Call the check of several outputs, unless each is plainly what its annotation says."""
        check = f"_of_out = _of_check_several(_of_out{viewed})"
        outputs = [f"_of_out_{i}" for i in range(len(lowered.returns))]
        tests = [_usual(leaf, out) for leaf, out in zip(lowered.returns, outputs, strict=True)]
        if len(tests) == 1 or not all(tests):
            source.add(check)
            return
        source.add(f"{', '.join(outputs)} = _of_out")
        # torch 2.13 and before made a tuple of a list.
        source.add(f"if not (_of_type(_of_out) is _of_tuple and {' and '.join(tests)}):")
        source.add(f"    {check}")


# What the dispatcher would do on the way: count writes, and let autograd follow.
COUNTED, FOLLOWED = 1, 2
# The types whose values need no more than this look.
_EXACT = {"SymInt": "_of_int", "int": "_of_int", "float": "_of_float", "bool": "_of_bool"}


def _usual(leaf: Leaf, out: str) -> str:
    """A quick test that an output is right and not recorded; empty if there is none."""
    if leaf.container:
        return ""
    if not leaf.is_tensor:
        return f"_of_type({out}) is {_EXACT[leaf.base]}" if leaf.base in _EXACT else ""
    test = f"_of_type({out}) is _of_Tensor and not {out}.requires_grad"
    return f"({out} is None or {test})" if leaf.optional else test


# The dispatcher hands on as it is what passes these tests. torch's guards end the process where a
# tensor is nested, and a proxy's answers have no truth value.
_INTEGER = "_of_type({0}) is _of_int and -0x8000000000000000 <= {0} <= 0x7FFFFFFFFFFFFFFF"
_HANDED_ON = {
    "Tensor": "{0}.is_nested is False",
    "SymInt": _INTEGER,
    "int": _INTEGER,
    "float": "_of_type({0}) is _of_float",
    "bool": "_of_type({0}) is _of_bool",
    "str": "_of_type({0}) is _of_str and {0}.isascii()",
    "ScalarType": "_of_type({0}) is _of_dtype",
    "Device": "_of_type({0}) is _of_device",
}


def may_be_direct(lowered: Lowered) -> bool:
    """Whether plain tensors and numbers are all that an op takes and returns."""
    taken = all(_type_of(a) in _HANDED_ON for a in lowered.arguments)
    guarded = any(not _is_optional(a) for a in lowered.tensors)
    returns = lowered.returns
    returned = all(_usual(leaf, "") for leaf in returns) and (
        len(returns) != 1 or returns[0].is_tensor
    )
    writes = not any(_is_optional(a) for a in lowered.mutated)
    return taken and guarded and returned and writes


def _type_of(argument: FlatArgument) -> str:
    if argument.is_tensor:
        return "list" if argument.is_tensor_list else "Tensor"
    return argument.type.removesuffix("?")


def _handed_on(argument: FlatArgument) -> str:
    test = _HANDED_ON[_type_of(argument)].format(argument.name)
    return f"({argument.name} is None or {test})" if _is_optional(argument) else test


def _never_none(argument: FlatArgument) -> str:
    name = argument.name
    return f"_of_absent_{name} if {name} is None else {name}" if _is_optional(argument) else name


def _is_optional(argument: FlatArgument) -> bool:
    return argument.type.endswith("?")


def write_inplace(source: FunctionSource, lowered: Lowered) -> None:
    """`_of_inplace`, at the ADInplaceOrView key: increment the versions of mutated tensors."""
    arguments = pass_on(lowered.arguments)
    listed = argument_list(source, lowered.arguments)
    with source.block(f"def _of_inplace(_of_keyset, {listed}):"):
        for argument in lowered.mutated:
            name, leaf, optional = argument.name, argument.leaf, argument.type.endswith("?")
            assert leaf is not None
            if leaf.container:
                items = f"{name} or ()" if optional else name
                with source.block(f"for _of_item in {items}:"):
                    _emit_version_bump(source, "_of_item", optional=leaf.element_optional)
            else:
                _emit_version_bump(source, name, optional=optional)
        source.add(f"if {_PLAIN}:")
        source.add(f"    return _of_kernel({arguments})")
        source.add(f"return _of_redispatch(_of_keyset & _of_after_inplace, {arguments})")


def _emit_version_bump(source: FunctionSource, name: str, *, optional: bool) -> None:
    if optional:
        source.add(f"if {name} is not None:")
    source.add(f"{'    ' if optional else ''}_of_increment_version({name})")


def _emit_needs_grad(source: FunctionSource, lowered: Lowered) -> None:
    """`_of_needs = x.requires_grad or y.requires_grad`.

    torch passes on a None in place of a tensor, which is noticed here; a try costs nothing.
    """
    tests = []
    for argument in lowered.tensors:
        name, leaf = argument.name, argument.leaf
        assert leaf is not None
        optional = argument.type.endswith("?")
        if not leaf.container:
            test = f"{name}.requires_grad"
            tests.append(f"({name} is not None and {test})" if optional else test)
        elif leaf.element_optional or optional:
            tests.append(f"_of_any_listed({name})")
        else:
            tests.append(f"_of_any_requires_grad({name})")
    source.add("try:")
    source.add(f"    _of_needs = {' or '.join(tests)}")
    source.add("except _of_AttributeError:")
    source.add(f"    raise _of_no_tensor({', '.join(a.name for a in lowered.tensors)}) from None")


def _emit_tangent_check(source: FunctionSource, lowered: Lowered) -> None:
    # Reading torch's own attribute for an open forward-mode level takes 40 ns.
    source.add("if _of_forward_ad._current_level >= 0:")
    source.add(f"    _of_refuse_tangents({', '.join(a.name for a in lowered.tensors)})")
