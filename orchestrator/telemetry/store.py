"""Measure the files of a journal, for `Metrics.measure_store`."""

from __future__ import annotations

import os
from pathlib import Path

_BESIDE = ("", "-wal", "-shm")
_BLOBS = "-blobs"


def file_bytes(path: Path) -> int:
    """Return the bytes of an SQLite journal with the files beside it; 0 for missing files.

    It never opens the journal, so a store that hangs does not block a scrape.
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
