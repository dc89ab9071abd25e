"""A library's sources, from its program: records in, text out."""

from .sources import sources

__all__ = ["sources"]
