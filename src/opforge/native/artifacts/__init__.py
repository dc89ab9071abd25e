"""Writes a build to disk: compiled, complete, and with a record for the next build."""
