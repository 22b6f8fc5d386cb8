"""What a listing says about a run, against the whole run."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from orchestrator import Agent, MemoryJournal, Runs
from orchestrator.errors import LLMError
from orchestrator.kernel.journal import Draft
from orchestrator.providers.scripted import call
from orchestrator.runtime.runs.outline import LONGEST, RunOutline, read_outlines
from orchestrator.testing import ScriptedLLM
from tests.console.stored import ASKS, agent, fill, leave_asking, look, said


def created(**context: Any) -> Draft:
    return Draft("created", {"context": context})


@pytest.mark.parametrize(
    ("context", "task"),
    [
        ({"messages": [{"role": "user", "content": "\n  Fix it. \nMore."}]}, "Fix it."),
        ({"messages": [{"role": "user", "content": "Old."}, {"role": "user", "content": "New."}]}, "New."),
        ({"messages": [{"role": "system", "content": "Obey."}]}, ""),
        ({"messages": [{"role": "user", "content": [{"type": "image"}, {"text": "What?"}]}]}, "[image]"),
        ({"messages": [{"role": "user", "content": "go " * 999}]}, ("go " * 999)[:LONGEST].strip()),
        ({"messages": [{"role": "user", "content": "Log in with Bearer abc"}]}, "Log in with [redacted]"),
        ({"request": "Keep the prices."}, "Keep the prices."),
        ({"prompt": "Count."}, "Count."),
        ({"spec": {"goal": 1}}, ""),
        ({}, ""),
    ],
)
def test_the_task_is_the_first_line_that_a_person_gave(context: dict[str, Any], task: str) -> None:
    assert RunOutline.of([created(**context)]).task == task


async def test_a_failed_run_has_the_error_of_its_whole_story() -> None:
    journal = MemoryJournal()
    broken = ScriptedLLM([said(call("look")), *[LLMError("no", kind="server_error", status=503)] * 9])
    result = await Agent(broken, name="a", journal=journal, observers=(), tools=[look]).run("Go.")
    head = await journal.head(result.run_id)
    outline = (await read_outlines(journal, [head]))[head.run_id]
    story = (await Runs(journal).get(result.run_id)).story
    assert outline.failure == story.error
    assert outline.failure is not None
    assert (outline.failure.message, outline.failure.status, outline.failure.turn) == ("no", 503, 2)
    assert outline.failure.attempt > 1
    assert outline.task == "Go."


async def test_a_run_that_waits_has_the_tool_and_the_arguments_of_its_question() -> None:
    journal = MemoryJournal()
    await fill(journal)
    await leave_asking(journal, "noted", note="rent", name="other")
    heads = [head async for head in journal.runs()]
    found = await read_outlines(journal, heads)
    [asks], [noted] = found[ASKS].calls, found["noted"].calls
    assert (asks.tool, asks.effect, json.loads(noted.arguments)["note"]) == ("pay", "irreversible", "rent")
    assert asks.key == "1:0"
    assert asks.expires_at > 0
    assert found["first"].calls == []
    assert {run: found[run].turns for run in ("first", "third", ASKS)} == {"first": 2, "third": 1, ASKS: 1}


async def test_a_run_that_was_resumed_after_an_error_and_completed_has_no_failure() -> None:
    error = {"type": "LLMError", "message": "no"}
    drafts = [created(), Draft("transition", {"error": error}), Draft("ended", {"outcome": "completed"})]
    assert RunOutline.of(drafts).failure is not None, "the excerpt has an error"
    journal = MemoryJournal()
    await agent(journal, said(text="Done.")).run("Go.", run_id="r")
    head = await journal.head("r")

    class Odd(MemoryJournal):
        async def excerpts(self, run_ids: Any) -> dict[str, list[Draft]]:
            del run_ids
            return {"r": drafts}

    assert (await read_outlines(Odd(), [head]))["r"].failure is None


async def test_records_of_any_form_make_an_outline_and_no_error(seed: int) -> None:
    rng = random.Random(seed)
    values: list[Any] = [None, 1, "x", [], [1], {}, {"add": 3}, {"add": [1]}, {"role": "user"}, [{"role": 1}]]
    names = (
        "context",
        "messages",
        "error",
        "iteration",
        "attempts",
        "key",
        "tool",
        "expires_at",
        "arguments",
    )
    head = None
    journal = MemoryJournal()
    await agent(journal, said(text="Done.")).run("Go.", run_id="r")
    head = await journal.head("r")
    for _ in range(500):
        body = {name: rng.choice(values) for name in rng.sample(names, 3)}
        drafts = [Draft(rng.choice(("created", "transition", "context", "asked", "ended")), body)]

        class Odd(MemoryJournal):
            async def excerpts(self, run_ids: Any, drafts: list[Draft] = drafts) -> dict[str, list[Draft]]:
                del run_ids
                return {"r": drafts}

        assert set(await read_outlines(Odd(), [head])) == {"r"}
