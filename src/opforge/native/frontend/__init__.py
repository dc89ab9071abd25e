"""Declarations, read and checked against an op, and multiplied out into cases."""
