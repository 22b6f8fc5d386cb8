"""A turn takes at most so many calls, in so many files."""

from __future__ import annotations

import pytest

from orchestrator.kernel.purity import CHECK_PURITY
from tests.benchmarks.turn_calls import LIMITS, table, turn_calls


@pytest.mark.parametrize("contestant", LIMITS)
def test_a_turn_takes_no_more_calls_and_files_than_the_limit(
    contestant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECK_PURITY, "0")  # the checks of the test run are no part of a turn
    calls = turn_calls(contestant)
    most_calls, most_files = LIMITS[contestant]
    assert sum(calls.values()) <= most_calls, table(calls)
    assert len(calls) <= most_files, table(calls)
