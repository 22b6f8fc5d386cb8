"""A long run needs no more tasks and no deeper stack than a short one."""

from __future__ import annotations

import asyncio
import sys

from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.providers.scripted import FunctionLLM, call
from tests.runtime.stage import agent

TURNS = 400


async def test_hundreds_of_turns_run_in_one_task_beside_the_callers_and_in_one_depth() -> None:
    tasks: set[int] = set()
    depths: set[int] = set()
    asked = 0

    async def step(n: int) -> str:
        tasks.add(len(asyncio.all_tasks()))
        return "ok"

    def model(request: Request) -> Response:
        nonlocal asked
        asked += 1
        frame, depth = sys._getframe(), 0
        while frame.f_back is not None:
            frame, depth = frame.f_back, depth + 1
        depths.add(depth)
        return Response("done") if asked > TURNS else Response(None, (call("step", n=asked),))

    llm = FunctionLLM(model)
    result = await agent(llm, [step], limits=OFF).run("go")
    assert result.outcome is Outcome.COMPLETED
    assert asked == TURNS + 1
    assert len(result.messages) == 2 * TURNS + 2
    assert tasks == {2}
    assert len(depths) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}
