"""Which pointers a kernel writes to, by the MLIR that Triton makes of it.

The graph of operations is torch's (2.9 to 2.13), and the walk is not: torch takes every operand on
the way to a store for an address. An index that was read through another pointer would count as a
write to that one, which costs torch a copy and would cost a library its build.
"""

from __future__ import annotations

from typing import Any

from . import compiling, tma

# What they write to is their first operand; the rest are values, offsets and masks.
_WRITES = {
    "tt.store",
    "tt.atomic_cas",
    "tt.atomic_rmw",
    "tt.descriptor_store",
    "tt.descriptor_reduce",
    "tt.descriptor_scatter",
    "tt.experimental_descriptor_store",
    "ttng.async_tma_copy_local_to_global",
    "ttng.async_tma_reduce",
    "ttng.async_tma_scatter",
}
# Their results are values from memory, whatever the address was; or a function's, which is not
# inlined and seldom returns an address.
_VALUES = {"tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.call"}
# Of their operands only the first is an address.
_ADDRESSES = {"tt.addptr", "tt.make_tensor_ptr", "tt.advance", "tt.make_tensor_descriptor"}

_Functions = dict[str, dict[Any, list[Any]]]


class UnknownWrites(Exception):
    """It cannot be told what a kernel writes, and why."""


def written_pointers(variant: compiling.Variant) -> frozenset[str]:
    """The parameters behind which a kernel writes; raises `UnknownWrites`, or Triton's errors."""
    _, module = compiling.to_ttir(variant)
    signature = variant.signature
    # A descriptor's sizes and strides are arguments of their own.
    passed = [
        name
        for name, kind in signature.items()
        if kind != "constexpr"
        for _ in range(1 + 2 * tma.rank(kind))
    ]
    written = _written_arguments(_functions(module))
    return frozenset(
        passed[i] for i in written if signature[passed[i]].startswith(("*", "tensordesc"))
    )


def written_in(module: Any, passed: list[str]) -> set[str] | None:
    """Which of the arguments of a module's kernel it writes to, by their names.

    Numbers that choose between addresses are among them. None where it cannot be told, or where a
    function that is not inlined might return an address.
    """
    try:
        functions = _functions(module)
        kernel = module.get_function(next(iter(functions)))
        if len(functions) > 1 or kernel.get_num_args() != len(passed):
            return None
        return {passed[i] for i in _written_arguments(functions)}
    except UnknownWrites:
        return None


def _functions(module: Any) -> _Functions:
    """The graph of operations of each function, with what it calls inlined where Triton would."""
    try:
        from torch._higher_order_ops import triton_kernel_wrap as wrap
        from triton._C.libtriton import ir, passes

        # With jitted functions inlined, what they return is followed, too.
        manager = ir.pass_manager(module.context)
        passes.common.add_inliner(manager)
        manager.run(module, "opforge_inline")
        functions: _Functions = wrap.ttir_to_functions(module)
    except Exception as error:
        raise UnknownWrites(compiling.error_text(error)) from error
    return functions


def _written_arguments(functions: _Functions) -> set[int]:
    """The positions of the kernel's arguments that it writes to."""
    from torch._higher_order_ops import triton_kernel_wrap as wrap

    # The kernel comes first; functions that it calls without inlining follow.
    return _written(functions, next(iter(functions)), set(), wrap.Param)


def _written(functions: _Functions, name: str, above: set[str], param: type[Any]) -> set[int]:
    """The positions of a function's parameters that it writes to."""
    if name in above:
        return set()
    addresses: list[Any] = []
    for op in (op for each in functions[name].values() for op in each):
        # Without operands, such as `griddepcontrol.wait`, it has no address to write to.
        if op.name == "tt.elementwise_inline_asm" and op.args and not op.is_pure:
            raise UnknownWrites("it has inline assembly that is not is_pure=True")
        if op.name == "tt.call":
            written = _written(functions, op.fn_call_name, above | {name}, param)
            addresses += [op.args[i] for i in written]
        elif op.name in _WRITES:
            addresses.append(op.args[0])
    origins = _origins(functions[name], addresses)
    return {origin.idx for origin in origins if isinstance(origin, param)}


def _origins(ops: dict[Any, list[Any]], addresses: list[Any]) -> set[Any]:
    """The values that addresses are computed from, and the addresses themselves."""
    seen: set[Any] = set()
    while addresses:
        address = addresses.pop()
        if address in seen:
            continue
        seen.add(address)
        for op in ops.get(address, ()):
            if op.name not in _VALUES:
                addresses += op.args[:1] if op.name in _ADDRESSES else op.args
    return seen
