"""Every metric of a run has the name of its agent: agents of one graph, child runs, late work, and the limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import Agent, Limits, ToolCall, tool
from orchestrator.errors import ConfigError, LLMError, StoreDown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import (
    EventFailed,
    LLMCall,
    RunCompleted,
    RunStarted,
    ToolExecution,
    Transition,
    WorkAbandoned,
)
from orchestrator.kernel.journal import Lease
from orchestrator.llm.message import Request
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.telemetry.catalogue import CATALOGUE, PREFIX
from orchestrator.telemetry.exposition import page
from orchestrator.telemetry.instrument import CAPS
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import FunctionLLM, ScriptedLLM
from tests.benchmarks.scrape import measured
from tests.telemetry.sampling import sampled


@tool(effect="pure")
def search(query: str) -> str:
    """Look something up."""
    return query


def metrics_of() -> tuple[CollectorRegistry, Metrics]:
    registry = CollectorRegistry()
    return registry, Metrics(registry)


def agents_with(registry: CollectorRegistry, name: str, **labels: str) -> dict[str, float]:
    """Return agent -> the sum of a metric, without agents at 0."""
    found: dict[str, float] = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == PREFIX + name and labels.items() <= sample.labels.items() and sample.value:
                found[sample.labels["agent"]] = found.get(sample.labels["agent"], 0) + sample.value
    return found


def test_runs_states_guards_models_and_tools_have_the_label() -> None:
    without = {row.name for row in CATALOGUE if "machine" in row.labels and "agent" not in row.labels}
    assert without == {"run_slots", "machine_info"}
    for row in CATALOGUE:
        if row.name.startswith(("llm_", "tool_")):
            assert "agent" in row.labels, row.name


async def test_two_agents_of_one_graph_are_told_apart() -> None:
    registry, metrics = metrics_of()

    def fails(_: Request) -> str:
        raise LLMError("no answer", kind="server_error", status=500)

    once = RetryPolicy(attempts=1)
    good = Agent(
        ScriptedLLM([[ToolCall("1", "search", '{"query": "a"}')], "A."]),
        name="good",
        tools=[search],
        observers=[metrics],
    )
    bad = Agent(FunctionLLM(fails, model="m"), name="bad", retry=once, observers=[metrics])
    assert agents_with(registry, "runs_started_total") == {}
    for agent in (good, bad):
        await agent.run("go")
    assert agents_with(registry, "runs_started_total") == {"good": 1, "bad": 1}
    assert agents_with(registry, "runs_completed_total", outcome="completed") == {"good": 1}
    assert agents_with(registry, "runs_completed_total", outcome="failed") == {"bad": 1}
    assert agents_with(registry, "tool_calls_total") == {"good": 1}
    assert agents_with(registry, "llm_requests_total", outcome="ok") == {"good": 2}
    assert agents_with(registry, "llm_requests_total", outcome="server_error") == {"bad": 1}
    assert agents_with(registry, "state_entries_total", state="await_llm") == {"good": 2, "bad": 1}
    assert agents_with(registry, "guard_evaluations_total", guard="iterations").keys() == {"good"}
    assert agents_with(registry, "label_overflow_total") == {}


async def test_a_child_run_counts_for_its_own_agent() -> None:
    registry, metrics = metrics_of()
    below = Agent(ScriptedLLM(["Two moons."]), name="researcher", observers=[metrics])
    above = Agent(
        ScriptedLLM([[ToolCall("1", "ask", '{"task": "moons?"}')], "Two."]),
        name="support",
        tools=[below.as_tool(name="ask", description="Ask the researcher.")],
        observers=[metrics],
    )
    assert (await above.run("How many moons?")).outcome == "completed"
    assert agents_with(registry, "runs_completed_total") == {"support": 1, "researcher": 1}
    assert agents_with(registry, "llm_requests_total") == {"support": 2, "researcher": 1}
    assert agents_with(registry, "tool_calls_total") == {"support": 1}


def test_work_that_a_run_left_counts_for_its_agent_after_the_end() -> None:
    registry, metrics = metrics_of()
    metrics.declare(LLM_LOOP, ["search"], "m", agent="support")
    metrics.observe(RunStarted("llm_loop", "r1", 0.0, agent="support"))
    metrics.observe(RunCompleted("llm_loop", "r1", "failed", "failed", "internal", 1.0, 1.0, 3, 1))
    for fact in (
        ToolExecution("llm_loop", "r1", 1, 0, "search", "ok", 0.5),
        LLMCall("llm_loop", "r1", "await_llm", 1, "m", "ok", 0.5, 9, 6),
        EventFailed("llm_loop", "r1", "await_llm", "failure", "callback_error", 2.0, 1),
        Transition("llm_loop", "r1", 4, "llm_response", "await_llm", "evaluate_response", 1.0, 2.0, 1),
        WorkAbandoned("llm_loop", "r1", "process_tools", "tool", "search", 2.0, "support"),
    ):
        metrics.observe(fact)
    for name in (
        "tool_calls_total",
        "llm_requests_total",
        "transition_failures_total",
        "work_abandoned_total",
    ):
        assert agents_with(registry, name) == {"support": 1}, name
    assert agents_with(registry, "transitions_total") == {"support": 1}


def test_a_run_without_an_agent_is_none_and_an_undeclared_agent_is_other() -> None:
    registry, metrics = metrics_of()
    metrics.declare(LLM_LOOP)
    metrics.observe(RunStarted("llm_loop", "r1", 0.0))
    metrics.observe(RunStarted("llm_loop", "r2", 0.0, agent="a stranger"))
    assert agents_with(registry, "runs_started_total") == {"_none": 1, "_other": 1}
    assert sampled(registry, "label_overflow_total", metric="runs_started_total", label="agent") == 1


def test_agents_beyond_the_cap_are_other() -> None:
    registry, metrics = metrics_of()
    graph = LLM_LOOP
    for number in range(CAPS["agent"] + 2):
        metrics.declare(graph, agent=f"agent{number}")
        metrics.observe(RunStarted("llm_loop", f"r{number}", 0.0, agent=f"agent{number}"))
    found = agents_with(registry, "runs_started_total")
    assert found["_other"] == 2
    assert len(found) == CAPS["agent"] + 1


@pytest.mark.parametrize("order", [(900.0, 60.0), (60.0, 900.0)])
async def test_the_maximum_time_of_runs_is_that_of_each_agent(order: tuple[float, float]) -> None:
    registry, metrics = metrics_of()
    for seconds in order:
        Agent(
            ScriptedLLM([]), name=f"of{seconds:.0f}", limits=Limits(max_seconds=seconds), observers=[metrics]
        )
    Agent(ScriptedLLM([]), name="endless", limits=Limits(max_seconds=0), observers=[metrics])
    assert agents_with(registry, "run_timeout_seconds") == {"of900": 900.0, "of60": 60.0}


def test_debug_pages_and_dumps_name_the_agent() -> None:
    _, metrics = metrics_of()
    metrics.declare(LLM_LOOP, agent="support")
    metrics.observe(RunStarted("llm_loop", "r1", 0.0, agent="support"))
    (run,) = page.runs(metrics.live.current_runs, 10.0)["runs"]
    assert run["agent"] == "support"


async def test_answers_slower_than_the_objective_of_their_agent_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, objectives={"support": 60.0})
    for agent in ("support", "other"):
        metrics.declare(LLM_LOOP, agent=agent)
    assert sampled(registry, "runs_slow_total", machine="llm_loop", agent="support") == 0
    ends = [("completed", "none", 61.0), ("partial", "time", 90.0), ("completed", "none", 60.0)]
    ends += [("failed", "internal", 500.0), ("cancelled", "caller", 500.0)]
    for number, (outcome, reason, seconds) in enumerate(ends):
        for agent in ("support", "other"):
            run_id = f"{agent}{number}"
            metrics.observe(RunStarted("llm_loop", run_id, 0.0, agent=agent))
            metrics.observe(RunCompleted("llm_loop", run_id, "finalize", outcome, reason, 1.0, seconds, 3, 1))
    assert agents_with(registry, "runs_slow_total") == {"support": 2}
    assert agents_with(registry, "run_objective_seconds") == {"support": 60.0}


@pytest.mark.parametrize("seconds", [0, -1, True, "60", float("inf"), float("nan"), None])
def test_an_objective_that_is_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigError, match="objective of agent 'support'"):
        Metrics(CollectorRegistry(), objectives={"support": seconds})


async def test_a_run_that_the_journal_cannot_create_is_a_refused_one() -> None:
    registry, metrics = metrics_of()

    class Full(MemoryJournal):
        async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
            raise StoreDown("the disk is full", "full")

    journal = Full()
    agent = Agent(ScriptedLLM(["Hi."]), name="support", journal=journal, observers=[metrics])
    with pytest.raises(StoreDown):
        await agent.run("go")
    assert agents_with(registry, "runs_rejected_total", reason="journal_error") == {"support": 1}
    assert agents_with(registry, "runs_started_total") == {}


def test_an_agent_with_three_tools_has_at_most_450_series() -> None:
    empty, one, two = (measured(agents) for agents in range(3))
    assert one.series - empty.series <= 450
    assert two.series - one.series < one.series - empty.series  # journals and tools are shared
