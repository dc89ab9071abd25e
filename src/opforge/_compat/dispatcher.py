"""Private torch APIs: the dispatcher, fakes, autograd, pytrees."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.function import _SingleLevelFunction

from .transforms import OUT_OF_LEVEL, around_level, kernel_at

OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
DispatchKeySet = torch._C.DispatchKeySet

grad_enabled = torch.is_grad_enabled
any_requires_grad = torch._C._any_requires_grad
any_aliases = torch._C._any_output_is_alias_to_input_or_output
below_autograd = torch._C._AutoDispatchBelowAutograd
after_autograd = torch._C._after_autograd_keyset
after_inplace_or_view = torch._C._after_ADInplaceOrView_keyset
forward_ad = torch.autograd.forward_ad
increment_version = torch.autograd.graph.increment_version
functorch_active = torch._C._are_functorch_transforms_active
# torch's list of Python kernels, and what is on it while no kernel of that name is.
python_impls = torch.library._impls
ALWAYS_LISTED = "opforge/itself/always"
python_impls.add(ALWAYS_LISTED)
single_level_autograd = enable_single_level_autograd_function


class AutogradFunction(_SingleLevelFunction):
    """A Function for one level of torch.func, as a kernel at the Autograd key is.

    torch.autograd.Function.apply asks about functorch on every call, and without a setup_context it
    refuses to run inside a transform.
    """

    # Compiled autograd asks every Function which graph its node belongs to.
    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)


def define(name: str, schema: str, tags: tuple[Any, ...] = ()) -> DefinedOp:
    """Define `ns::op` or `ns::op.overload` with a schema."""
    namespace, op = name.split("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(op + schema, tags=(*tags, torch.Tag.pt2_compliant_tag))
    base, _, overload = op.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base)
    made = getattr(packet, overload or "default")
    return DefinedOp(library, library, made, kernel_at(name, "Python"))


@dataclass(frozen=True)
class DefinedOp:
    """An op in torch: the library with its schema, the one with its kernels, and its overload.

    They are two libraries where somebody else may take over the schema, or one. `to_subclasses` is
    torch's own kernel at the Python key.
    """

    schema: torch.library.Library
    kernels: torch.library.Library
    overload: Any
    to_subclasses: Any

    def destroy(self) -> None:
        listed = _kernels_in(self.kernels)
        destroy(self.kernels)
        if self.schema is not self.kernels:
            destroy(self.schema)
            _let_go(self.schema.ns, listed)
        packet = self.overload.overloadpacket
        if _others_of(self.overload):
            _keep_packet(packet, self.overload)

    def with_other_kernels(self) -> DefinedOp:
        """The same op, for kernels of somebody else's."""
        return replace(self, kernels=torch.library.Library(self.schema.ns, "FRAGMENT"))


def _others_of(overload: Any) -> list[str]:
    """The other overloads of the same packet."""
    return [n for n in overload.overloadpacket.overloads() if n != overload._overloadname]


def _keep_packet(packet: Any, gone: Any) -> None:
    """Keep a packet, and with it its other overloads, that torch forgets along with one."""
    namespace, name = getattr(torch.ops, gone.namespace), packet.__name__
    vars(namespace)[name] = packet
    namespace._dir.append(name)
    vars(packet).pop(gone._overloadname, None)
    packet._dir.remove(gone._overloadname)
    torch._ops._refresh_packet(packet)


def raw_call(overload: Any) -> Callable[..., Any]:
    """What an OpOverload calls; calling it directly saves 0.3 us of Python."""
    call: Callable[..., Any] = overload._op
    return call.op if isinstance(call, _Waiting) else call


def dispatch_from_python(overload: Any, *, enabled: bool = True) -> None:
    """Let torch find the Python kernel of a call without turning the arguments into C++ values.

    Since torch 2.14, as it does for `torch.library.custom_op`: 3 us less per call.
    """
    enable = getattr(overload, "_enable_pyobj_dispatch", None)
    if enable is not None:
        enable(enabled)


def is_dispatched_from_python(overload: Any) -> bool:
    """Whether torch finds the kernel so; it does not where an argument may be no tensor."""
    enabled = getattr(overload, "_is_pyobj_dispatcher_enabled", None)
    return bool(
        enabled is not None
        and enabled()
        and all(str(a.type) == "Tensor" for a in overload._schema.arguments)
    )


