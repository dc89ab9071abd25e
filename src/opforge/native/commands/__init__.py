"""`opforge build` and `opforge list`: what they were given, and what they print."""
