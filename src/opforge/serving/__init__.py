"""Launches of Triton kernels from images that were built before, without Triton's compiler."""
