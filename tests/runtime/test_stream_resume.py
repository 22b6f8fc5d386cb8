"""A resumed run is streamed: its events from the resumption on, with the pieces of its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import LocalEngine, Runs, SqliteJournal
from orchestrator.errors import OtherAgent, RunUnknown, Suspended
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.live_event import RunEvent, TextDelta
from orchestrator.llm.run_event import (
    ModelRequestFinished,
    QuestionAsked,
    RunFinished,
    RunSuspended,
    ToolFinished,
)
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import tool


@tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


def payer(journal: Journal, *answers: Any, name: str = "payer") -> Agent:
    return Agent(ScriptedLLM(list(answers)), name=name, tools=[pay], journal=journal, observers=())


async def waiting(journal: Journal) -> None:
    """Leave the run `r` where it waits for a person."""
    async with payer(journal, call("pay", amount=1)).stream("go", run_id="r") as stream:
        async for event in stream:
            if isinstance(event, QuestionAsked):
                return


async def test_the_stream_of_a_resumed_run_has_its_further_events_and_the_words_of_its_answers() -> None:
    journal = MemoryJournal()
    await waiting(journal)
    agent = payer(journal, "All is paid.")
    earlier = [event async for event in agent.runs.events("r")]
    await agent.approve("r")
    stream = agent.stream_resume("r", by="ann")
    events: list[RunEvent] = [event async for event in stream]
    stored = [event.id async for event in agent.runs.events("r")]
    assert [event.id for event in earlier] + [one.id for one in events if one.id] == stored
    assert "".join(one.text for one in events if isinstance(one, TextDelta)) == "All is paid."
    assert [type(one) for one in events if isinstance(one, ToolFinished | ModelRequestFinished)] == [
        ToolFinished,
        ModelRequestFinished,
    ]
    assert isinstance(events[-1], RunFinished)
    assert sum(isinstance(event, RunFinished) for event in events) == 1
    result = await stream.result()
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "All is paid.")


async def test_the_next_question_of_a_resumed_run_is_in_its_stream() -> None:
    journal = MemoryJournal()
    await waiting(journal)
    agent = payer(journal, call("pay", amount=2))
    await agent.approve("r")
    async with agent.stream_resume("r") as stream:
        async for event in stream:
            if isinstance(event, QuestionAsked):
                assert event.arguments == '{"amount": 2}'
                break
        else:
            raise AssertionError("no question was asked")


async def test_the_stream_of_an_ended_run_has_its_result_and_its_end() -> None:
    journal = MemoryJournal()
    await payer(journal, "Done.").run("go", run_id="r")
    stream = payer(journal).stream_resume("r")
    assert [event async for event in stream] == [event async for event in payer(journal).runs.events("r")][
        -1:
    ]
    assert (await stream.result()).output == "Done."


async def test_a_reader_that_leaves_parks_the_resumed_run() -> None:
    journal = MemoryJournal()
    await waiting(journal)
    agent = payer(journal, "All is paid.", "All is paid.")
    await agent.approve("r")
    async with agent.stream_resume("r") as stream:
        async for event in stream:
            if isinstance(event, ToolFinished):
                break
    assert (await journal.head("r")).status != "ended"
    assert (await agent.resume("r")).output == "All is paid."


async def test_the_errors_of_resume_are_raised_in_the_loop() -> None:
    journal = MemoryJournal()
    await waiting(journal)
    with pytest.raises(RunUnknown):
        await payer(journal).stream_resume("nobody").result()
    with pytest.raises(OtherAgent):
        await payer(journal, name="other").stream_resume("r").result()


async def test_a_run_that_cannot_be_resumed_here_ends_the_stream_with_the_reason() -> None:
    journal = MemoryJournal()
    async with payer(journal, call("pay", amount=1)).stream("go", run_id="r", deps=object()) as stream:
        async for event in stream:
            if isinstance(event, QuestionAsked):
                break
    with pytest.raises(Suspended, match="deps"):
        await payer(journal).stream_resume("r").result()


# ---- open questions after a restart ----


async def two_questions(journal: MemoryJournal | SqliteJournal) -> None:
    """Leave the run `r` where it waits for two answers."""
    asks = payer(journal, [call("pay", amount=1), call("pay", amount=2)])
    async with asks.stream("go", run_id="r") as stream:
        async for event in stream:
            if isinstance(event, RunSuspended):
                return


def shape(event: RunEvent) -> str:
    return f"{type(event).__name__} {event.key}" if isinstance(event, QuestionAsked) else type(event).__name__


async def answered_by_its_events(events: AsyncIterator[RunEvent], runs: Runs) -> list[str]:
    """Answer each question of a run when its event arrives, as a host does; return the kinds of the events."""
    seen: list[str] = []
    async for event in events:
        seen.append(shape(event))
        if isinstance(event, QuestionAsked):
            await runs.approve(event.run_id, event.key, digest=event.digest)
    return seen


AGAIN = ["RunResumed", "QuestionAsked 1:0", "QuestionAsked 1:1", "RunSuspended"]


async def test_the_stream_of_a_resumed_run_repeats_its_open_questions_so_that_a_host_answers_them() -> None:
    journal = MemoryJournal()
    await two_questions(journal)
    agent = payer(journal, "All is paid.")
    stream = agent.stream_resume("r")
    seen = await answered_by_its_events(aiter(stream), agent.runs)
    assert seen[:4] == AGAIN
    assert seen[-1] == "RunFinished"
    assert (await stream.result()).output == "All is paid."
    assert len([one for one in await journal.load("r") if one.kind == "asked"]) == 2


async def test_only_the_questions_that_are_still_open_are_repeated() -> None:
    journal = MemoryJournal()
    await two_questions(journal)
    agent = payer(journal, "All is paid.")
    await agent.approve("r", "1:1")
    seen = await answered_by_its_events(aiter(agent.stream_resume("r")), agent.runs)
    first = seen.index("RunSuspended")
    assert [one for one in seen[:first] if one.startswith("Question")] == [
        "QuestionAnswered",
        "QuestionAsked 1:0",
    ]
    assert seen[-1] == "RunFinished"


async def test_a_reader_of_the_journal_and_one_in_the_process_of_the_run_read_the_repeated_questions() -> (
    None
):
    journal = MemoryJournal()
    await two_questions(journal)
    agent = payer(journal, "All is paid.")
    last = (await journal.head("r")).seq
    async with LocalEngine(agent) as engine:
        handle = await engine.resume("r")
        followed = agent.runs.events("r", after=last, follow=True)
        seen = await answered_by_its_events(followed, agent.runs)
        assert (await handle).output == "All is paid."
    assert seen[:4] == AGAIN
    stored = [event async for event in agent.runs.events("r", after=last)]
    assert [shape(event) for event in stored][:4] == AGAIN
    assert len({event.id for event in stored}) == len(stored)
    repeated = stored[2]
    continued = [event async for event in agent.runs.events("r", after=repeated.id)]
    assert [event.id for event in continued] == [event.id for event in stored[3:]]


async def test_another_process_reads_the_repeated_questions_and_answers_them(tmp_path: Path) -> None:
    here, there = SqliteJournal(tmp_path / "runs.db"), SqliteJournal(tmp_path / "runs.db")
    await two_questions(here)
    last = (await here.head("r")).seq
    agent = payer(here, "All is paid.")
    runs = Runs(there)
    async with LocalEngine(agent) as engine:
        handle = await engine.resume("r")
        seen = await answered_by_its_events(runs.events("r", after=last, follow=True), runs)
        assert (await handle).output == "All is paid."
    assert seen[:4] == AGAIN
