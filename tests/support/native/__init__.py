"""Operators, programs and kernels that the tests of opforge.native share."""
