"""Tuning tables: configurations of autotuned kernels, measured in advance and shipped."""