def to_key(overload: Any, key: str) -> Callable[..., Any]:
    """A call that goes straight to an op's kernel for a backend."""
    return functools.partial(overload.redispatch, _keyset(key))


def _keyset(key: str) -> Any:
    return DispatchKeySet(getattr(torch._C.DispatchKey, key))


def destroy(library: torch.library.Library) -> None:
    listed = _kernels_in(library)
    library._destroy()
    # When the library is freed, torch would take these names out of its sets and of torch.ops, and
    # by then they may be those of another op and its kernels.
    torch.library._defs.difference_update(library._op_defs)
    library._op_defs.clear()
    library._op_impls.clear()
    _let_go(library.ns, listed)


def _let_go(namespace: str, listed: Iterable[str]) -> None:
    """Make torch forget kernels of ops that are gone, listed as "ns/op/key".

    torch keeps the last Python kernel of each name and key for good, and a kernel leads to all
    that opforge has of its op: 18 kB. It gets one that leads nowhere, for a moment.
    """
    library = torch.library.Library(namespace, "FRAGMENT")
    kernels = [each.split("/")[1:] for each in listed]
    known = torch._C._dispatch_has_kernel
    assert library.m is not None
    for op, key in [each for each in kernels if not known(f"{namespace}::{each[0]}")]:
        library.m.impl(op, key, _nothing, False)
    library._destroy()


def _nothing(*_args: Any) -> None:
    """Never called."""


def unlist(library: torch.library.Library, listed: str) -> None:
    """Take a kernel off torch's list of Python kernels, which is for refusing a second one."""
    torch.library._impls.discard(listed)
    library._op_impls.discard(listed)
    _unlisted.setdefault(library, set()).add(listed)


_unlisted: weakref.WeakKeyDictionary[torch.library.Library, set[str]] = weakref.WeakKeyDictionary()


def _kernels_in(library: torch.library.Library) -> list[str]:
    return [*library._op_impls, *_unlisted.get(library, ())]


def keep_kernels(name: str, keys: Iterable[str]) -> None:
    """Let an op be destroyed while its kernels run: torch would free the code they return to."""
    find = torch._C._dispatch_get_computed_kernel_for_dispatch_key
    has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    _kept.extend(find(name, key) for key in keys if has(name, key))


_kept: list[Any] = []


def forget_dispatch(overload: Any) -> None:
    """Forget which kernels torch's Python dispatcher has looked up."""
    overload._dispatch_cache.clear()


def disable_overload(overload: Any, raise_dead: Callable[..., Any]) -> None:
    """Make calls of an overload and its packet raise, because their C++ handle will dangle."""
    # Not above: the first call of a loaded library waits for this module, and not for patches.
    from . import patches

    dispatch_from_python(overload, enabled=False)
    packets = () if _others_of(overload) else (overload.overloadpacket,)
    for handle in (overload, *packets):
        patches.install_for_good(
            patches.UNREGISTERED.by("_op", lambda op: _InFront.of(raise_dead, op), handle)
        )


def waiting(overload: Any, lock: Any) -> contextlib.AbstractContextManager[None]:
    """Let calls of an overload and its packet that begin meanwhile wait for a lock."""
    from . import patches

    places = [(overload, "_op"), (overload.overloadpacket, "_op")]
    if hasattr(overload, "_cpp_dispatch_handle"):  # since torch 2.14
        places.append((overload, "_cpp_dispatch_handle"))
    return patches.PatchScope(
        lambda: [
            patches.TAKEN_OVER.by(name, lambda op: _Waiting(op, lock), handle)
            for handle, name in places
        ]
    )


def in_front(overload: Any, call: Callable[..., Any], beside: Callable[[Any], None]) -> Any:
    """Let calls of an overload go to a function, while inside; `beside` is told what it hides."""
    from . import patches

    def make(op: Any) -> Any:
        beside(op)
        # Since torch 2.14 an overload's hash is that of another function.
        return call if hasattr(overload, "_cpp_dispatch_handle") else _InFront.of(call, op)

    return patches.PatchScope(lambda: [patches.DIRECT_CALL.by("_op", make, overload)])


def is_waited_for(overload: Any) -> bool:
    """Whether calls of an overload wait at present."""
    return isinstance(overload._op, _Waiting)


