"""What an autotuner chose; apart from other records, because programs that serve read no others."""

from __future__ import annotations

from typing import Any, NamedTuple


class RecordedChoice(NamedTuple):
    """The configuration that an autotuner chose for a key, `{"n": 4096}`."""

    key: tuple[tuple[str, Any], ...]
    dtypes: tuple[str, ...]
    config: tuple[tuple[str, Any], ...]
    arch: str
