"""A resumed run is streamed: its events from the resumption on, with the pieces of its answers."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import OtherAgent, RunUnknown, Suspended
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.run_event import (
    ModelRequestFinished,
    QuestionAsked,
    RunEvent,
    RunFinished,
    TextDelta,
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
