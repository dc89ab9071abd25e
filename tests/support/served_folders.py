"""Folders of served kernels on the stand-in driver, whose kernels Triton's interpreter runs."""

from triton.runtime.interpreter import InterpretedFunction

from opforge.serving.manifest import read
from support.standin.interpreter import Interpreter


def interpret(standin, folder, *kernels):
    """Let the stand-in run what a folder has of these jitted functions."""
    jitted = {kernel.fn.__qualname__: kernel for kernel in kernels}
    interpret_all(standin, folder, lambda function: jitted.get(function.name))


def interpret_all(standin, folder, jitted_of):
    """The same of those functions that `jitted_of` knows."""
    manifest, kernels = read(folder), {}
    for function in manifest.functions:
        fn = jitted_of(function)
        if fn is not None:
            interpreted = InterpretedFunction(fn.fn)
            keys = {v.kernel for instance in function.instances for v in instance.variants}
            kernels |= dict.fromkeys(keys, interpreted)
    standin.execute = Interpreter(manifest.content, kernels)
