"""Attempts of requests and times of calls in the records: every attempt, every wait, every call, numbers only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator import Agent, Limits, LLMError, MemoryJournal, RetryPolicy, ToolResult, tool
from orchestrator.kernel.journal import Record
from orchestrator.llm.message import Request, Response, Usage
from orchestrator.providers.fallback import Fallback
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.testing import FakeClock, ScriptedLLM
from tests.with_runtime import with_runtime

RETRY = RetryPolicy(attempts=3, base=2.0, jitter=0.0)
BUSY = LLMError("secret text of the provider", kind="server_error")


class Slow:
    """A model that takes so many seconds for each item of its script."""

    def __init__(self, clock: FakeClock, *script: Any, seconds: float = 1.5, model: str = "slow") -> None:
        self.model = model
        self.provider = "test"
        self.double = True
        self._clock, self._script, self._seconds = clock, list(script), seconds

    async def complete(self, request: Request) -> Response:
        del request
        await self._clock.sleep(self._seconds)
        said = self._script.pop(0)
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, Response) else Response(str(said), usage=Usage(1, 1))


async def records_after(llm: Any, **options: Any) -> Sequence[Record]:
    journal = MemoryJournal()
    agent = Agent(llm, **with_runtime(journal=journal, observers=(), **{"retry": RETRY, **options}))
    await agent.run("go", run_id="r")
    return await journal.load("r")


def attempts(records: Sequence[Record], kind: str) -> list[Any]:
    return [
        record.body["attempts"] for record in records if record.kind == kind and "attempts" in record.body
    ]


async def test_the_answer_has_every_attempt_with_its_start_duration_kind_and_wait() -> None:
    clock = FakeClock(auto=True)
    start = clock.time()
    records = await records_after(Slow(clock, BUSY, BUSY, "done"), clock=clock)
    assert attempts(records, "answer") == [
        [[start, 1.5, "server_error", 2.0], [start + 3.5, 1.5, "server_error", 4.0], [start + 9.0, 1.5]]
    ]
    assert attempts(records, "transition") == []


async def test_the_record_of_the_failure_has_the_attempts_if_all_failed() -> None:
    clock = FakeClock(auto=True)
    start = clock.time()
    records = await records_after(Slow(clock, BUSY, BUSY, BUSY), clock=clock)
    [rows] = attempts(records, "transition")
    assert rows == [
        [start, 1.5, "server_error", 2.0],
        [start + 3.5, 1.5, "server_error", 4.0],
        [start + 9.0, 1.5, "server_error"],
    ]
    [failed] = [one.body for one in records if one.kind == "transition" and "attempts" in one.body]
    assert failed["event"] == "failure"
    assert "error" in failed
    assert "secret" not in str(rows)


async def test_each_attempt_of_a_fallback_names_its_model() -> None:
    clock = FakeClock(auto=True)
    models = [Slow(clock, BUSY, model="first"), Slow(clock, "done", model="second")]
    [rows] = attempts(await records_after(Fallback(models, clock=clock), clock=clock), "answer")
    assert [(row[2], row[4]) for row in rows] == [("server_error", "first"), ("", "second")]


async def test_an_interrupted_attempt_is_recorded_without_those_before_it() -> None:
    clock = FakeClock(auto=True)
    llm = Slow(clock, BUSY, "never", seconds=30.0)
    records = await records_after(llm, clock=clock, limits=Limits(max_seconds=50.0))
    rows = [row for found in attempts(records, "transition") for row in found]
    assert [row[1:3] for row in rows] == [[30.0, "server_error"], [30.0, "timeout"]]


async def test_an_answer_without_usage_is_marked_and_one_with_usage_is_not() -> None:
    records = await records_after(Slow(FakeClock(auto=True), Response("done")))
    assert [one.body.get("unreported") for one in records if one.kind == "answer"] == [True]
    records = await records_after(Slow(FakeClock(auto=True), Response("done", usage=Usage(3, 1))))
    assert [one.body.get("unreported") for one in records if one.kind == "answer"] == [None]


# ---- calls ----


async def test_every_result_of_a_call_has_its_start_its_duration_and_its_wait_for_a_slot() -> None:
    clock = FakeClock(auto=True)
    start = clock.time()

    async def slow(seconds: float) -> str:
        await clock.sleep(seconds)
        return "done"

    async def fails() -> str:
        await clock.sleep(1.0)
        raise ValueError("no")

    class Denying:
        async def before_tool_execution(self, run: Any, one: Any) -> ToolResult | None:
            del run
            return ToolResult.denied(one, "not today") if "9.0" in one.arguments else None

    answers: list[Any] = [
        [call("slow", seconds=2.0), call("slow", seconds=0.5)],
        call("fails"),
        call("slow", seconds=9.0),
        call("novel"),
        "done",
    ]
    records = await records_after(
        ScriptedLLM(answers),
        tools=[slow, fails],
        hooks=[Denying()],
        limits=Limits(max_concurrent_tools=1),
        clock=clock,
    )
    done = [one.body for one in records if one.kind == "done"]
    assert [(one["outcome"], one["at"] - start, one["seconds"], one.get("queued")) for one in done] == [
        ("ok", 0.0, 2.0, None),
        ("ok", 2.0, 0.5, 2.0),
        ("error", 2.5, 1.0, None),
        ("denied", 3.5, 0.0, None),
        ("error", 3.5, 0.0, None),
    ]


@pytest.mark.parametrize(("calls", "waiting"), [(1, 0), (2, 0), (2, 1)])
async def test_a_call_that_a_cancellation_interrupts_has_its_times(calls: int, waiting: int) -> None:
    clock = FakeClock()
    started = asyncio.Event()
    start = clock.time()

    async def hangs(n: int) -> str:
        if n == calls:
            started.set()
        await asyncio.Event().wait()
        return ""

    journal = MemoryJournal()
    answer = [call("hangs", n=n + 1) for n in range(calls + waiting)]
    agent = Agent(
        ScriptedLLM([answer]),
        tools=[hangs],
        limits=Limits(max_concurrent_tools=calls),
        runtime=Runtime(journal=journal, observers=(), clock=clock),
    )
    running = asyncio.ensure_future(agent.run("go", run_id="r"))
    await started.wait()
    await clock.advance(4.0)
    await agent.cancel("r")
    assert (await running).outcome == "cancelled"
    done = [one.body for one in await journal.load("r") if one.kind == "done"]
    assert [(one["outcome"], one["at"], one["seconds"]) for one in done] == [
        *[("cancelled", start, 4.0)] * calls,
        *[("cancelled", start + 4.0, 0.0)] * waiting,
    ]


async def test_the_result_of_a_call_is_recorded_while_another_one_still_runs() -> None:
    journal = MemoryJournal()

    @tool(effect="irreversible")
    async def sends() -> str:
        return "sent"

    async def waits() -> str:
        while not any(one.kind == "done" for one in await journal.load("r")):  # noqa: ASYNC110
            await asyncio.sleep(0)
        return "done"

    runtime = Runtime(journal=journal, observers=())
    agent = Agent(
        ScriptedLLM([[call("sends"), call("waits")], "done"]), tools=[sends, waits], runtime=runtime
    )
    assert (await asyncio.wait_for(agent.run("go", run_id="r"), 60)).output == "done"


async def test_a_model_that_answers_at_once_has_one_attempt() -> None:
    records = await records_after(FunctionLLM(lambda _: "done"))
    [[row]] = attempts(records, "answer")
    assert len(row) == 2
