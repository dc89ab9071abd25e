"""Kernels, operators and scripts of the tests on a GPU."""
