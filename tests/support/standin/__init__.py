"""A CUDA driver on host memory, and calls of native libraries from Python.

Nothing is imported here: the driver alone works without Triton.
"""
