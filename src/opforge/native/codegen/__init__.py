"""A library's sources, from its program: records in, text out."""

from .library import sources

__all__ = ["sources"]
