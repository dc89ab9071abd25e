"""Compiles a model or an op into an AOTInductor package and verifies it in a fresh process."""

from .build import package
from .package_record import Package

__all__ = ["Package", "package"]
