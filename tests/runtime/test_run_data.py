"""Agent name, version, metadata and tags: stored with the run, kept through resume and in child runs, never logged."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from orchestrator import Agent, MemoryJournal, ToolContext, tool
from orchestrator.errors import ConfigError, LLMError
from orchestrator.journal.redacted import parted
from orchestrator.providers.scripted import call
from orchestrator.runtime.service.arguments import LONGEST_TAG, METADATA_BYTES, MOST_TAGS
from orchestrator.telemetry.log import TransitionLog
from orchestrator.testing import ScriptedLLM

DATA: dict[str, Any] = {"metadata": {"customer": "c-17", "plan": [1, None]}, "tags": {"team": "ops"}}
KEYS = ("agent", "agent_version", "metadata", "tags")


async def created(journal: MemoryJournal, run_id: str) -> dict[str, Any]:
    body = (await journal.load(run_id))[0].body
    return {key: body[key] for key in KEYS if key in body}


def agent(*answers: Any, **options: Any) -> tuple[Agent, MemoryJournal]:
    journal = options.pop("journal", None) or MemoryJournal()
    return Agent(ScriptedLLM(answers), journal=journal, **{"observers": (), **options}), journal


async def test_a_run_without_data_of_the_host_stores_none() -> None:
    one, journal = agent("done")
    await one.run("go", run_id="r")
    assert await created(journal, "r") == {}


async def test_every_way_to_start_a_run_stores_the_data_of_the_host() -> None:
    one, journal = agent("a", "b", name="support", version="2026-11-22")
    await one.run("go", run_id="run", **DATA)
    stream = one.stream("go", run_id="stream", **DATA)
    assert [fact async for fact in stream]
    journal.shared = True
    await one.deposit("go", run_id="deposit", **DATA)
    expected = {"agent": "support", "agent_version": "2026-11-22", **DATA}
    for run_id in ("run", "stream", "deposit"):
        assert await created(journal, run_id) == expected


def test_run_sync_takes_the_same_options() -> None:
    one, _ = agent("a")
    assert one.run_sync("go", **DATA).output == "a"
    with pytest.raises(ConfigError, match="metadata is 3"):
        one.run_sync("go", metadata=3)  # type: ignore[arg-type]


async def test_a_resumed_run_and_its_child_runs_have_the_data() -> None:
    journal = MemoryJournal()
    child = Agent(ScriptedLLM(["found"]), observers=(), name="search")
    tools = [child.as_tool("search", "Search.")]
    broken, _ = agent(LLMError("down"), journal=journal, tools=tools, name="support")
    task = broken.stream("go", run_id="r", **DATA)
    async for _ in task:
        await task.aclose()  # the reader leaves: the run can be resumed
        break
    one, _ = agent(call("search", task="x"), "done", journal=journal, tools=tools, name="support")
    assert (await one.resume("r")).output == "done"
    [below] = [head.run_id async for head in journal.runs(parent_run_id="r")]
    assert await created(journal, "r") == {"agent": "support", **DATA}
    assert await created(journal, below) == {"agent": "search", **DATA}


async def test_tools_and_hooks_read_the_data_of_their_run_and_of_its_parent() -> None:
    seen: list[Any] = []

    @tool(effect="pure")
    def look(context: ToolContext) -> str:
        """Look."""
        seen.append(("tool", context.metadata, context.tags))
        return "seen"

    class Hooks:
        async def enter_init(self, run: Any) -> None:
            seen.append(("hook", run.metadata, run.tags))

    child = Agent(ScriptedLLM([call("look"), "found"]), tools=[look], observers=())
    tools = [child.as_tool("search", "Search."), look]
    one, _ = agent(call("search", task="x"), call("look"), "done", "done", tools=tools, hooks=[Hooks()])
    await one.run("go", **DATA)
    data = (DATA["metadata"], DATA["tags"])
    assert seen == [("hook", *data), ("tool", *data), ("tool", *data)]
    await one.run("go")
    assert seen[-1] == ("hook", {}, {})


async def test_no_log_line_has_the_data() -> None:
    log = io.BytesIO()
    one, journal = agent("done", observers=(TransitionLog(log),))
    await one.run("go", run_id="r", metadata={"secret": "c-17"}, tags={"hidden": "value"})
    assert b"llm_response" in log.getvalue()
    for text in (b"c-17", b"hidden", b"secret"):
        assert text not in log.getvalue()
    shown = parted("created", (await journal.load("r"))[0].body)
    assert shown.shown["tags"] == {"hidden": "value"}
    assert "c-17" not in json.dumps(shown.shown)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"metadata": "text"}, "metadata is 'text'; give a dict with text keys and JSON values"),
        ({"metadata": {1: 2}}, "metadata is {1: 2}; give a dict with text keys and JSON values"),
        ({"metadata": {"a": object}}, "metadata cannot be stored as JSON: "),
        ({"metadata": {"a": "\ud800"}}, "metadata cannot be stored as JSON: "),
        (
            {"metadata": {"a": "x" * METADATA_BYTES}},
            f"metadata has 16,392 bytes as JSON; give at most {METADATA_BYTES:,}",
        ),
        ({"tags": ["a"]}, "tags is ['a']; give a dict of text to text"),
        ({"tags": {"a": 1}}, "tag 'a' has the value 1; name and value must be printable text"),
        ({"tags": {"": "a"}}, "tag '' has the value 'a'; name and value must be printable text"),
        ({"tags": {"a": "x\ny"}}, "tag 'a' has the value 'x\\ny'; name and value must be printable text"),
        ({"tags": {"a": "x" * (LONGEST_TAG + 1)}}, "tag 'a' has the value 'xxx"),
        ({"tags": {str(n): "" for n in range(MOST_TAGS + 1)}}, "there are 33 tags; give at most 32"),
    ],
)
async def test_data_that_cannot_be_stored_is_refused_before_the_run(
    options: dict[str, Any], why: str
) -> None:
    one, journal = agent("done")
    with pytest.raises(ConfigError) as refused:
        await one.run("go", **options)
    assert str(refused.value).startswith(why)
    assert [head async for head in journal.runs()] == []


@pytest.mark.parametrize("name", ["", "a b", "x" * 300, "-a", 3])
@pytest.mark.parametrize("what", ["name", "version"])
def test_an_invalid_name_of_an_agent_is_refused(what: str, name: Any) -> None:
    options: dict[str, Any] = {what: name}
    with pytest.raises(ConfigError, match=f"^{what} is .*; give 1 to 100 letters, digits and any of"):
        agent("done", **options)
