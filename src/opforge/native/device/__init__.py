"""Triton code that opforge brings: what runs on the GPU for torch calls of a body."""
