"""Whether the machine is quiet enough for figures that others will read: results of a busy machine are not written."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

SAMPLE_S: Final = 2.0
"""Seconds of the look before the first figure."""
MOST_BEFORE: Final = 0.10
"""Cores that other processes may use in that time, on average."""
MOST_MEANWHILE: Final = 0.15
"""The same while the figures are taken: the system itself works for them, too."""
STAT: Final = Path("/proc/stat")


class Moment(NamedTuple):
    """Processor seconds since the start of the system, by all processes and by this one with its ended children."""

    at: float
    all: float
    own: float


def now() -> Moment:
    """Return the counters of this moment. Raises OSError where the system has no /proc/stat."""
    user, nice, system, _idle, _waits, irq, soft, steal, *_ = map(
        int, STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    )
    spent = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Moment(time.monotonic(), spent, sum(one.ru_utime + one.ru_stime for one in used))


class QuietMachine:
    """Compares the load of other processes before and while a benchmark runs.

    Args:
        look: Returns the present counters.
        sleep: Waits so many seconds.
    """

    def __init__(self, look: Callable[[], Moment] = now, sleep: Callable[[float], None] = time.sleep) -> None:
        self._look = look
        self._sleep = sleep
        self._began: Moment | None = None

    def require(self) -> None:
        """Begin. Raises SystemExit if other processes are busy now."""
        try:
            before = self._look()
        except OSError:
            return  # no such counters: a person has to know
        self._sleep(SAMPLE_S)
        others = others_between(before, self._look())
        if others > MOST_BEFORE:
            raise SystemExit(
                f"other processes use {others:.1f} of {os.cpu_count()} cores, and at most {MOST_BEFORE:.1f} are allowed"
                " for results that are written: stop them, or measure without --results and --json"
            )
        self._began = self._look()

    def refusal(self) -> str:
        """Return why the figures since `require` must not be written; "" if they may."""
        if self._began is None:
            return ""
        others = others_between(self._began, self._look())
        if others <= MOST_MEANWHILE:
            return ""
        return (
            f"not written: other processes used {others:.1f} cores while the figures were taken,"
            f" and at most {MOST_MEANWHILE:.2f} are allowed"
        )


def others_between(before: Moment, after: Moment) -> float:
    """Return the cores that other processes used on average between two moments."""
    return max(0.0, (after.all - before.all) - (after.own - before.own)) / max(1e-9, after.at - before.at)
