"""Tuning tables: which configuration an autotuned kernel takes, measured before and shipped."""
