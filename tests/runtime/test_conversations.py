"""A conversation is what its runs said, one after the other, whichever process they were in."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import tool
from tests.runtime.stage import NO_WAIT, Notebook, faults

SILENT: dict[str, Any] = {"observers": (), "retry": NO_WAIT}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def texts(request: Request) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in request.messages]


def agent(journal: Any, *answers: Any, **options: Any) -> tuple[Agent, ScriptedLLM]:
    llm = ScriptedLLM(answers)
    return Agent(llm, journal=journal, **{**SILENT, **options}), llm


# ---- processes ----

SAYS = """
import asyncio, json, sys
from orchestrator import Agent, SqliteJournal
from orchestrator.testing import FunctionLLM

async def main(path, prompt):
    said = []
    def model(request):
        said.extend((message.role, message.text) for message in request.messages)
        return f"answer to {prompt}"
    async with SqliteJournal(path) as journal:
        one = Agent(FunctionLLM(model), journal=journal, observers=(), instructions="be brief")
        await one.run(prompt, conversation_id="talk")
    print(json.dumps(said))

asyncio.run(main(*sys.argv[1:]))
"""

HANGS = """
import asyncio, sys
from orchestrator import Agent, SqliteJournal, tool
from orchestrator.testing import FunctionLLM
from orchestrator.providers.scripted import call

async def main(path, where):
    @tool(effect="irreversible")
    async def press():
        print("here", flush=True)
        await asyncio.Event().wait()

    async def model(request):
        if where == "model":
            print("here", flush=True)
            await asyncio.Event().wait()
        return call("press")

    async with SqliteJournal(path) as journal:
        one = Agent(FunctionLLM(model), tools=[press], journal=journal, observers=())
        await one.run("first", conversation_id="talk", run_id="one")

