"""Kernel discovery: which kernels and operators a function launches, found by reading it."""
