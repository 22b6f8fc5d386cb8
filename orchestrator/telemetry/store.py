"""How big the files of a journal are, for `Metrics.measure_store`."""

from __future__ import annotations

import os
from pathlib import Path

_BESIDE = ("", "-wal", "-shm")
_BLOBS = "-blobs"


def file_bytes(path: Path) -> int:
    """Return the bytes of an SQLite journal with what lies beside it; 0 for what is not there (yet).

    Never opens it, so a store that hangs does not hang a scrape.
    """
    total = sum(_size(f"{path}{end}") for end in _BESIDE)
    try:
        with os.scandir(f"{path}{_BLOBS}") as entries:
            return total + sum(_size(entry.path) for entry in entries)
    except OSError:
        return total


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
