"""Folders of served kernels on the stand-in driver, whose kernels Triton's interpreter runs."""

import hashlib

from triton.runtime.interpreter import InterpretedFunction

from opforge.serving.manifest import read
from support.standin.interpreter import Interpreter


def interpret(standin, folder, *kernels):
    """Let the stand-in run what a folder has of these jitted functions."""
    jitted = {kernel.fn.__qualname__: kernel for kernel in kernels}
    interpret_all(standin, folder, lambda kernel: jitted.get(kernel.name))


def interpret_all(standin, folder, jitted_of):
    """The same of those kernels that `jitted_of` knows a function of."""
    kernels, functions = [], {}
    for kernel in read(folder).kernels:
        fn = jitted_of(kernel)
        if fn is None:
            continue
        functions[kernel.source] = InterpretedFunction(fn.fn)
        names = [param.name for param in fn.params if not param.is_constexpr]
        kernels += [
            _described(folder, kernel, names, instance, variant)
            for instance in kernel.instances
            for variant in instance.variants
        ]
    standin.execute = Interpreter({"kernels": kernels}, functions)


def _described(folder, kernel, names, instance, variant):
    """A variant as the manifest of a library has it."""
    types = dict(zip(names, variant.types, strict=True))
    kinds = dict(zip(names, instance.kinds, strict=True))
    fixed = {n: {"1": "1", "none": "None"}[t] for n, t in types.items() if t in {"1", "none"}}
    passed = [n for n in names if n not in fixed]
    return {
        "key": kernel.source,
        "name": kernel.name,
        "constants": {n: repr(v) for n, v in instance.constants} | fixed,
        # A number has its type in the variant.
        "types": [kinds[n] if kinds[n][0] in "*t" else types[n].partition(":")[0] for n in passed],
        "images": [
            {
                "sha256": hashlib.sha256((folder / image.file).read_bytes()).hexdigest(),
                "ptx_sha256": "",
                "arch": str(image.arch),
                "maps": image.maps,
                "descriptor_flags": image.descriptor_flags,
            }
            for image in variant.images
        ],
    }
