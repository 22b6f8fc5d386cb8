"""A limit that names a tool which does not exist is refused, because it would limit nothing without a word."""

from __future__ import annotations

import pytest

from orchestrator import Agent, Limits, LocalEngine, MemoryJournal
from orchestrator.errors import ConfigError
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.tools.spec import ToolSpec, tool
from tests.runtime.stage import agent

MISSPELT = Limits(tool_caps={"lokup": 1})
REFUSAL = (
    r"limit tool_caps names the tool 'lokup', which does not exist; did you mean 'lookup'\? \(tools: lookup\)"
)


@tool(effect="pure")
def lookup(key: str = "") -> str:
    """Look something up."""
    return key


class Announced:
    """A source of tools that announces them later."""

    def __init__(self, *later: ToolSpec) -> None:
        self.tools: tuple[ToolSpec, ...] = ()
        self._later = later

    async def refresh(self) -> None:
        self.tools = self._later


def script() -> ScriptedLLM:
    return ScriptedLLM([call("lookup"), "done"])


def test_an_agent_with_a_limit_on_a_tool_that_does_not_exist_is_not_made() -> None:
    with pytest.raises(ConfigError, match=REFUSAL):
        agent(script(), [lookup], limits=MISSPELT)
    with pytest.raises(ConfigError, match=r"'lokup', which does not exist \(tools: none\)"):
        agent(script(), limits=MISSPELT)


def test_the_name_of_a_limit_may_differ_in_its_capitals() -> None:
    agent(script(), [lookup], limits=Limits(tool_caps={"LookUp": 1}))


def test_a_variant_whose_limits_or_tools_do_not_fit_is_not_made() -> None:
    capped = agent(script(), [lookup], limits=Limits(tool_caps={"lookup": 1}))
    with pytest.raises(ConfigError, match=REFUSAL):
        capped.replace(limits=MISSPELT)
    with pytest.raises(ConfigError, match="names the tool 'lookup', which does not exist"):
        capped.replace(tools=[])


async def test_a_run_with_such_a_limit_is_refused_before_it_exists() -> None:
    journal = MemoryJournal()
    runner = agent(script(), [lookup], journal=journal)
    with pytest.raises(ConfigError, match=REFUSAL):
        await runner.run("go", limits=MISSPELT)
    with pytest.raises(ConfigError, match=REFUSAL):
        runner.stream("go", limits=MISSPELT)
    with pytest.raises(ConfigError, match=REFUSAL):
        await runner.deposit("go", limits=MISSPELT)
    async with LocalEngine(runner) as engine:
        with pytest.raises(ConfigError, match=REFUSAL):
            await engine.submit("go", limits=MISSPELT)
    assert [head async for head in journal.runs() if head.graph == "llm_loop"] == []


async def test_a_run_is_not_resumed_with_such_a_limit_and_stays_as_it_is() -> None:
    journal = MemoryJournal()
    runner = agent(script(), [lookup], journal=journal)
    run_id = await runner.deposit("go")
    before = await journal.load(run_id)
    with pytest.raises(ConfigError, match=REFUSAL):
        await runner.resume(run_id, limits=MISSPELT)
    assert await journal.load(run_id) == before
    assert (await runner.resume(run_id, limits=Limits(tool_caps={"lookup": 3}))).output == "done"


async def test_a_stored_limit_on_a_tool_that_was_removed_since_does_not_keep_a_run_from_resuming() -> None:
    journal = MemoryJournal()
    first = agent(script(), [lookup], journal=journal, name="a", limits=Limits(tool_caps={"lookup": 1}))
    run_id = await first.deposit("go")
    second = Agent(ScriptedLLM(["done"]), name="a", version="2", journal=journal, observers=())
    assert (await second.resume(run_id)).output == "done"


async def test_tools_that_come_later_are_checked_when_they_are_known() -> None:
    caps = {"lookup": 1}
    runner = agent(script(), [Announced(lookup)], limits=Limits(tool_caps=caps))
    assert (await runner.run("go")).output == "done"
    misspelt = agent(script(), [Announced(lookup)], limits=MISSPELT)
    result = await misspelt.run("go")
    assert isinstance(result.error, ConfigError)
    assert result.usage.input_tokens == 0
