"""Recorded conversations that are part of the library, and runnable examples."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def bundled() -> list[Path]:
    """Return the bundled conversations, JSON lines files, by name.

    They are paths, because the library never runs from an archive: its dependencies have compiled parts.
    """
    folder = Path(str(files(__name__))) / "conversations"
    return sorted(folder.glob("*.jsonl"))
