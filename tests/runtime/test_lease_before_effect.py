"""Before a tool runs, the lease of its run is confirmed if it was not proved recently."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.errors import Fenced, RunUnknown, StoreDown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.writer import DOUBT
from orchestrator.llm.message import ToolCall
from orchestrator.providers.scripted import call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.testing import FakeClock, ScriptedLLM
from orchestrator.tools.spec import tool
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.runtime.stage import NO_WAIT, until


class Doubtful(MemoryJournal):
    """Counts the reads of heads; `answer` replaces the next answers, a future delays them."""

    at_once = False

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.answer: Exception | asyncio.Future[None] | None = None

    async def head(self, run_id: str) -> RunHead:
        self.reads += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            await self.answer
        return await super().head(run_id)


class Payment:
    """An agent that pays once, `seconds` after its last append."""

    def __init__(self, seconds: float) -> None:
        self.journal, self.clock, self.paid = Doubtful(), FakeClock(), 0
        self.before: Any = lambda: None

        @tool(effect="irreversible")
        async def pay() -> str:
            self.paid += 1
            return "paid"

        class Late:
            async def before_tool_execution(hooks, run: LoopRun, asked: ToolCall) -> None:  # noqa: N805
                await self.clock.advance(seconds)
                await asyncio.sleep(0)
                found = self.before()
                if found is not None:
                    await found
                self.journal.reads = 0

        self.agent = Agent(
            ScriptedLLM([call("pay"), "done"]),
            tools=[pay],
            hooks=[Late()],
            retry=NO_WAIT,
            runtime=Runtime(journal=self.journal, clock=self.clock, observers=()),
        )


@pytest.mark.parametrize(("seconds", "reads"), [(DOUBT, 0), (DOUBT + 0.01, 1)])
async def test_a_lease_is_confirmed_once_it_is_older_than_the_limit(seconds: float, reads: int) -> None:
    payment = Payment(seconds)
    assert (await payment.agent.run("go", run_id="r")).outcome is Outcome.COMPLETED
    assert payment.paid == 1
    assert (payment.journal.reads > 0) is (reads > 0)


async def test_no_effect_happens_for_a_run_that_another_owner_took() -> None:
    payment = Payment(1.0)
    payment.before = lambda: payment.journal.claim("r", "other", steal=True)
    with pytest.raises(Fenced):
        await payment.agent.run("go", run_id="r")
    assert payment.paid == 0


async def test_no_effect_happens_for_a_run_that_another_owner_ended_and_removed() -> None:
    payment = Payment(1.0)

    def removed() -> None:
        payment.journal.answer = RunUnknown("r")

    payment.before = removed
    with pytest.raises(Fenced):
        await payment.agent.run("go", run_id="r")
    assert payment.paid == 0


async def test_no_effect_happens_while_the_store_cannot_say_who_owns_the_run() -> None:
    payment = Payment(1.0)

    def down() -> None:
        payment.journal.answer = StoreDown("the server does not answer")

    payment.before = down
    result = await payment.agent.run("go", run_id="r")
    assert (result.outcome, payment.paid) == (Outcome.FAILED, 0)


async def test_no_effect_happens_for_a_caller_that_cancels_while_the_lease_is_confirmed() -> None:
    payment = Payment(1.0)
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def delayed() -> None:
        payment.journal.answer = answered

    payment.before = delayed
    task = asyncio.create_task(payment.agent.run("go", run_id="r"))
    await until(lambda: payment.journal.reads > 0 and payment.journal.answer is not None)
    task.cancel()
    await asyncio.sleep(0)
    answered.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert payment.paid == 0
