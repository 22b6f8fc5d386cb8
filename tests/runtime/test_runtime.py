"""A Runtime: the journal, observers, clock, migrations and prices that agents share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, MemoryJournal, Runs, Runtime, tool
from orchestrator.events import RunCompleted
from orchestrator.pipeline import Pipeline
from orchestrator.providers.scripted import call
from orchestrator.rlm import Rlm
from orchestrator.testing import FakeClock, ScriptedLLM
from tests.runtime.pipeline_stage import Stages
from tests.runtime.stage import Facts


async def test_agents_of_one_runtime_share_journal_observers_and_clock() -> None:
    facts, clock = Facts(), FakeClock()
    runtime = Runtime(observers=[facts], clock=clock)
    support = Agent(ScriptedLLM(["hello"]), name="support", runtime=runtime)
    billing = Agent(ScriptedLLM(["paid"]), name="billing", runtime=runtime)
    await support.run("go", run_id="s")
    await billing.run("go", run_id="b")

    listed = [(one.run_id, one.agent) for one in await Runs(runtime.journal).list()]
    assert sorted(listed) == [("b", "billing"), ("s", "support")]
    assert {fact.run_id for fact in facts.of(RunCompleted)} == {"s", "b"}
    assert support.hosting.clock is billing.hosting.clock is clock


async def test_agents_of_different_classes_share_a_runtime() -> None:
    runtime = Runtime(observers=())
    stages = Stages()
    pipeline = Pipeline(
        stages.planner, stages.validator, stages.implementer, stages.judge, runtime=runtime, name="build"
    )
    await pipeline.run("spec", run_id="p")
    await Rlm(ScriptedLLM(["FINAL(4)"]), runtime=runtime, name="ask").run("2 + 2?", run_id="r")
    assert {one.run_id for one in await Runs(runtime.journal).list()} == {"p", "r"}


async def test_the_prices_of_a_runtime_apply_to_its_agents() -> None:
    def price(_model: str | None, _tokens: Mapping[str, int]) -> float:
        return 0.25

    agent = Agent(ScriptedLLM(["yes"]), runtime=Runtime(observers=(), price=price))
    assert (await agent.run("go")).usage.cost == 0.25


@pytest.mark.parametrize("name", ["journal", "observers"])
def test_a_runtime_and_a_shortcut_are_refused_together(name: str) -> None:
    given: Any = {"journal": MemoryJournal(), "observers": ()}[name]
    with pytest.raises(ConfigError) as caught:
        Agent(ScriptedLLM([]), runtime=Runtime(observers=()), **{name: given})
    assert str(caught.value) == (
        f"runtime= and {name}= were both given; write Runtime({name}=...) and leave {name}= out"
    )


def test_a_runtime_cannot_be_changed_but_replaced() -> None:
    runtime = Runtime(observers=())
    with pytest.raises(dataclasses.FrozenInstanceError):
        runtime.clock = FakeClock()  # type: ignore[misc]
    clock = FakeClock()
    other = dataclasses.replace(runtime, clock=clock)
    assert (other.journal, other.clock) == (runtime.journal, clock)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"journal": "a.db"}, "give SqliteJournal('a.db')"),
        ({"observers": [Facts]}, "observers has the class Facts; give an instance"),
        ({"clock": 5}, "clock is 5; give an object with time, monotonic, sleep, call_later"),
        ({"price": 0.1}, "price is 0.1; give price(model, tokens)"),
        ({"migrations": {}}, "migrations is {}; give a list of Migration"),
        ({"migrations": [3]}, "migrations has 3; give a Migration"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Runtime(**given)
    assert said in str(caught.value)


def test_all_wrong_arguments_are_in_one_error() -> None:
    with pytest.raises(ConfigError, match=r"journal is 'a\.db'.*; clock is 5; .*; price is 3"):
        Runtime(journal="a.db", clock=5, price=3)  # type: ignore[arg-type]


async def test_an_agent_called_as_a_tool_keeps_its_own_prices() -> None:
    @tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen"

    child = Agent(
        ScriptedLLM([call("look"), "gold"]), tools=[look], runtime=Runtime(observers=(), price=lambda *_: 0.5)
    )
    parent = Agent(
        ScriptedLLM([call("dig", task="dig"), "done"]),
        tools=[child.as_tool("dig", "Dig.")],
        runtime=Runtime(observers=(), price=lambda *_: 0.125),
    )
    assert (await parent.run("go")).usage.cost == 2 * 0.5 + 2 * 0.125