class _InFront(functools.partial[Any]):
    """Stands in for an overload's C++ function, and keeps its hash, which OpOverload uses.

    A partial costs no frame.
    """

    hashed: int

    @classmethod
    def of(cls, call: Callable[..., Any], op: Any) -> _InFront:
        made = cls(call)
        made.hashed = hash(op)
        return made

    def __hash__(self) -> int:
        return self.hashed


class _Waiting:
    """Stands in for an overload's C++ function, which it calls once it has had a lock."""

    def __init__(self, op: Callable[..., Any], lock: Any) -> None:
        self.op = op
        self._lock = lock

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            pass
        return self.op(*args, **kwargs)

    def __hash__(self) -> int:
        return hash(self.op)


def overload_of(op: Any) -> Any | None:
    """The overload itself, or the default one of a packet; None for anything else."""
    if issubclass(type(op), OpOverload):
        return op
    if issubclass(type(op), OpOverloadPacket):
        return getattr(op, "default", None)
    return None


def qualified_name(overload: Any) -> str:
    """`ns::op`, or `ns::op.overload` if it is not the default."""
    return str(overload.name())


def schema_text(overload: Any) -> str:
    return str(overload._schema)


def returned_types(overload: Any) -> list[str]:
    return [kind for kind, _ in parsed_returns(overload._schema)]


def parse_schema(text: str) -> Any:
    return torch._C.parse_schema(text)


def parsed_arguments(schema: Any) -> list[tuple[str, str, bool, bool, bool]]:
    """(name, printed type, has default, keyword-only, mutated) per argument."""
    return [
        (
            a.name,
            str(a.real_type),
            a.has_default_value(),
            a.kwarg_only,
            a.alias_info is not None and a.alias_info.is_write,
        )
        for a in schema.arguments
    ]


def parsed_defaults(schema: Any) -> dict[str, Any]:
    return {a.name: a.default_value for a in schema.arguments if a.has_default_value()}


def parsed_returns(schema: Any) -> list[tuple[str, bool]]:
    """(printed type, is an alias) per return."""
    return [(str(r.real_type), r.alias_info is not None) for r in schema.returns]


def schema_type_of(annotation: Any) -> str | None:
    """The schema type that torch infers from an annotation unknown to opforge.

    This covers types that later versions of torch add, and opaque types that users register.
    """

    def prototype(x: Any) -> None:
        del x

    prototype.__annotations__ = {"x": annotation, "return": None}
    try:
        schema = torch.library.infer_schema(prototype, mutates_args=())
    except (ValueError, TypeError):
        return None
    return schema[1 : schema.index(" x")]


def register_fake(
    library: torch.library.Library, name: str, fake: Callable[..., Any], source: str
) -> None:
    """Like `torch.library.register_fake`, but errors name the user's source line."""
    entry = torch._library.simple_registry.singleton.find(name)
    handle = entry.fake_impl.register(fake, source, lib=library, allow_override=True)
    library._registration_handles.append(handle)


def register_functional_rule(
    library: torch.library.Library, op: str, rule: Callable[..., Any]
) -> None:
    """Set what FunctionalTensorMode, under which AOTAutograd traces, does with an op."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    library._register_torch_dispatch_rule(op, FunctionalTensorMode, rule)


def around_functorch(
    library: torch.library.Library,
    name: str,
    make: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    """Wrap the kernel that passes an op from one functorch level to the next."""
    around_level(library, name, OUT_OF_LEVEL, make)


def around_subclasses(
    defined: DefinedOp, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Wrap the kernel that passes an op to tensor subclasses and modes."""
    kernel = make(defined.to_subclasses.call_boxed)
    with warnings.catch_warnings():
        # A loaded op keeps its kernel for first calls until this one is there, which torch 2.11
        # refuses unless it is told that it may.
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        op = name.partition("::")[2]
        defined.kernels.impl(op, kernel, "Python", with_keyset=True, allow_override=True)


def follow_views(library: torch.library.Library, op: str, overload: Any) -> bool:
    """Let autograd know the view that a schema declares, whoever makes it: a tensor subclass, too.

    torch can do so for one pair of an input and an output; returns whether it does.
    """
    schema = overload._schema
    # Not in every torch before 2.13.
    follow = getattr(library.m, "register_ad_inplace_or_view_fallback", None)
    followed = len(_views(schema.arguments)) == len(_views(schema.returns)) == 1
    if follow is None or not followed:
        return False
    follow(op)
    return True


