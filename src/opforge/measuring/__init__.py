"""`opforge tune`: every configuration of every autotuned kernel, measured into a table."""
