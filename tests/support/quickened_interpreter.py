"""Triton's interpreter without work that has no effect in tests."""

import dataclasses
import functools
import inspect


@functools.cache
def quicken_interpreter():
    """Keep Triton's interpreter from doing the same work for every operation.

    It looks through the whole language for functions to replace at every call of a kernel or of a
    function in one, a third of the time that small kernels take; computes for each sum whether it
    overflows, and does not say so; makes a table of all dtypes to look up one; describes the shape
    of every value anew, a fifth of the time; and decides for every sum how its operands are
    converted, a quarter of what is left.
    """
    from triton.runtime import interpreter  # noqa: PLC0415

    from opforge._compat.interpreter import mend  # noqa: PLC0415

    mend()
    builder, tl = interpreter.interpreter_builder, interpreter.tl
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    find_dtype, dtypes = interpreter._get_np_dtype, {}

    def np_dtype(dtype):
        element = dtype.scalar
        if isinstance(element, tl.pointer_type):
            return find_dtype(element)
        if element.name not in dtypes:
            dtypes[element.name] = find_dtype(element)
        return dtypes[element.name]

    interpreter._get_np_dtype = np_dtype
    _replace_language_once(interpreter, tl)
    _describe_shapes_once(tl.core)
    _pass_semantic(interpreter)
    _Operands(interpreter, tl.core)
    _hold_arrays(interpreter, tl)
    _unwrap_by_type(tl.core)


def _replace_language_once(interpreter, tl):
    """Replace functions of the language when a kernel starts, not when it calls a function."""
    replaced = {}
    is_builtin = tl.core.is_builtin

    def patch_builtin(package, *rest):
        if package not in replaced:
            members = inspect.getmembers(package)
            replaced[package] = [name for name, member in members if is_builtin(member)]
        for name in replaced[package]:
            member = getattr(package, name)
            # Of two modules of the language the first has replaced what both have.
            if is_builtin(member):
                interpreter._patch_attr(package, name, member, *rest)

    patch_lang, seen, languages = interpreter._patch_lang, set(), {}

    class Scope(interpreter._LangPatchScope):
        def restore(self):
            super().restore()
            seen.clear()

    def patch_language(fn):
        if fn not in languages:
            values = [v for v in fn.__globals__.values() if inspect.ismodule(v)]
            languages[fn] = {v.__name__ for v in values if v in (tl, tl.core)}
        # A function in a kernel may see a module that the kernel does not.
        if seen and languages[fn] <= seen:
            return None
        seen.update(languages[fn])
        return patch_lang(fn)

    interpreter._patch_builtin = patch_builtin
    interpreter._LangPatchScope = Scope
    interpreter._patch_lang = patch_language


def _describe_shapes_once(core):
    """Keep what block types of one kind, and tensors of one type, have in common."""
    init_block, init_tensor = core.block_type.__init__, core.tensor.__init__
    blocks, scalars = {}, {}

    def block(self, element_ty, shape):
        lengths = tuple(getattr(length, "value", length) for length in shape)
        key = element_ty.name, getattr(element_ty, "address_space", None), lengths
        if key not in blocks:
            init_block(self, element_ty, shape)
            blocks[key] = {**self.__dict__, "of_tensors": {}}
        self.__dict__.update(blocks[key])

    def tensor(self, handle, type):  # noqa: A002  # as Triton has it
        kept = type.of_tensors if isinstance(type, core.block_type) else scalars
        if not kept:
            init_tensor(self, handle, type)
            kept.update(shape=self.shape, numel=self.numel)
        self.__dict__.update(kept, handle=handle, type=type, dtype=type.scalar)

    core.block_type.__init__ = block
    core.tensor.__init__ = tensor


def _unwrap_by_type(core):
    unwrap, plain = core._unwrap_if_constexpr, {core.tensor, core.dtype, int, float, bool}

    def quick(value):
        kind = type(value)
        if kind in plain:
            return value
        return value.value if kind is core.constexpr else unwrap(value)

    core._unwrap_if_constexpr = quick


def _pass_semantic(interpreter):
    """Pass the semantic to functions of the language without a look at their other arguments."""
    semantic = interpreter.interpreter_semantic

    def patch_attribute(owner, name, member, _, scope):
        inner = getattr(member, "__wrapped__", member)

        def call(*args, **kwargs):
            kwargs["_semantic"] = semantic
            return inner(*args, **kwargs)

        scope.set_attr(owner, name, call)

    interpreter._patch_attr = patch_attribute


class _Operands:
    """Decides once for each two types, or a type and a number, what becomes of operands."""

    def __init__(self, interpreter, core):
        self.interpreter, self.core = interpreter, core
        # An object of its own: the compiler's is of the same class, and makes code of casts.
        semantic = interpreter.interpreter_semantic
        self.ask, self.slow_cast = semantic.binary_op_type_checking_impl, semantic.cast
        self.plans = {}
        semantic.binary_op_type_checking_impl, semantic.cast = self.convert, self.cast

    def convert(self, lhs, rhs, *rules, **named):
        key = (self._key(lhs), self._key(rhs), *rules, *named.items())
        if key not in self.plans:
            found = self.ask(lhs, rhs, *rules, **named)
            self.plans[key] = (self._plan(lhs, found[0]), self._plan(rhs, found[1]))
            return found
        left, right = self.plans[key]
        return left(lhs), right(rhs)

    def cast(self, value, into, *rounding, **named):
        if value.type.scalar is into.scalar:
            return value
        return self.slow_cast(value, into, *rounding, **named)

    def _key(self, operand):
        if isinstance(operand, self.core.tensor):
            return operand.type.name
        # 0.0 and -0.0 are equal, as are 1 and True, and not the same.
        return type(operand), repr(operand)

    def _plan(self, given, made):
        if not isinstance(given, self.core.tensor):
            made.handle.data.flags.writeable = False
            return lambda _: made
        if made is given:
            return lambda value: value
        into = made.type
        if not into.is_block() or given.shape == made.shape:
            return lambda value: self.cast(value, into)
        is_block, shape = given.type.is_block(), made.handle.data.shape
        return lambda value: self._spread(self.cast(value, into.scalar), is_block, shape, into)

    def _spread(self, value, is_block, shape, into):
        old, np = value.handle, self.interpreter.np
        if is_block:
            data = np.broadcast_to(old.data, shape)
        else:
            data = np.full(shape, old.data, self.interpreter._get_np_dtype(old.dtype))
        return self.core.tensor(self.interpreter.TensorHandle(data, old.dtype.scalar), into)


def _hold_arrays(interpreter, tl):
    """Look at an array's size without a call for each part of the question."""
    handle, pointer = interpreter.TensorHandle, tl.pointer_type
    check = handle.__post_init__

    def init(self, data, dtype, attr=None):
        self.data, self.dtype = data, dtype
        self.attr = {} if attr is None else attr
        if not isinstance(dtype, pointer) and data.itemsize * 8 > dtype.primitive_bitwidth:
            check(self)

    handle.__init__ = init
