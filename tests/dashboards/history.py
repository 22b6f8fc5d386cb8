"""The past of an agent that works in office hours, as samples that Prometheus reads when it starts.

A test cannot wait for a week. The samples are those that the recording rule would have made; today is Monday, nine
o'clock, so the last day had no tokens, and the last week had five days of office hours.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from tests.dashboards.monitoring import SCALE

TOKENS = "machine_agent:orchestrator_llm_tokens:rate15m"
SERIES = TOKENS + '{job="orchestrator",machine="llm_loop",agent="office"}'
PER_RUN = "machine_agent_version:orchestrator_llm_tokens_per_runs:ratio_rate1h"
RELEASE = PER_RUN + '{job="orchestrator",machine="llm_loop",agent="release",version="1"}'
MONDAY = datetime(2024, 1, 8, 9)  # noqa: DTZ001 - the hour of an office, wherever it is
OPEN, CLOSED = 9, 17
DAYS = 8
"""More than the window of the alert."""
STEP = 15
"""Seconds between two samples."""
UNUSUAL = f"{SERIES} > 3 * avg_over_time({SERIES}[{86_400 // SCALE}s] offset {3600 // SCALE}s)"
"""Three times the mean of a day: true each Monday morning, and for that reason no rule of ours."""


def office_hours(rate: float) -> str:
    """Return the recorded rate of tokens of the agent `office`: `rate` on working days from 9 to 17, else 0."""
    return _text(TOKENS, _samples(rate, time.time()))


def release_before(tokens: float) -> str:
    """Return the recorded tokens of a run of version 1 of the agent `release`, of half a day until six hours ago."""
    now = time.time()
    ages = range(12 * 3600 // SCALE, 6 * 3600 // SCALE, -STEP)
    return _text(PER_RUN, (f"{RELEASE} {tokens} {now - age:.3f}" for age in ages))


def _text(name: str, samples: Iterable[str]) -> str:
    return "\n".join([f"# TYPE {name} gauge", *samples, "# EOF"]) + "\n"


def _samples(rate: float, now: float) -> Iterator[str]:
    for age in range(DAYS * 86_400 // SCALE, STEP, -STEP):
        hour = MONDAY - timedelta(seconds=age * SCALE)
        open_ = hour.weekday() < 5 and OPEN <= hour.hour < CLOSED
        yield f"{SERIES} {rate if open_ else 0} {now - age:.3f}"
