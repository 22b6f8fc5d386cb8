"""Time that passes at once, for limits that run by the clock of the system.

A limit that really passes is either so short that a busy machine reaches it too early, or the test is slow.
"""

from __future__ import annotations

import time

import pytest


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the monotonic clock, and with it the timers of event loops, from now to the end of the test."""
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + seconds)
