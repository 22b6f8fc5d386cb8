"""What a scrape says of ralph runs: every way between two states has its series, from construction on."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.telemetry.metrics import Metrics
from tests.runtime.ralph_stage import NOT_QUALIFIED, World
from tests.telemetry.sampling import sampled


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return sampled(registry, name, machine="ralph", **labels)


async def test_rework_questions_and_ends_are_series_of_their_own(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    says = {Role.PLANNER: [{"status": "needs_qa_cycle"}], Role.REVIEWER: [NOT_QUALIFIED]}
    world = World(tmp_path, says)
    ralph = world.ralph(observers=(Metrics(registry),))

    for source, event, dest, _ in RALPH.rows:
        at = {"from_state": source.value, "event": event.value, "to_state": dest.value}
        assert value(registry, "transitions_total", **at) == 0, at
    await ralph.run("x")

    executing = {"to_state": "Executing"}
    taken = {
        "qualified": ("Reviewing", executing),
        "rework": ("Reviewing", executing),
        "qa_needed": ("Planning", {"to_state": "Planning"}),
        "task_selected": ("Executing", executing),
    }
    counted = {
        event: value(registry, "transitions_total", event=event, from_state=source, **to)
        for event, (source, to) in taken.items()
    }
    assert counted == {"qualified": 2, "rework": 1, "qa_needed": 1, "task_selected": 3}
    assert value(registry, "state_duration_seconds_count", state="Reviewing") == 3
    assert value(registry, "runs_completed_total", outcome="completed", reason="none") == 1
    assert value(registry, "run_duration_seconds_count") == 1
