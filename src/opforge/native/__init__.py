"""From operators to a C library: declare what callers may pass, then build."""
