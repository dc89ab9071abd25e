"""Writes the source of an op's kernels from its flat signature.

Kernels are straight-line code, because every microsecond of a call counts: on an aarch64 CPU with
two small tensors, `custom_op` adds 24 us to the plain function, these add 7.
"""

from __future__ import annotations

from collections.abc import Callable

from ..lowering.codegen import (
    FunctionSource,
    argument_list,
    emit_arguments,
    emit_flat_result,
    emit_rebuild,
    emit_result,
    pass_on,
)
from ..model import FlatArgument, Lowered

Writer = Callable[[FunctionSource, Lowered], None]

# The default is in the set, so that an unknown keyset is examined.
_PLAIN = (
    "_of_plain.get(_of_keyset.raw_repr(), _of_listed) not in _of_impls "
    "or _of_plain.learn(_of_keyset)"
)


def write_bind(source: FunctionSource, lowered: Lowered) -> None:
    """`_of_bind(fn)`: rebuild the arguments, call fn, flatten its result."""
    source.add("def _of_bind(_of_fn):")
    source.depth += 1
    source.add(f"def call({argument_list(source, lowered.arguments)}):")
    source.depth += 1
    source.add(f"_of_out = _of_fn({emit_arguments(source, lowered)})")
    source.add(f"return {emit_flat_result(source, lowered)}")
    source.depth -= 1
    source.add("return call")
    source.depth -= 1


def write_structure(source: FunctionSource, lowered: Lowered) -> None:
    """`_of_inputs` and `_of_result` rebuild inputs and outputs; `_of_flat` flattens outputs."""
    source.add(f"def _of_inputs({argument_list(source, lowered.arguments)}):")
    source.depth += 1
    names = [a.name for a in lowered.arguments]
    values = [emit_rebuild(source, p.node, names) for p in lowered.signature.parameters]
    source.add(f"return ({''.join(f'{v}, ' for v in values)})")
    source.depth -= 1
    source.add("def _of_flat(_of_out):")
    source.depth += 1
    source.add(f"return {emit_flat_result(source, lowered)}")
    source.depth -= 1
    source.add("def _of_result(_of_flat_out):")
    source.depth += 1
    emit_result(source, lowered, "_of_flat_out")
    source.depth -= 1


def kernel_writer(
    *, guarded: bool, verified: bool, views: bool, launches: Callable[[], bool]
) -> Writer:
    """`_of_kernel`: the body as the dispatcher calls it, with the guarantees of `custom_op`.

    `guarded`: there is no Autograd kernel above, so this one keeps autograd from recording.
    `verified`: the fake rests on an assumption, which the first real call checks.
    `views`: the user's schema declares aliases, so outputs may alias inputs.
    `launches`: whether the body may launch kernels, asked when the text is written.
    """

    def write(source: FunctionSource, lowered: Lowered) -> None:
        source.add(f"def _of_kernel({argument_list(source, lowered.arguments)}):")
        source.depth += 1
        if guarded:
            _emit_tangent_check(source, lowered)
        if guarded and lowered.tensors:
            _emit_needs_grad(source, lowered)
            source.add("if _of_needs and _of_grad_enabled():")
            source.add(f"    return _of_unrecorded({pass_on(lowered.arguments)})")
        _emit_body(source, lowered, verified=verified, views=views, launches=launches())
        source.depth -= 1

    return write


def autograd_writer(*, verified: bool, views: bool, launches: Callable[[], bool]) -> Writer:
    """`_of_autograd`, at the Autograd key: record, or call the body directly.

    Redispatching costs 5 us. It is needed only if something comes between autograd and a plain
    backend: a mode, a functorch level, a tensor subclass, somebody else's kernel.
    """

    def write(source: FunctionSource, lowered: Lowered) -> None:
        arguments = pass_on(lowered.arguments)
        source.add(f"def _of_autograd(_of_keyset, {argument_list(source, lowered.arguments)}):")
        source.depth += 1
        _emit_tangent_check(source, lowered)
        source.add(f"_of_direct = {_PLAIN}")
        if lowered.tensors:
            _emit_needs_grad(source, lowered)
            source.add("if _of_needs and _of_grad_enabled():")
            source.add(f"    return _of_record(None if _of_direct else _of_keyset, {arguments})")
        source.add("if not _of_direct:")
        source.add(f"    return _of_redispatch(_of_keyset & _of_after_autograd, {arguments})")
        _emit_body(source, lowered, verified=verified, views=views, launches=launches())
        source.depth -= 1

    return write


