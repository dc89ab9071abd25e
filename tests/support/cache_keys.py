"""What Inductor's cache key covers of an op."""

from torch._inductor.codegen.wrapper import (
    user_defined_triton_kernel_transitive_closure_source_code,
)
from torch._library.triton import triton_ops_to_kernels
from triton.runtime.autotuner import Autotuner


def key_of(name):
    """As torch's AOTAutogradCacheDetails takes the kernels of an op."""
    kernels = triton_ops_to_kernels[name]
    below = [k.fn if isinstance(k, Autotuner) else k for k in kernels]
    return "\n".join(map(user_defined_triton_kernel_transitive_closure_source_code, below))
