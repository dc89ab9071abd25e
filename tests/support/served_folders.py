"""Folders of served kernels on the stand-in driver, whose kernels Triton's interpreter runs."""

from triton.runtime.interpreter import InterpretedFunction

from opforge.serving.manifest import read
from support.standin.interpreter import Interpreter


def interpret(standin, folder, *kernels):
    """Let the stand-in run what a folder has of these jitted functions."""
    jitted = {kernel.fn.__qualname__: kernel for kernel in kernels}
    interpreted = {name: InterpretedFunction(kernel.fn) for name, kernel in jitted.items()}
    standin.execute = Interpreter(_as_a_library(folder, jitted), interpreted)


def _as_a_library(folder, jitted):
    """A manifest as the stand-in's interpreter reads it."""
    kernels = []
    for kernel in [one for one in read(folder).kernels if one.name in jitted]:
        for instance in kernel.instances:
            for variant in instance.variants:
                names = [p.name for p in jitted[kernel.name].params if not p.is_constexpr]
                types = dict(zip(names, variant.types, strict=True))
                kinds = dict(zip(names, instance.kinds, strict=True))
                passed = [n for n in names if types[n] not in {"1", "none"}]
                constants = {n: repr(v) for n, v in instance.constants}
                constants |= {n: "None" for n in names if types[n] == "none"}
                constants |= {n: "1" for n in names if types[n] == "1"}
                kernels.append(
                    {
                        "key": "",
                        "name": kernel.name,
                        "constants": constants,
                        "types": [
                            kinds[n] if kinds[n] != "int" else types[n].partition(":")[0]
                            for n in passed
                        ],
                        "images": [
                            {
                                "sha256": i.sha256,
                                "ptx_sha256": "",
                                "arch": str(i.arch),
                                "maps": i.maps,
                                "descriptor_flags": i.descriptor_flags,
                            }
                            for i in variant.images
                        ],
                    }
                )
    return {"kernels": kernels}