asyncio.run(main(*sys.argv[1:]))
"""


def say(path: Path, prompt: str) -> list[tuple[str, str]]:
    """Go on with the conversation in a process of its own; return what its model was shown."""
    done = subprocess.run(
        [sys.executable, "-c", SAYS, str(path), prompt], check=True, capture_output=True, text=True
    )
    return [(role, text) for role, text in json.loads(done.stdout)]


class Hanging:
    """A process with a run of the conversation under way."""

    def __init__(self, path: Path, where: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HANGS, str(path), where], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "here\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.mark.campaign
def test_each_process_goes_on_where_the_last_one_ended(path: Path) -> None:
    start = [("system", "be brief"), ("user", "one")]
    assert say(path, "one") == start
    assert say(path, "two") == [*start, ("assistant", "answer to one"), ("user", "two")]
    assert say(path, "three")[-3:] == [("user", "two"), ("assistant", "answer to two"), ("user", "three")]


async def test_what_another_process_said_meanwhile_counts_and_not_what_is_kept_here(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        here, llm = agent(journal, "a", "c")
        await here.run("one", conversation_id="talk")
        say(path, "two")
        await here.run("three", conversation_id="talk")
    said = [text for role, text in texts(llm.requests[1]) if role != "system"]
    assert said == ["one", "a", "two", "answer to two", "three"]


@pytest.mark.campaign
async def test_one_run_at_a_time_also_where_another_process_has_it(path: Path) -> None:
    other = Hanging(path, "model")
    try:
        async with SqliteJournal(path) as journal:
            here, llm = agent(journal, "b", name="here")
            with pytest.raises(ConfigError, match=r"conversation 'talk' has an active run \(one\); wait for"):
                await here.run("two", conversation_id="talk")
            assert [head.run_id async for head in journal.runs()] == ["one"], "nothing was begun"
            assert llm.requests == []
            await here.run("aside", conversation_id="another")
    finally:
        other.kill()


@pytest.mark.parametrize(
    ("where", "before"),
    [
        pytest.param("model", [("user", "first")], marks=pytest.mark.campaign),
        ("tool", [("user", "first"), ("assistant", ""), ("tool", "cancelled")]),
    ],
)
async def test_after_a_killed_run_the_conversation_goes_on_with_its_turn_closed(
    path: Path, where: str, before: list[tuple[str, str]]
) -> None:
    Hanging(path, where).kill()
    async with SqliteJournal(path) as journal:
        here, llm = agent(journal, "b", name="here")
        result = await here.run("second", conversation_id="talk")
        shown = llm.requests[0].messages
        assert not faults(shown)
        assert not faults(result.messages)
        roles = [(message.role, message.text) for message in shown if message.role != "tool"]
        assert roles == [one for one in before if one[0] != "tool"] + [("user", "second")]
        results = [message for message in shown if message.role == "tool"]
        assert len(results) == sum(role == "tool" for role, _ in before)
        assert all(
            message.is_error and "stopped before this call finished" in message.text for message in results
        )


# ---- what the journal has ----


def store(kind: str, path: Path) -> Any:
    return MemoryJournal() if kind == "memory" else SqliteJournal(path)


KINDS = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@KINDS
async def test_of_a_pruned_conversation_the_newest_run_that_is_left_counts(kind: str, path: Path) -> None:
    journal = store(kind, path)
    for number in range(4):
        one, _ = agent(journal, f"answer {number}")
        await one.run(f"prompt {number}", conversation_id="talk", run_id=f"run {number}")
    assert await journal.prune(keep_last=1) == 3

    later, llm = agent(journal, "again")
    await later.run("prompt 4", conversation_id="talk")
    said = [text for _, text in texts(llm.requests[0])]
    assert said == [text for n in range(4) for text in (f"prompt {n}", f"answer {n}")] + ["prompt 4"]
    await journal.close()


@KINDS
async def test_a_conversation_whose_runs_are_all_gone_begins_anew_in_another_agent(
    kind: str, path: Path
) -> None:
    journal = store(kind, path)
    first, _ = agent(journal, "a")
    await first.run("one", conversation_id="talk", run_id="r")
    await journal.erase("r")

    later, llm = agent(journal, "b")
    await later.run("two", conversation_id="talk")
    assert texts(llm.requests[0]) == [("user", "two")]
    await journal.close()


@KINDS
async def test_a_cancelled_callers_run_is_part_of_the_conversation_as_far_as_it_came(
    kind: str, path: Path
) -> None:
    journal = store(kind, path)
    pressed = asyncio.Event()

    @tool(effect="irreversible")
    async def press() -> None:
        pressed.set()
        await asyncio.Event().wait()

    first, _ = agent(journal, call("press"), tools=[press])
    task = asyncio.create_task(first.run("one", conversation_id="talk"))
    await pressed.wait()
    task.cancel()
    await asyncio.wait((task,))

    for one in (first, agent(journal, "b", name="other")[0]):  # from what is kept here, and from the journal
        history = await one._conversations.before("talk", journal, one._said_in)
        assert [message.role for message in history] == ["user", "assistant", "tool"]
        assert not faults(history)
    await journal.close()


@KINDS
async def test_what_memory_put_in_is_not_said_again_in_another_agent(kind: str, path: Path) -> None:
    journal = store(kind, path)
    known = Message("system", "the user likes tea")
    first, _ = agent(journal, "a", memory=Notebook(known))
    await first.run("one", conversation_id="talk")
    later, llm = agent(journal, "b", memory=Notebook(known))
    await later.run("two", conversation_id="talk")
    said = [text for _, text in texts(llm.requests[0])]
    assert said == ["the user likes tea", "one", "a", "two"]
    await journal.close()


# ---- children ----


@KINDS
async def test_children_do_not_join_the_conversation_of_their_parent(kind: str, path: Path) -> None:
    journal = store(kind, path)
    shown: list[list[tuple[str, str]]] = []

    def dig(request: Request) -> str:
        shown.append(texts(request))
        return f"gold {len(shown)}"

    child = Agent(FunctionLLM(dig), **SILENT)

    async def talk(prompt: str) -> list[tuple[str, str]]:
        parent, llm = agent(journal, call("dig", task=prompt), "done", tools=[child.as_tool("dig", "")])
        result = await parent.run(prompt, conversation_id="talk")
        assert result.outcome is Outcome.COMPLETED
        return texts(llm.requests[0])

    await talk("one")
    second = await talk("two")
    assert second == [
        ("user", "one"),
        ("assistant", ""),
        ("tool", "gold 1"),
        ("assistant", "done"),
        ("user", "two"),
    ]
    assert shown == [[("user", "one")], [("user", "two")]], "a child sees its task only"
    talked = [head.parent_run_id async for head in journal.runs(conversation_id="talk")]
    assert talked == [None, None]
    newest = await journal.newest("talk")
    assert newest is not None
    assert newest.parent_run_id is None
    await journal.close()
