"""The C extension that serves launches, and how it is compiled."""
