"""Makes a contestant's process count its syncs."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.preload import preloading

_SOURCE = Path(__file__).with_name("syncs.c")


@functools.cache
def counts_syncs() -> dict[str, str]:
    """Return the environment in which a process counts its syncs; empty where no C compiler can make the counter."""
    if not sys.platform.startswith("linux"):
        return {}
    built = Path(_folder().name, "syncs.so")
    try:
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", "-o", built, _SOURCE, "-ldl"], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    return preloading(built)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is there as long as this process."""
    return tempfile.TemporaryDirectory(prefix="bench-syncs-")