def write_inplace(source: FunctionSource, lowered: Lowered) -> None:
    """`_of_inplace`, at the ADInplaceOrView key: increment the versions of mutated tensors."""
    arguments = pass_on(lowered.arguments)
    source.add(f"def _of_inplace(_of_keyset, {argument_list(source, lowered.arguments)}):")
    source.depth += 1
    for argument in lowered.mutated:
        _emit_version_bump(source, argument)
    source.add(f"if {_PLAIN}:")
    source.add(f"    return _of_kernel({arguments})")
    source.add(f"return _of_redispatch(_of_keyset & _of_after_inplace, {arguments})")
    source.depth -= 1


def _emit_needs_grad(source: FunctionSource, lowered: Lowered) -> None:
    """`_of_needs = x.requires_grad or y.requires_grad`.

    torch passes on a None in place of a tensor, which is noticed here; a try costs nothing.
    """
    tests = []
    for argument in lowered.tensors:
        name, leaf = argument.name, argument.leaf
        assert leaf is not None
        if not leaf.container:
            test = f"{name}.requires_grad"
            optional = argument.type.endswith("?")
            tests.append(f"({name} is not None and {test})" if optional else test)
        elif leaf.element_optional or argument.type.endswith("?"):
            tests.append(f"_of_any_listed({name})")
        else:
            tests.append(f"_of_any_requires_grad({name})")
    source.add("try:")
    source.add(f"    _of_needs = {' or '.join(tests)}")
    source.add("except _of_AttributeError:")
    source.add(f"    raise _of_no_tensor({', '.join(a.name for a in lowered.tensors)}) from None")


def _emit_tangent_check(source: FunctionSource, lowered: Lowered) -> None:
    # Reading torch's own attribute for an open forward-mode level takes 40 ns.
    if lowered.tensors:
        source.add("if _of_forward_ad._current_level >= 0:")
        source.add(f"    _of_refuse_tangents({', '.join(a.name for a in lowered.tensors)})")


def _emit_body(
    source: FunctionSource, lowered: Lowered, *, verified: bool, views: bool, launches: bool
) -> None:
    """Call the user's function, check what it returns, and return it flattened."""
    call = f"_of_fn({emit_arguments(source, lowered)})"
    tensors = "".join(f", {a.name}" for a in lowered.tensors)
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
        _emit_checks(source, lowered, verified=verified, views=views)


def _emit_checks(source: FunctionSource, lowered: Lowered, *, verified: bool, views: bool) -> None:
    returns, tensors = lowered.returns, [leaf for leaf in lowered.returns if leaf.is_tensor]
    if len(returns) == 1 and not returns[0].container and tensors:
        # The common case: one tensor, and each test is an attribute read.
        _emit_flat_out(source, lowered)
        source.add("if _of_type(_of_out) is not _of_Tensor:")
        source.add("    _of_check_one(_of_out)")
        _emit_alias_check(source, lowered, views=views)
        present = "_of_out is not None and " if returns[0].optional else ""
        source.add(f"if {present}_of_out.requires_grad:")
        source.add("    _of_out = _of_unrecord(_of_out)")
    else:
        _emit_flat_out(source, lowered)
        _emit_alias_check(source, lowered, views=views)
        source.add("_of_out = _of_check_several(_of_out)")
    if verified and tensors:
        source.add("if _of_pending:")
        source.add(f"    _of_verify({_outputs(lowered)}, {pass_on(lowered.arguments)})")
    source.add("return _of_out")


def _emit_alias_check(source: FunctionSource, lowered: Lowered, *, views: bool) -> None:
    inputs = "".join(f"{a.name}, " for a in lowered.tensors)
    tensors = [leaf for leaf in lowered.returns if leaf.is_tensor]
    if views or not tensors:
        return
    if inputs or len(lowered.returns) > 1 or tensors[0].container:
        source.add(f"if _of_aliases(({inputs}), _of_no_kwargs, {_outputs(lowered)}):")
        source.add(f"    _of_aliased(({inputs}), {_outputs(lowered)})")


def _outputs(lowered: Lowered) -> str:
    return "(_of_out,)" if len(lowered.returns) == 1 else "_of_out"


def _emit_flat_out(source: FunctionSource, lowered: Lowered) -> None:
    value = emit_flat_result(source, lowered)
    if value != "_of_out":
        source.add(f"_of_out = {value}")


def _emit_version_bump(source: FunctionSource, argument: FlatArgument) -> None:
    name, leaf = argument.name, argument.leaf
    assert leaf is not None
    if leaf.container:
        items = f"{name} or ()" if argument.type.endswith("?") else name
        source.add(f"for _of_item in {items}:")
        indent = "    "
        if leaf.element_optional:
            source.add("    if _of_item is not None:")
            indent = "        "
        source.add(f"{indent}_of_increment_version(_of_item)")
    elif argument.type.endswith("?"):
        source.add(f"if {name} is not None:")
        source.add(f"    _of_increment_version({name})")
    else:
        source.add(f"_of_increment_version({name})")
