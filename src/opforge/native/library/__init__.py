"""A built library, found, opened and called with ctypes."""
