"""Images without code, for libraries whose kernels the stand-in driver interprets.

Compiling takes most of the time of a build. One variant of each kernel is compiled, and all are
lowered to Triton's text, where an author's mistakes show, but for those that differ from another
only in what is divisible by 16: nothing fails for that. For AMD's GPUs one of each kernel's lists
of arguments is compiled, because they are read from the objects, and only those are lowered: the
texts hardly differ from NVIDIA's. Images of different variants differ.
"""

import dataclasses
import hashlib
import re
from concurrent.futures import Executor, Future

from opforge._compat import compiling, tma
from opforge.native.kernels import workers

# Bytes of an ELF file's header that mean nothing.
PADDING = slice(9, 16)


class Uncompiled(Executor):
    """Answers the compiler's jobs, where it is entered and given to a build with `cache=None`."""

    def __init__(self):
        self.compiled, self.lowered = {}, {}

    def __enter__(self):
        self.triton = compiling.lower
        compiling.lower = self.lower
        return self

    def shutdown(self, **_):
        compiling.lower = self.triton

    def lower(self, variant, **given):
        like = kinds_of(variant) if variant.arch.is_amd else (variant.signature, variant.constants)
        key = (variant.fn, variant.arch, repr(like), tuple(sorted(variant.options.items())))
        if key in self.lowered:
            other = self.lowered[key]
            return dataclasses.replace(other, text=f"{other.text}// {variant}\n")
        self.lowered[key] = self.triton(variant, **given)
        return self.lowered[key]

    def submit(self, compile_, job):
        head = re.search(r"tt\.func public @(\w+)\((.*)\) attributes", job.text)
        function = head[1]
        key = (job.arch, function)
        if job.arch.is_amd:
            key += (tuple(map(size_of, re.findall(r"%\w+: ([^ ,)]+)", head[2]))), job.options)
        done = Future()
        if key not in self.compiled:
            self.compiled[key] = compile_(job)
            done.set_result(self.compiled[key])
        elif job.arch.is_amd:
            done.set_result(marked(self.compiled[key], job))
        else:
            done.set_result(image_of(job, function))
        return done


def kinds_of(variant):
    passed = (t for n, t in variant.signature.items() if n not in variant.constants)
    return ["pointer" if t.startswith("*") else t for t in passed]


def size_of(kind):
    return "pointer" if kind.startswith("!tt.ptr") else kind


def marked(made, job):
    """The compiled image of another variant, told apart from it."""
    content = bytearray(made.cubin)
    content[PADDING] = hashlib.sha256(job.text.encode()).digest()[: PADDING.stop - PADDING.start]
    return dataclasses.replace(made, cubin=bytes(content))


def image_of(job, function):
    given = dict(job.options)
    return compiling.CompiledJob(
        # As tests/support/ptxas.sh writes them.
        cubin=f"// {hashlib.sha256(job.text.encode()).hexdigest()}".encode(),
        ptx="",
        function=function,
        num_warps=given.get("num_warps", 4),
        shared=0,
        global_scratch_size=0,
        global_scratch_align=1,
        profile_scratch_size=0,
        num_ctas=given.get("num_ctas", 1),
        cooperative=bool(given.get("launch_cooperative_grid")),
        pdl=bool(given.get("launch_pdl")),
        maps=(),
        descriptor_flags=tma.flags(),
    )


def install():
    """Instead of the workers of every build of this process."""
    workers.start_pool = lambda _: Uncompiled()
