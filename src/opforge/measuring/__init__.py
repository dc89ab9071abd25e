"""`opforge tune`: measures every configuration of every autotuned kernel into a tuning table."""
