"""Arithmetic on symbolic sizes, and the search for values that lead down every path."""
