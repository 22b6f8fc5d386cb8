"""Guards are counted once each: those of edges by their own name, the limits they read by theirs."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.telemetry.metrics import Metrics
from tests.runtime.stage import agent


def step(n: int) -> str:
    return f"step {n}"


async def counts(*script: Any, **limits: Any) -> dict[tuple[str, str], float]:
    """(guard, result) -> how often, without zeros."""
    registry = CollectorRegistry()
    llm = ScriptedLLM(script)
    await agent(llm, [step], observers=[Metrics(registry)], limits=Limits(**limits)).run("go")
    return {
        (sample.labels["guard"], sample.labels["result"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "orchestrator_guard_evaluations_total" and sample.value
    }


async def test_two_turns_ask_each_guard_twice() -> None:
    found = await counts(call("step", n=1), call("step", n=2), "done")
    assert found["iterations", "allow"] == found["may_continue", "allow"] == 2
    assert {result for _, result in found} == {"allow"}


async def test_a_completion_retry_counts_the_guards_that_it_asked() -> None:
    found = await counts('{"error": "not found"}', "done", completion_retries=1)
    assert found["iterations", "allow"] == found["may_continue", "allow"] == 1


async def test_a_limit_that_is_reached_denies_once() -> None:
    found = await counts(call("step", n=1), call("step", n=2), max_iterations=2)
    assert found["iterations", "deny"] == 1
    assert found["iterations", "allow"] == found["may_continue", "allow"] == 1
    assert ("may_continue", "deny") not in found
