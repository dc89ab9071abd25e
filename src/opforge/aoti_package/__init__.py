"""From a model or an op to an AOTInductor package that was verified in a fresh process."""

from .build import package
from .record import Package

__all__ = ["Package", "package"]
