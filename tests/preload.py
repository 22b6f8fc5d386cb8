"""Makes a process load a library of ours before all others, for its system calls to be counted, delayed or cut."""

from __future__ import annotations

import os
from pathlib import Path


def preloading(library: Path) -> dict[str, str]:
    """Return the environment of a process that loads this library first, and so do its children.

    The folder is named apart, because LD_PRELOAD takes no path with a space.
    """
    folders = (str(library.parent), os.environ.get("LD_LIBRARY_PATH", ""))
    return {"LD_PRELOAD": library.name, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}
