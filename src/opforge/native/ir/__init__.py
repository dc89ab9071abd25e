"""The records that every room of native shares; they need neither torch nor Triton."""
