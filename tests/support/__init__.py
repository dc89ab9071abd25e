"""Shared by several tests and the processes they start."""
