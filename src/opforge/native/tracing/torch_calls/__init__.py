"""torch calls of a body that a library makes itself, as launches of Triton kernels."""
