"""Arithmetic on sizes that are names, and the values that lead down every path."""
