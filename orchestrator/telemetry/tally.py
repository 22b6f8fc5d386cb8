"""Count the lines that a log wrote and dropped: updated at each write, read at a scrape."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.telemetry.scraped import LEVELS


@dataclass(slots=True, eq=False)
class LineCounts:
    """Counts of one log, or of one writer."""

    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0))
    """Level -> lines."""
    dropped: int = 0
