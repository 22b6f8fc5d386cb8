"""The model of one run: given as a name or an object, stored with the run, and part of what a resume needs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, LocalEngine, MemoryJournal, SqliteJournal, tool
from orchestrator.errors import RunUnknown, Suspended
from orchestrator.kernel.fact import Fact, LLMCall
from orchestrator.providers import Anthropic, OpenAI
from orchestrator.testing import SchemaLLM, ScriptedLLM, call


@tool(effect="pure")
def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: sunny"


class Models:
    """Hears the names of the models that are asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def observe(self, fact: Fact, /) -> None:
        if isinstance(fact, LLMCall):
            self.asked.append(fact.model)


@pytest.fixture
def journal(tmp_path: Path) -> SqliteJournal:
    return SqliteJournal(tmp_path / "journal.db")


def agent(
    journal: Any = None, *, heard: Models | None = None, script: Any = ("of the agent",)
) -> Agent[Any, str]:
    observers = () if heard is None else (heard,)
    return Agent(ScriptedLLM(script), tools=[weather], journal=journal, observers=observers)


@pytest.mark.parametrize(
    ("name", "kind", "model"),
    [
        ("openai:gpt-5-mini", OpenAI, "gpt-5-mini"),
        ("openai-responses:gpt-5-mini", OpenAI, "gpt-5-mini"),
        ("anthropic:claude-opus-4", Anthropic, "claude-opus-4"),
        ("demo", SchemaLLM, "demo"),
        ("python:tests.runtime.test_run_model:DOUBLE", ScriptedLLM, "double"),
    ],
)
def test_an_agent_takes_every_spelling_of_the_command_line(
    name: str, kind: type, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    for one in (Agent(name, observers=()), Agent(SchemaLLM(), observers=()).replace(model=name)):
        found: Any = one._deps.llm
        assert (type(found), found.model) == (kind, model)


DOUBLE = ScriptedLLM(["of the double"], model="double")


async def test_a_run_asks_the_model_that_it_is_given_and_other_runs_the_agents() -> None:
    heard = Models()
    one = agent(heard=heard)
    assert (await one.run("Go.", model=ScriptedLLM(["of the run"], model="other"))).output == "of the run"
    assert (await one.run("Go.")).output == "of the agent"
    assert heard.asked == ["other", "scripted"]


async def test_streams_and_engines_take_it_too() -> None:
    async with agent().stream("Go.", model="demo") as stream:
        assert (await stream.result()).output == "I called weather."
    async with LocalEngine(agent()) as engine:
        handle = await engine.submit("Go.", model="demo")
        assert (await handle).output == "I called weather."


async def stopped(one: Agent[Any, str], **options: Any) -> None:
    """Leave a run in the middle of its first tool, as a crash does."""
    entered = asyncio.Event()

    @tool(effect="pure", name="weather")
    async def hangs(city: str) -> str:
        """Look up the weather."""
        entered.set()
        await asyncio.Event().wait()
        return ""

    running = asyncio.create_task(one.replace(tools=[hangs]).run("Go.", run_id="r1", **options))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_resume_makes_the_named_model_again(journal: SqliteJournal) -> None:
    heard = Models()
    await stopped(agent(journal), model="demo")
    [created, *_] = await journal.load("r1")
    assert created.body["options"] == {"model": "demo"}
    result = await agent(journal, heard=heard).resume("r1")
    assert (result.output, heard.asked) == ("I called weather.", ["demo"])


@pytest.mark.parametrize("given", ["object", "name"])
async def test_a_live_model_is_needed_again_and_never_replaced_by_the_agents(
    journal: SqliteJournal, given: str
) -> None:
    llm = ScriptedLLM([call("weather", city="Oslo")], model="double")
    DOUBLE.requests.clear()
    DOUBLE.script = (call("weather", city="Oslo"), "of the double")
    model: Any = llm if given == "object" else "python:tests.runtime.test_run_model:DOUBLE"
    await stopped(agent(journal), model=model)
    [created, *_] = await journal.load("r1")
    assert created.body["options"] == {"model": {"live": "double"}}  # a journal names no code to import
    heard = Models()
    with pytest.raises(Suspended, match=r"resume\(run_id, deps=..., model=...\)"):
        await agent(journal, heard=heard).resume("r1")
    assert heard.asked == []
    result = await agent(journal, heard=heard).resume("r1", model=ScriptedLLM(["Sunny."], model="again"))
    assert (result.output, heard.asked) == ("Sunny.", ["again"])


async def test_a_stored_name_that_would_import_code_is_not_followed(journal: SqliteJournal) -> None:
    await stopped(agent(journal), model=ScriptedLLM([call("weather", city="Oslo")]))
    one = agent(journal)
    stored, records = await one._service.recovery.read("r1")
    stored.created["options"] = {"model": "python:tests.runtime.test_run_model:DOUBLE"}  # type: ignore[index]
    assert one._source.lacks(stored)
    assert one._restore(stored, records).deps.llm is one._deps.llm


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("gpt-5-mini", "unknown model 'gpt-5-mini'; did you mean 'openai:gpt-5-mini'?"),
        (object(), "model must have `async complete(request)`; object does not"),
        (SchemaLLM, "give an instance of it"),
    ],
    ids=["name", "object", "class"],
)
async def test_another_value_is_refused_before_the_run(model: Any, fault: str) -> None:
    journal = MemoryJournal()
    with pytest.raises(ConfigError) as refused:
        await agent(journal).run("Go.", run_id="r1", model=model)
    assert fault in str(refused.value)
    with pytest.raises(RunUnknown):
        await journal.load("r1")


async def test_a_deposited_run_has_the_name_of_its_model(journal: SqliteJournal) -> None:
    with pytest.raises(ConfigError, match="the model of a deposited run is stored as its name"):
        await agent(journal).deposit("Go.", model=SchemaLLM())
