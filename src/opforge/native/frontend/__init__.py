"""Reads declarations, checks them against the op, and expands them into cases."""
