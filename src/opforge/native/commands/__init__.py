"""`opforge build` and `opforge list`: their arguments and their output."""
