"""Any number of turns in one run need what one turn needs: a hundred thousand with ORCHESTRATOR_SOAK."""

from __future__ import annotations

import asyncio
import inspect
import tracemalloc
from collections.abc import Callable

import pytest

from orchestrator.kernel.driver import Driver
from orchestrator.telemetry.history import History
from tests.kernel.toy import E, ToyRun, machine, new_run

TURNS = 100_000
TRACED, LOOKED_AT = 12_000, 10_000
"""So many of the last turns. Tracing costs four times the run, so it starts late, and when the look begins all that is
kept has been replaced once."""
KEPT = 1_000
"""Facts and records that observer and journal keep."""


def depth() -> int:
    frame, count = inspect.currentframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


@pytest.mark.campaign
async def test_stack_and_tasks_stay_the_same_and_memory_grows_by_less_than_a_mebibyte(
    campaign: Callable[[int, int], int],
) -> None:
    turns = campaign(20_000, TURNS)
    seen: set[tuple[int, int]] = set()
    held: dict[int, int] = {}

    async def work(run: ToyRun) -> E:
        turn = run.ctx.iteration = run.ctx.iteration + 1
        if turn % 1_000 == 0:
            seen.add((depth(), len(asyncio.all_tasks())))
            if turn == turns - TRACED:
                tracemalloc.start(1)
            if turn in (turns - LOOKED_AT, turns):
                held[turn] = tracemalloc.get_traced_memory()[0]
        return E.DID

    async def check(run: ToyRun) -> E:
        return E.AGAIN if run.ctx.iteration < turns else E.FINISH

    made = machine(enter_work=work, enter_check=check)
    history = History(limit=KEPT)
    run = new_run(made, turns=turns)
    try:
        await Driver(made, observers=(history,), journal=None).drive(run)
    finally:
        tracemalloc.stop()
    assert run.seq == 2 * turns + 1
    assert sum(history.edges.values()) == run.seq
    assert len(seen) == 1
    growth = (held[turns] - held[turns - LOOKED_AT]) * TURNS / LOOKED_AT
    assert growth < 2**20
