"""Kernel variants to cubins: archs, compile workers, the image cache."""
