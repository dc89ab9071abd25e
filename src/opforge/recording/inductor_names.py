"""Names for compiled graphs; programs that serve import nothing more of this room."""

# Where kernels of compiled graphs are listed, in place of a module.
MODULE = "torch.compile"
LOCATION = "printed by Inductor"
# What is watched, once a program has imported it.
HEURISTICS = "torch._inductor.runtime.triton_heuristics"
COMPILING = "torch._inductor.async_compile"
