"""What the figures were taken on: processor, cores, system, Python, and how long the disk takes to sync."""

from __future__ import annotations

import os
import platform
import re
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.journal.sqlite.place import file_system


def about(disk: Path) -> dict[str, object]:
    """Describe the machine, as a reader of the figures needs it."""
    spans = sync_ms(disk)
    return {
        "taken": datetime.now(UTC).date().isoformat(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "file_system": file_system(disk) or "unknown",
        "sync_ms": {"median": statistics.median(spans), "low": min(spans), "high": max(spans)},
    }


def processor() -> str:
    """Return the name of the processor, as far as the system tells."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        told = ""
    found = re.search(r"^model name\s*: (.+)$", told, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def sync_ms(disk: Path, times: int = 50) -> list[float]:
    """Return the milliseconds that this disk takes to write 4 KiB and sync: what a commit costs at least."""
    spans = []
    with tempfile.TemporaryFile(dir=disk, buffering=0) as file:
        for _ in range(times):
            started = time.perf_counter()
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())
            spans.append((time.perf_counter() - started) * 1e3)
    return spans
