"""Runs a body on symbolic sizes, and turns what it did into a case's paths and kernels."""
