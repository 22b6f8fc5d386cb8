"""The kit as a user meets it, and every name it exports."""

from __future__ import annotations

from dataclasses import replace

import pytest

import orchestrator.testing
from orchestrator.kernel.graph import bounding
from orchestrator.kernel.purity import CHECK_PURITY
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.providers.scripted import call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing import (
    GraphCoverage,
    GuardImpure,
    ScriptedLLM,
    check_guard,
    parametrize_paths,
    strict_guards,
    walk,
)
from orchestrator.testing.paths import Path


def test_every_exported_name_is_there() -> None:
    for name in orchestrator.testing.__all__:
        assert getattr(orchestrator.testing, name).__name__ == name
    assert sorted(orchestrator.testing.__all__) == orchestrator.testing.__all__ == dir(orchestrator.testing)
    with pytest.raises(AttributeError, match="has no attribute 'FakeClok'"):
        _ = orchestrator.testing.__getattr__("FakeClok")


@parametrize_paths(LLM_LOOP)
async def test_every_edge(path: Path) -> None:
    walked = await walk(LLM_LOOP, path, force=True)
    assert walked.run.state == path[-1].dest


def search(query: str) -> list[str]:
    """Search the catalogue."""
    return [query]


async def test_a_run_of_the_strict_graph_is_watched() -> None:
    coverage = GraphCoverage(LLM_LOOP)
    agent = Agent(
        ScriptedLLM([call("search", query="moon"), "One moon."]),
        tools=[search],
        graph=strict_guards(LLM_LOOP),
        observers=[coverage],
    )
    result = await agent.run("How many moons?")
    assert result.output == "One moon."
    assert coverage.states == (len({step.dest for step in result.transitions}) + 1, len(LLM_LOOP.states))
    assert "state terminate_error" in map(str, coverage.missing())


def test_guards_are_checked_one_by_one_too() -> None:
    assert check_guard(lambda turns: turns < 20, 19) is True
    with pytest.raises(GuardImpure, match="ctx: list of 1 became list of 0"):
        check_guard(lambda turns: turns.pop() < 20, [19])


async def test_an_impure_guard_fails_a_run_of_the_strict_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECK_PURITY, "0")

    @bounding
    def may_continue(ctx: LoopContext) -> bool:
        ctx.spent.retries += 1
        return True

    edges = (replace(edge, when=may_continue if edge.when else None) for edge in LLM_LOOP.edges)
    impure = replace(LLM_LOOP, edges=tuple(edges))
    for graph, outcome in ((impure, "completed"), (strict_guards(impure), "failed")):
        llm = ScriptedLLM([call("search", query="moon"), "One moon."])
        agent = Agent(llm, tools=[search], graph=graph, observers=())
        result = await agent.run("How many moons?")
        assert result.outcome == outcome
    assert isinstance(result.error, GuardImpure)
    assert "ctx.spent.retries: 0 became 1" in str(result.error)
