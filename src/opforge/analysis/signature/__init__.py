"""Reads signatures: resolves annotations, builds the parameter tree, parses a given schema."""