def declared_views(overload: Any, out: Any) -> list[Any]:
    """The outputs that a schema declares to be views."""
    outputs = out if len(overload._schema.returns) > 1 else (out,)
    return [outputs[index] for index in _views(overload._schema.returns)]


def _views(side: Any) -> list[int]:
    aliases = [a.alias_info for a in side]
    return [i for i, alias in enumerate(aliases) if alias is not None and not alias.is_write]


def forward_ad_open() -> bool:
    """Whether any forward-mode level is open."""
    return forward_ad._current_level >= 0


def keeping_versions(tensors: Iterable[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """Take back what raises the versions of tensors; inference tensors have none."""
    kept = tuple(tensor for tensor in tensors if not tensor.is_inference())
    return torch.autograd.grad_mode._unsafe_preserve_version_counter(kept)


def has_kernel(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def backend_of(keyset: Any) -> str | None:
    """The plain backend key that a keyset consists of, or None if it has anything else.

    `DispatchKeySet(CPU)` -> "CPU"; with Python, Meta, Conjugate, functorch or two backends: None.
    """
    top = keyset.highestPriorityTypeId()
    backend = str(top).removeprefix("DispatchKey.")
    if backend == "Meta" or keyset.raw_repr() != DispatchKeySet(top).raw_repr():
        return None
    return backend


@dataclass(frozen=True)
class RefusedValue:
    """A value that the dispatcher did not take for an argument, as its error shows it."""

    argument: str
    type: str
    value: str


def refused_value(error: RuntimeError, name: str) -> RefusedValue | None:
    """Read the dispatcher's error for a value of a wrong type, if it is about a call of `name`.

    torch 2.13: "ns::op() Expected a value of type 'float' for argument 'scale' but instead found
    type 'str'.", and then, among others, a line "Value: 'a'".
    """
    found = re.match(
        re.escape(name) + r"\(\) Expected a value of type '.*' for argument '(\w+)' but instead "
        r"found type '(.*)'\.(?:\n.*)*?\nValue: (.{0,80})",
        str(error),
    )
    return None if found is None else RefusedValue(*found.groups())


def write_count(tensor: torch.Tensor) -> int:
    """How often a functional tensor's storage was written in a trace; -1 for other tensors."""
    inner = getattr(tensor, "elem", None)
    if inner is None or not torch._is_functional_tensor(inner):
        return -1
    return int(torch._functionalize_mutation_counter(inner))


def is_view(tensor: torch.Tensor) -> bool:
    """Whether it is one for autograd."""
    return tensor._is_view()


def storage_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage, or of the one behind a functional tensor."""
    inner = getattr(tensor, "elem", tensor)
    return int(inner.untyped_storage()._cdata)


def concrete(value: Any) -> Any:
    """A symbolic number's value, with a guard; anything else as it is."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        return guard_scalar(value)
    return value


def functionalizing() -> bool:
    """Whether a FunctionalTensorMode is active, as it is while AOTAutograd traces."""
    key = torch._C._TorchDispatchModeKey.FUNCTIONAL
    return torch._C._get_dispatch_mode(key) is not None


def faking() -> bool:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def keeps_triton_ops() -> bool:
    """Whether torch.export is running, which leaves ops with kernels as they are."""
    from torch._functorch import config

    return not config.decompose_custom_triton_ops


def traces_to_run() -> bool:
    """Whether torch.compile is tracing for Inductor or aot_eager, to run the code in this process.

    Of other backends it is not known; they may only look at the graph.
    """
    return _inductor_compiles() or _dynamo_backend() == "aot_eager"


def _dynamo_backend() -> str:
    """The name that torch.compile was given; empty where Dynamo does not compile."""
    # torch 2.13: its threads keep what they translate in `tls`.
    translator = sys.modules.get("torch._dynamo.symbolic_convert")
    translated = getattr(getattr(translator, "tls", None), "current_tx", None)
    backend: Any = getattr(getattr(translated, "output", None), "compiler_fn", None)
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return str(getattr(backend, "compiler_name", ""))


def _inductor_compiles() -> bool:
    virtualized = sys.modules.get("torch._inductor.virtualized")
    if virtualized is None:
        return False
    # torch 2.13: compile_fx sets the fake mode around AOTAutograd.
    outside = isinstance(virtualized.V.fake_mode, virtualized.NullHandler)
    return not outside and not virtualized.V.aot_compilation


def only_known_types(types: Any) -> bool:
    """Whether all tensors of a call are plain, fake or functional, not of another subclass."""
    from torch._subclasses import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    known = (torch.Tensor, FunctionalTensor)
    return all(t in known or issubclass(t, FakeTensor) for t in types)


# `.value` is False while a body runs in eager: `wrap_triton` then returns the kernel itself, and a
# launch does not go through torch's node, which takes about 1 ms.
wrap_triton_state = torch._library.triton.wrap_triton_enabled
wrap_triton_enabled = torch._library.triton.is_wrap_triton_enabled


def wrap_triton_disabled() -> contextlib.AbstractContextManager[None]:
    return torch._library.triton.set_wrap_triton_enabled(False)


def register_pytree(
    cls: type[Any], flatten: Callable[[Any], Any], unflatten: Any, names: list[str], **more: Any
) -> None:
    """Register a class as a pytree node, unless somebody has; `names` are its children's."""
    if cls in torch.utils._pytree.SUPPORTED_NODES:
        return
    keys = [torch.utils._pytree.GetAttrKey(name) for name in names]

    def with_keys(value: Any) -> tuple[list[Any], Any]:
        parts, context = flatten(value)
        return list(zip(keys, parts, strict=True)), context

    torch.utils._pytree.register_pytree_node(
        cls, flatten, unflatten, flatten_with_keys_fn=with_keys, **more
    )


def register_namedtuple(cls: type[Any], name: str) -> None:
    """Let torch save a NamedTuple, which it can flatten anyway, unless somebody has."""
    if cls not in torch.utils._pytree.SUPPORTED_NODES:
        torch.utils._pytree._register_namedtuple(cls, serialized_type_name=name)


def vmap_dispatch(rule: Callable[..., Any], op: Callable[..., Any], args: Any) -> Any:
    """Run a vmap rule for an op at the current functorch level."""
    from torch._functorch.autograd_function import custom_function_call_vmap_helper
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    interpreter: Any = retrieve_current_functorch_interpreter()
    return custom_function_call_vmap_helper(interpreter, rule, op, *args)


def backend_key(device_type: str) -> str:
    return str(torch._C._dispatch_key_for_device(device_type))


def autocast_key(device_type: str) -> str:
    return "Autocast" + backend_key(device_type)


def without_key(key: str) -> Any:
    """A context in which a dispatch key is skipped."""
    return torch._C._ExcludeDispatchKeyGuard(_keyset(key))


def python_kernel(overload: Any, key: str, kernel: Callable[..., Any]) -> None:
    """Give the Python dispatcher, which tracing uses, the same kernel as the C++ one."""
    dispatch_key = getattr(torch._C.DispatchKey, key)
    overload.py_kernels.pop(dispatch_key, None)
    overload.py_impl(dispatch_key)(kernel)


_WATCHED = "opforge_watched"
Overwritten = Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]


def let_be_overwritten(tensors: Iterable[torch.Tensor], stand_in: Overwritten) -> None:
    """Do not raise in this trace where going back from tensors needs what was written since.

    What `stand_in` makes of the gradients that come there, and of the saved tensor, is used then.
    """
    nodes: list[Any] = [tensor.grad_fn for tensor in tensors]
    while nodes:
        node = nodes.pop()
        if node is None or _WATCHED in node.metadata:
            continue
        node.metadata[_WATCHED] = True
        found = [s for s in _saved_by(node) if s is not None and _is_functional(s.data)]
        if found:
            _watch(node, found, stand_in)
        nodes += [before for before, _ in node.next_functions]


def _watch(node: Any, found: list[Any], stand_in: Overwritten) -> None:
    grads: list[torch.Tensor] = []

    def before(arriving: Any) -> None:
        grads[:] = [grad for grad in arriving if grad is not None]

    def pack(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        return tensor, write_count(tensor)

    def unpack(packed: tuple[torch.Tensor, int]) -> torch.Tensor:
        tensor, count = packed
        return tensor if write_count(tensor) == count else stand_in(grads, tensor)

    node.register_prehook(before)
    for saved in found:
        saved.register_hooks(pack, unpack)


def _is_functional(value: Any) -> bool:
    return isinstance(value, FunctionalTensor)


def _saved_by(node: Any) -> Iterator[Any]:
    # torch 2.13: `_raw_saved_self` and the like, each one object or a tuple of them;
    # `_raw_saved_tensors` of a Function.
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            found = getattr(node, name)
            yield from found if isinstance(found, (tuple, list)) else (found,)
