"""Tuning tables: the measured configuration of each autotuned kernel, as a file that ships."""
