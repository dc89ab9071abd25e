"""torch's compilers and Triton's interpreter without work that has no effect in tests."""

import dataclasses
import functools
import inspect
import sys


def quicken_interpreter():
    """Keep Triton's interpreter from doing the same work for every operation.

    It looks through the whole language for functions to replace at every call of a kernel or of a
    function in one, a third of the time that small kernels take; computes for each sum whether it
    overflows, and does not say so; makes a table of all dtypes to look up one; and describes the
    shape of every value anew, a fifth of the time.
    """
    from triton.runtime import interpreter  # noqa: PLC0415

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


def quicken_compiler():
    """Keep torch's compilers, where they are imported, from what costs tests the most.

    Dynamo measures what it compiles, and flushes the caches of the processor before, which takes
    30 ms and slows down the others. An export lists torch's own ops once per namespace that was
    ever there, of which a worker has hundreds: 3 s per decomposition.
    """
    if guards := sys.modules.get("torch._dynamo.guards"):
        guards.profile_guard_manager = lambda *_: 0.0
    if export := sys.modules.get("torch._export.utils"):
        listed = export._materialize_cpp_cia_ops
        if not hasattr(listed, "cache_clear"):
            export._materialize_cpp_cia_ops = functools.cache(listed)
