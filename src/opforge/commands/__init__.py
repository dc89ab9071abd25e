"""`opforge build`, `opforge list` and `opforge verify`: their arguments and their output."""
