"""Mount file systems onto folders; needs root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def mount(point: Path, *arguments: str | Path) -> None:
    """Mount onto a folder. Raises OSError with the reason if that cannot be done here."""
    if os.geteuid() != 0:
        raise PermissionError("mounting needs root")
    done = subprocess.run(["mount", *arguments, point], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"mount is refused: {done.stderr.strip()}")


def unmount(point: Path) -> None:
    """Unmount as soon as nothing uses it."""
    subprocess.run(["umount", "--lazy", point], check=True)
