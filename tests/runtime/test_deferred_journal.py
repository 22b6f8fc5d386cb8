"""The journal of an agent that was given none: nothing is encoded until it is read, and then nothing is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Draft, Lease
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.writer import MOST_WAITING
from orchestrator.llm.message import Request, Response
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Orchestrator
from orchestrator.tools.spec import tool
from tests.runtime.stage import agent

CUT = Response("cut o", finish_reason="length")
SCRIPT = [call("look", n=1), "no JSON: asked again", CUT, call("look", n=2), call("look", n=3), "[42]"]


class Counted(MemoryJournal):
    """Counts appends."""

    def __init__(self, *, deferred: bool) -> None:
        super().__init__(deferred=deferred)
        self.appends: list[int] = []

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None) -> None:
        self.appends.append(len(drafts))
        super().append(lease, drafts, blobs)


def look(n: int) -> int:
    return n


async def test_a_run_that_nobody_reads_is_appended_once() -> None:
    appends = {}
    for deferred in (True, False):
        journal = Counted(deferred=deferred)
        result = await agent([call("look", n=1), call("look", n=2), "done"], [look], journal=journal).run(
            "go"
        )
        assert result.outcome is Outcome.COMPLETED
        appends[deferred] = journal.appends
    assert len(appends[True]) == 1
    assert len(appends[False]) > 5


async def test_an_agent_without_a_journal_defers_and_one_with_its_own_does_not() -> None:
    assert getattr(agent(["done"])._journal, "waiting", None) == {}
    assert MemoryJournal().waiting is None


def place_of(run: StoredRun) -> tuple[Any, ...]:
    """What a resume starts from; the seconds differ from run to run, and a result is written whole or by its key."""
    messages = [
        "result" if "done" in message or message["role"] == "tool" else message for message in run.messages
    ]
    context = {name: value for name, value in run.context.items() if name not in {"spent", "deadline"}}
    return run.state, run.next, run.seq, messages, context, {**run.context["spent"], "seconds": 0}


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_read_in_mid_run_finds_the_run_where_an_eager_journal_has_it(at: int) -> None:
    async def found(journal: MemoryJournal) -> list[tuple[Any, ...]]:
        read = []

        async def look(n: int) -> int:
            if n == at:
                read.append(place_of(StoredRun.of("run", await journal.load("run"))))
            return n

        result = await agent(SCRIPT, [look], journal=journal, output_type=list[int]).run("go", run_id="run")
        assert result.outcome is Outcome.COMPLETED
        return [*read, place_of(StoredRun.of("run", await journal.load("run")))]

    assert await found(MemoryJournal(deferred=True)) == await found(MemoryJournal())


@pytest.mark.parametrize("deferred", [True, False])
async def test_a_run_that_is_cancelled_in_a_tool_is_resumed_without_counting_anything_twice(
    deferred: bool,
) -> None:
    begun, effects = asyncio.Event(), []

    def model(request: Request) -> Response:
        turn = sum(message.role == "assistant" for message in request.messages)
        return Response(tool_calls=(call("wait", n=turn),)) if turn < 3 else Response("done")

    @tool(effect="idempotent")
    async def wait(n: int) -> int:
        effects.append(n)
        if len(effects) == 2:
            begun.set()
            await asyncio.Event().wait()
        return n

    runner = Orchestrator(
        FunctionLLM(model), tools=[wait], journal=MemoryJournal(deferred=deferred), observers=()
    )
    task = asyncio.create_task(runner.run("go", run_id="run"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await runner.resume("run")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "done")
    assert effects == [0, 1, 1, 2]
    states = [one.dest for one in result.transitions]
    assert states.count("await_llm") == 4


async def test_records_that_wait_are_bounded() -> None:
    journal = Counted(deferred=True)
    script = [call("look", n=n) for n in range(200)] + ["done"]
    runner = agent(script, [look], journal=journal, limits=Limits(max_iterations=0, max_no_progress=0))
    assert (await runner.run("go")).outcome is Outcome.COMPLETED
    assert len(journal.appends) > 2
    assert max(journal.appends) <= MOST_WAITING + 16


async def test_a_context_that_has_no_json_form_fails_the_run_when_its_records_are_written() -> None:
    class Host:
        async def leave_process_tools(self, run: Any) -> None:
            run.ctx.fault = object()

    result = await agent([call("look", n=1), "done"], [look], hooks=[Host()]).run("go")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "journal_error")
    assert "is not plain data" in str(result.error)
