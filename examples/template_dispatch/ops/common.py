"""What operators on matrices and vectors of any strides share."""

import triton
import triton.language as tl


@triton.jit
def offset(at, columns, row_step, column_step):
    """Where the element of a number lies, row after row; in 64 bits, as strides may need them."""
    row = (at // columns).to(tl.int64)
    return row * row_step + at % columns * column_step


def steps(x):
    """A tensor's strides; a vector is a matrix of one row."""
    return (0,) * (2 - x.dim()) + tuple(x.stride())
