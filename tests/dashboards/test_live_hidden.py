"""Faults without a failed run, and faults of what Prometheus reads, on the same path as in `test_live`.

Each incident has the time to its alert, the labels of the alert, and, where an agent is guilty, the commands of the
runbook, executed until the agent is stopped; the agent `steady` of the same process works all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orchestrator import Agent, LocalEngine, SqliteJournal, tool
from orchestrator.errors import RunUnknown
from orchestrator.llm.message import Request
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.ops.render import Prometheus
from orchestrator.providers.scripted import call
from orchestrator.testing import FunctionLLM
from tests.dashboards.hidden_host import BEFORE, SHOWN
from tests.dashboards.history import release_before
from tests.dashboards.monitoring import SCALE, AgentHost, JournalWatch, Monitoring, reachable, running, until
from tests.dashboards.on_call import Call, OnCall
from tests.repeat import disturbed

pytestmark = [pytest.mark.campaign, pytest.mark.system("prometheus", "prometheus-alertmanager", "gcc")]

PATIENCE = 150
FAULTS = ("empty", "dear", "binge", "unpriced", "leaky", "release", "extra", "nightly")
LABELS: dict[str, dict[str, str]] = {
    "NoAnswerRatioHigh": {"agent": "empty", "machine": "llm_loop"},
    "CostCeilingExceeded": {"agent": "dear", "currency": "EUR"},
    "TokenRateHigh": {"agent": "binge", "machine": "llm_loop"},
    "LLMRequestsUnpriced": {"agent": "unpriced", "model": "unpriced"},
    "AbandonedWork": {"agent": "leaky", "kind": "tool", "name": "crawl"},
    "ReleaseUsesMoreTokens": {"agent": "release", "version": "2"},
    "AgentsFolded": {"job": "orchestrator"},
    "AgentNotSucceeding": {"agent": "nightly"},
    "RunsWaitingForAgent": {"agent": "renamed", "machine": "llm_loop"},
    "ClockSkew": {"instance": "skewed"},
    "DuplicateInstance": {"instance": "twins"},
    "JournalSlow": {"instance": "slow-disk", "backend": "sqlite"},
}
"""Alert -> labels that name the cause."""
GUILTY = ("empty", "dear", "binge", "release", "unpriced")
"""Agents that a runbook stops. Of `leaky` it takes the tool away."""
FALSE = ("RunStuck", "RunOverdue", "EngineStalled", "ApprovalWaiting", "RunAgingWithoutTimeout")
"""Alerts about ages, which a wrong clock must not raise."""


class Seen(NamedTuple):
    monitoring: Monitoring
    on_call: OnCall
    first: dict[str, tuple[float, dict[str, str]]]
    """Alert -> seconds until it fired, and its labels."""
    every: set[tuple[str, str]]
    """(alert, instance) of all that fired, but for the question of `renamed`, open until its answer is read."""
    stopped: dict[str, float]
    """Agent -> runs that it ended in the last seconds."""


@tool(effect="irreversible", approval=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def _asks(request: Request) -> Any:
    return call("pay", amount=1) if request.messages[-1].role == "user" else "Paid."


async def _park(path: Path) -> str:
    """Let a run of an agent ask that no later process has; return the digest of its question."""
    async with SqliteJournal(path) as journal:
        agent = Agent(
            FunctionLLM(_asks, model="m"), name="renamed", tools=[pay], journal=journal, observers=()
        )
        async with LocalEngine({"renamed": agent}, grace=0.1) as engine, asyncio.timeout(60):
            await engine.submit("go", agent="renamed", run_id="answered")
            while True:
                with contextlib.suppress(RunUnknown):
                    if (await journal.head("answered")).waiting:
                        break
                await asyncio.sleep(0.01)
        asked = [one for one in await journal.load("answered") if one.kind == "asked"]
        return str(asked[0].body["digest"])


async def _resume(path: Path) -> str:
    """Do what the runbook says of a run that waits for its agent: start an engine that has it. Return its outcome."""
    async with SqliteJournal(path) as journal:
        agent = Agent(
            FunctionLLM(_asks, model="m"), name="renamed", tools=[pay], journal=journal, observers=()
        )
        async with LocalEngine({"renamed": agent}, recover="resume"), asyncio.timeout(60):
            while (head := await journal.head("answered")).status != "ended":  # noqa: ASYNC110 - of another store
                await asyncio.sleep(0.01)
        return head.outcome


def _calls(folder: Path, host: AgentHost) -> tuple[Call, ...]:
    front, seldom = folder / "hidden.db", folder / "seldom.db"

    def call_of(alert: str, guilty: str, remedy: str, journal: Path = front, **words: str) -> Call:
        since = f"on {LABELS[alert]['agent']}"
        return Call(alert, LABELS[alert], journal, guilty, remedy, lambda: host.told[since], words)

    return (
        call_of("NoAnswerRatioHigh", "", "operate block-model MODEL", MODEL="empty"),
        call_of("LLMRequestsUnpriced", "", "operate block-model MODEL"),
        call_of("AbandonedWork", "", "operate disable-tool TOOL", TOOL="crawl"),
        call_of("CostCeilingExceeded", "guilty-dear", "runs cancel RUN"),
        call_of("TokenRateHigh", "guilty-binge", "runs cancel RUN"),
        call_of("ReleaseUsesMoreTokens", "", "operate stop-admitting"),
        call_of("AgentNotSucceeding", "", "operate stop-admitting", seldom),
    )


@pytest.fixture(scope="module")
def slow_disk() -> Iterator[dict[str, str]]:
    """The variables with which a process has a slow disk: some of its syncs take half a second."""
    with disturbed(slow_disk=True) as environment:
        yield {name: environment[name] for name in ("LD_PRELOAD", "LD_LIBRARY_PATH")}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, slow_disk: dict[str, str]) -> Iterator[Seen]:
    """One story, told once."""
    folder = tmp_path_factory.mktemp("hidden")
    digest = asyncio.run(_park(folder / "seldom.db"))
    answer = ["runs", "approve", "answered", "--digest", digest, "--journal", str(folder / "seldom.db")]
    shell = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    subprocess.run(
        [sys.executable, "-m", "orchestrator", *answer], check=True, env=shell, capture_output=True
    )
    hidden = AgentHost("hidden", folder, "hidden", program="hidden_host")
    others = [
        AgentHost("twin-a", folder, "twin", program="hidden_host", label="twins"),
        AgentHost("twin-b", folder, "twin", program="hidden_host", label="twins"),
        AgentHost("skewed", folder, "skewed", program="hidden_host", label="skewed"),
        AgentHost("slow", folder, "slow", program="hidden_host", label="slow-disk", environment=slow_disk),
    ]
    watch = JournalWatch("watch", folder, folder / "seldom.db", "--attempts", "nightly=3")
    with running(folder, [hidden, *others], [LLM_LOOP], [watch], release_before(BEFORE)) as monitoring:
        on_call = OnCall(monitoring.webhook, _calls(folder, hidden))
        first: dict[str, tuple[float, dict[str, str]]] = {}
        every: set[tuple[str, str]] = set()
        for host in (hidden, *others):
            until(lambda host=host: reachable(f"http://127.0.0.1:{host.port}/metrics"), PATIENCE, host.name)  # type: ignore[misc]
        watch.start()
        began = time.time()
        for fault in FAULTS:
            hidden.tell(f"on {fault}")
        on_call.start()

        def look() -> bool:
            for at, labels in monitoring.fired(60):
                name = labels["alertname"].removeprefix("Orchestrator")
                if (name, labels.get("agent")) != ("ApprovalWaiting", "renamed"):  # its answer waits, too
                    every.add((name, labels.get("instance", "")))
                if name in LABELS and LABELS[name].items() <= labels.items():
                    first.setdefault(name, (at - began, labels))
            return first.keys() >= LABELS.keys()

        try:
            until(look, PATIENCE, "the alerts of every fault")
            for one in on_call.calls:
                on_call.finish(one.alert, PATIENCE, look)
            assert asyncio.run(_resume(folder / "seldom.db")) == "completed"
            until(lambda: "OrchestratorRunsWaitingForAgent" not in monitoring.firing(), PATIENCE, "its end")
            stopped = _stopped(monitoring)
            look()
        finally:
            on_call.stop()
            print(f"\n{_table(first)}\n\n{on_call.table()}")  # noqa: T201
            print(f"hidden said: {hidden.process.said()[-2000:]}")  # noqa: T201
        yield Seen(monitoring, on_call, first, every, stopped)


def _stopped(monitoring: Monitoring) -> dict[str, float]:
    """Wait until the stopped agents end no run any more; return how many each agent has ended since then."""
    source = Prometheus(monitoring.prometheus)
    query = 'sum by (agent) (increase(orchestrator_runs_completed_total{job="orchestrator"}[10s]))'

    def ended() -> dict[str, float]:
        found = source.instant(query, time.time())
        return {line.labels["agent"]: line.points[-1][1] for line in found}

    # A stopped run counts as one that ended, until the window is over.
    until(lambda: all(ended().get(agent) == 0 for agent in GUILTY), PATIENCE, "the end of the guilty agents")
    return ended()


def _table(first: dict[str, tuple[float, dict[str, str]]]) -> str:
    """Return a row for each alert: the time until it fired, here and in production, and the labels of the cause."""
    lines = ["| alert | fired | in production | labels |", "|---|---|---|---|"]
    for name, (after, labels) in sorted(first.items()):
        shown = ", ".join(f"{label}={labels[label]}" for label in LABELS[name])
        lines.append(f"| {name} | {after:.0f} s | {after * SCALE / 60:.0f} min | {shown} |")
    return "\n".join(lines)


def test_each_fault_has_its_alert_with_the_labels_of_its_cause(seen: Seen) -> None:
    assert {f"Orchestrator{name}" for name in seen.first} == SHOWN | {"OrchestratorJournalSlow"}


def test_the_runbooks_stop_the_guilty_agents_while_the_others_work(seen: Seen) -> None:
    for one in seen.on_call.calls:
        assert one.began < one.received < one.found <= one.stopped, one
    assert {seen.stopped[agent] for agent in GUILTY} == {0}
    assert seen.stopped["steady"] > 0


def test_nobody_hears_of_the_healthy_agent_of_five_processes(seen: Seen) -> None:
    told = [alert["labels"] for _, _, alert in seen.monitoring.webhook.notes]
    assert [labels["alertname"] for labels in told if labels.get("agent") == "steady"] == []


def test_a_clock_that_is_behind_makes_no_run_look_stuck_or_late(seen: Seen) -> None:
    assert ("ClockSkew", "skewed") in seen.every
    assert {(name, at) for name, at in seen.every if name in FALSE} == set()


def test_two_processes_with_one_label_are_no_restarts(seen: Seen) -> None:
    assert ("DuplicateInstance", "twins") in seen.every
    assert {at for name, at in seen.every if name == "DuplicateInstance"} == {"twins"}
    told = {alert["labels"].get("instance") for _, _, alert in seen.monitoring.webhook.notes
            if alert["labels"]["alertname"] == "OrchestratorRecoveryLoop"}  # fmt: skip
    assert "twins" not in told
