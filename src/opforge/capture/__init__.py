"""While a body is traced, takes its kernel launches: into the graph, or wherever a router says.

A body that runs on fake tensors must not launch anything, and one that runs under
functionalization must leave its launches as nodes. Both hold for every kernel that the body
reaches, however it reaches it: launches are taken where Triton makes them, not where the body
writes them.
"""

from .absent_gpu import cpu_refusal
from .graph import Capture, capture
from .router import LaunchRouter, correct_launch, is_refused_launch

__all__ = [
    "Capture",
    "LaunchRouter",
    "capture",
    "correct_launch",
    "cpu_refusal",
    "is_refused_launch",
]
