"""Nothing is lost and nothing is counted twice: journal, log and metrics tell one story."""

from __future__ import annotations

import asyncio
import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import given, settings
from prometheus_client import CollectorRegistry

from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import Fact, Observer
from orchestrator.kernel.run import Run
from orchestrator.telemetry.catalogue import PREFIX
from orchestrator.telemetry.live import LiveRuns
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing.clock import FakeClock
from tests.telemetry.maze import PLANS, Ctx, Deps, Plan, graph_of, journey, machine_of
from tests.tiers import examples

SCHEMA = Path(__file__).parents[2] / "orchestrator" / "telemetry" / "log_schema.json"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def totals(registry: CollectorRegistry) -> defaultdict[str, float]:
    """Sums over all labels, of one look: collecting is what these tests cost."""
    found: defaultdict[str, float] = defaultdict(float)
    for family in registry.collect():
        for sample in family.samples:
            found[sample.name.removeprefix(PREFIX)] += sample.value
    return found


def statuses(registry: CollectorRegistry) -> list[str]:
    """Return the status of each run that the journal has and that has not ended."""
    samples = (sample for family in registry.collect() for sample in family.samples)
    return [one.labels["status"] for one in samples if one.name == "orchestrator_journal_runs"]


class Story:
    """What one journey left behind."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.stream = io.BytesIO()
        self.live = LiveRuns()
        self.facts: list[Fact] = []
        self.commits: list[int] = []

    def observe(self, fact: Fact) -> None:
        self.facts.append(fact)

    async def take(self, plan: Plan) -> Run[Ctx, Deps]:
        graph = graph_of(plan)
        self.metrics.declare(graph)
        self.store = store = MemoryJournal()
        self.metrics.count_runs(store)
        journal: Any = CrashingJournal(store, at=plan.crash_at) if plan.crash_at else store
        machine = machine_of(graph)
        observers: list[Observer] = [TransitionLog(self.stream, level="debug"), self.metrics, self.live, self]
        driver = Driver(machine, observers=observers, journal=journal, clock=FakeClock(auto=True))
        run = Run(machine, "r1", Ctx(), Deps(list(plan.deeds)))
        await journey(plan, run, driver, self.left)
        assert not driver.observer_errors
        records = await store.load("r1")
        self.commits = [record.body["seq"] for record in records if record.kind == "transition"]
        return run

    def left(self, run: Run[Ctx, Deps]) -> None:
        """Whenever a driver has returned, its run is over or suspended, and nothing is active."""

        count = totals(self.registry)
        assert count["runs_active"] == 0
        assert self.metrics.live.runs == self.live.runs == {}
        assert count["runs_started_total"] == count["runs_completed_total"] + count["runs_suspended_total"]
        if not run.control.detached:
            assert statuses(self.registry) == ([] if run.ended else ["parked"])

    def lines(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        for line in found:
            VALIDATOR.validate(line)
        return found


@settings(max_examples=examples(100), deadline=None)
@given(PLANS)
def test_whatever_happens_to_a_run_its_commits_lines_and_counts_are_one_number_and_it_is_over(
    plan: Plan,
) -> None:
    story = Story()
    run = asyncio.run(story.take(plan))
    count = totals(story.registry)
    lines = [line["seq"] for line in story.lines() if line["msg"] == "fsm.transition"]
    assert story.commits == list(range(1, len(story.commits) + 1))
    assert lines == story.commits
    assert count["transitions_total"] == len(lines)
    if not run.control.detached:
        assert run.seq == len(lines)
    # It is never active after its driver returned.
    assert count["runs_active"] == 0
    assert count["runs_started_total"] == count["runs_completed_total"] + count["runs_suspended_total"]
    assert count["runs_completed_total"] == run.ended
    if not run.control.detached:
        assert statuses(story.registry) == ([] if run.ended else ["parked"])
    assert count["journal_runs"] == (asyncio.run(story.store.head("r1")).status != "ended")
    assert story.metrics.live.runs == story.live.runs == {}
    assert count["state_entries_total"] == count["state_duration_seconds_count"] + 1
    assert count["telemetry_errors_total"] == 0


def test_while_a_run_goes_on_it_is_active_in_the_state_it_is_in() -> None:
    seen: list[tuple[float, float]] = []
    plan = Plan(2, [(0, 0, 1, "none"), (1, 0, 0, "none")], frozenset(), ["left"] * 6, True, 0)
    story = Story()

    class Look:
        def observe(self, fact: Fact) -> None:
            count = totals(story.registry)
            gone = count["runs_completed_total"] + count["runs_suspended_total"]
            seen.append((count["runs_started_total"] - gone, count["runs_active"]))

    async def go() -> None:
        graph = graph_of(plan)
        story.metrics.declare(graph)
        machine = machine_of(graph)
        driver = Driver(machine, observers=[story.metrics, Look()], clock=FakeClock(auto=True))
        await driver.drive(Run(machine, "r1", Ctx(), Deps(list(plan.deeds))))

    asyncio.run(go())
    assert all(expected == active for expected, active in seen)
    assert {active for _, active in seen} == {0, 1}
