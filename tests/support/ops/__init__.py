"""Shared by the tests of the operators in ops/."""
