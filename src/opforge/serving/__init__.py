"""Builds recorded launches ahead, and serves them in place of the JIT."""
