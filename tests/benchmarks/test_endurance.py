"""The late turns of a run and the late runs of a process cost as much as the early ones, by measures without noise."""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.llm.message import Request, Response
from tests.benchmarks.endurance import ShortLLM, TalkativeLLM, agent, lines, long_run, many_runs
from tests.benchmarks.layers import trace_opcodes

EARLY, LATE, COUNTED, TURNS = 200, 800, 100, 900
"""Turns from which COUNTED turns are counted: about one compaction."""


class CountedLLM(TalkativeLLM):
    """Counts the bytecodes of early and of late turns, and notes the lengths of requests."""

    def __init__(self, turns: int) -> None:
        super().__init__(turns)
        self.counts = {EARLY: 0, LATE: 0}
        self.lengths: list[int] = []
        self._at: int | None = None

    async def complete(self, request: Request) -> Response:
        self.lengths.append(sum(len(message.text) for message in request.messages))
        if self.asked in self.counts:
            self._at = self.asked
            trace_opcodes(self._trace)
        elif self.asked in {EARLY + COUNTED, LATE + COUNTED}:
            sys.settrace(None)
        return await super().complete(request)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and self._at is not None:
            self.counts[self._at] += 1
        return self._trace


@pytest.mark.campaign
@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer counts already")
async def test_late_turns_execute_as_many_bytecodes_as_early_ones() -> None:
    model = CountedLLM(TURNS)
    with tempfile.TemporaryFile(buffering=0) as log:
        result = await agent(model, MemoryJournal(), log).run("go")
    assert result.output == "done"
    early, late = (model.counts[at] / COUNTED for at in (EARLY, LATE))
    print(f"{early:,.0f} bytecodes a turn from turn {EARLY}, {late:,.0f} from turn {LATE}")
    assert early > 5_000
    assert late < 1.05 * early
    assert max(model.lengths[LATE:]) < 1.1 * max(model.lengths[:LATE]), "requests do not grow"


async def test_late_turns_store_as_many_bytes_as_early_ones(
    tmp_path: Path, campaign: Callable[[int, int], int]
) -> None:
    block = campaign(125, 250)
    blocks = await long_run(tmp_path, 4 * block, block)
    print(*lines(blocks, []), sep="\n")
    assert blocks[-1].journal_bytes < 1.1 * blocks[1].journal_bytes
    assert all(block.journal_bytes < 6_000 for block in blocks)


async def test_ended_runs_leave_no_objects_behind() -> None:
    with tempfile.TemporaryFile(buffering=0) as log:
        shared = agent(ShortLLM(), MemoryJournal(ended=20), log)

        async def objects(runs: int) -> int:
            for _ in range(runs):
                assert (await shared.run("go")).output == "done"
            await asyncio.sleep(0)
            gc.collect()
            return len(gc.get_objects())

        await objects(20)
        early, late = await objects(20), await objects(80)
    print(f"{early:,} objects after 40 runs, {late:,} after 120")
    assert late - early < 40, "less than half an object for each run"


async def test_blocks_are_told_in_a_table_each() -> None:
    blocks = await many_runs(200, 100)
    assert [block.until for block in blocks] == [100, 200]
    assert all(block.us > 0 and block.resident_mb > 10 for block in blocks)
    told = list(lines([], blocks))
    assert [line.split()[0] for line in told[-2:]] == ["100", "200"]
