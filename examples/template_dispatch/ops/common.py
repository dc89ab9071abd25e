"""Shared by operators on matrices and vectors of any strides."""

import triton
import triton.language as tl


@triton.jit
def offset(at, columns, row_stride, column_stride):
    """The offset of element number `at`, counted row by row; strides may need 64 bits."""
    row = (at // columns).to(tl.int64)
    return row * row_stride + at % columns * column_stride


def strides(x):
    """A tensor's strides; a vector is a matrix of one row."""
    return (0,) * (2 - x.dim()) + tuple(x.stride())
