"""Images without code, for libraries whose kernels the stand-in driver interprets.

Compiling takes most of the time of a build. Every variant is lowered to Triton's text, where an
author's mistakes show, and one of each kernel is compiled. Images of different variants differ.
"""

import hashlib
import re
from concurrent.futures import Executor, Future

from opforge._compat import compiling, tma


class Uncompiled(Executor):
    """Answers the compiler's jobs, for `native.build(..., executor=Uncompiled(), cache=None)`."""

    def __init__(self):
        self.compiled = set()

    def submit(self, compile_, job):
        function = re.search(r"tt\.func public @(\w+)", job.text)[1]
        done = Future()
        done.set_result(image_of(job, function) if function in self.compiled else compile_(job))
        self.compiled.add(function)
        return done


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
