"""What a waiting run keeps: a small number of runs shows it, because bytes and objects do not depend on the machine."""

from __future__ import annotations

import asyncio

import pytest

from tests.benchmarks import evicted_runs, waiting_runs


@pytest.mark.campaign
@pytest.mark.canary("bare")
@pytest.mark.parametrize("case", waiting_runs.CASES)
def test_a_waiting_run_keeps_no_more_than_its_limit(case: str) -> None:
    kept = asyncio.run(waiting_runs.measured(case, runs=100))
    kib, tracked = waiting_runs.LIMITS[case]
    assert kept.bytes / 1024 <= kib, kept.rows[:10]
    assert kept.tracked <= tracked, kept.rows[:10]


def test_two_hundred_callers_wait_for_evicted_runs_and_each_answer_reaches_its_own(seed: int) -> None:
    found = asyncio.run(evicted_runs.measured(200, 20, seed))
    assert (found.evicted, found.answered) == (200, 20)
