"""The facts, the keys of each log line and the metrics that one run of each machine produces."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client import CollectorRegistry

from orchestrator.branches import Branch, Fan
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import Fact, Observer, RunCompleted
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.pipeline.model import PipelineLimits
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.model import RalphLimits
from orchestrator.providers.scripted import call
from orchestrator.rlm import Rlm, RlmLimits
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry import Metrics, TransitionLog
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.spec import tool
from tests.runtime.approval.stand import planted, project, waiting
from tests.runtime.branches.machine import SpreadContext, workflow
from tests.runtime.pipeline_stage import PASS, SOFT, Stages
from tests.runtime.ralph_stage import NOT_QUALIFIED, World

TOKENS: dict[str, Any] = {"max_input_tokens": 10_000, "max_output_tokens": 10_000}
Observers = Iterable[Observer]
Works = Callable[[Observers, Path], Awaitable[object]]


@tool(effect="pure")
def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


async def llm_loop(observers: Observers, folder: Path) -> None:
    llm = ScriptedLLM([call("add", one=1, other=2), "3"])
    limits = Limits(max_iterations=9, max_tool_calls=9, **TOKENS)
    async with SqliteJournal(folder / "runs.db") as journal:
        await Agent(llm, tools=[add], limits=limits, journal=journal, observers=observers).run("1 + 2?")


async def team(observers: Observers, folder: Path) -> None:
    async with SqliteJournal(folder / "runs.db") as journal:
        billing = Agent(ScriptedLLM(["3"]), name="billing", observers=observers)
        triage = ScriptedLLM([call("transfer_to_billing")])
        limits = Limits(max_iterations=9, max_tool_calls=9, **TOKENS)
        await Agent(
            triage, name="triage", handoffs=[billing], limits=limits, journal=journal, observers=observers
        ).run("1 + 2?")


async def call_(observers: Observers, folder: Path) -> None:
    async with SqliteJournal(folder / "runs.db") as journal:
        await workflow(
            Fan(1), lambda item: Branch(add, {"one": item, "other": 2}), journal=journal, observers=observers
        ).run(SpreadContext([1]))


async def pipeline(observers: Observers, folder: Path) -> None:
    limits = PipelineLimits(max_iterations=9, token_budget=1_000)
    async with SqliteJournal(folder / "runs.db") as journal:
        await (
            Stages(judged=(SOFT, PASS))
            .pipeline(journal=journal, observers=observers, limits=limits)
            .run("goal")
        )


async def approval(observers: Observers, folder: Path) -> None:
    async with project(planted(folder), observers=observers) as opened:
        await waiting(opened)
        await opened.approve()


async def ralph(observers: Observers, folder: Path) -> None:
    world = World(folder, {Role.PLANNER: [{"status": "needs_qa_cycle"}], Role.REVIEWER: [NOT_QUALIFIED]})
    async with SqliteJournal(folder / "runs.db") as journal:
        await world.ralph(
            journal=journal, observers=observers, limits=RalphLimits(max_executions=9, max_replans=9)
        ).run("x")


async def code_mode(observers: Observers, folder: Path) -> None:
    llm = ScriptedLLM(["```repl\nprint(1)\n```", "FINAL(1)"])
    async with SqliteJournal(folder / "runs.db") as journal:
        await Rlm(
            llm, limits=RlmLimits(max_iterations=9, **TOKENS), journal=journal, observers=observers
        ).run("p", "data")


async def tools_mode(observers: Observers, folder: Path) -> None:
    llm = ScriptedLLM([call("add", one=1, other=2), "3"])
    limits = RlmLimits(max_iterations=9, **TOKENS)
    async with SqliteJournal(folder / "runs.db") as journal:
        await Rlm(llm, mode="tools", tools=[add], limits=limits, journal=journal, observers=observers).run(
            "1 + 2?"
        )


MACHINES: dict[str, Works] = {
    work.__name__.rstrip("_"): work
    for work in (llm_loop, team, call_, pipeline, approval, ralph, code_mode, tools_mode)
}


def members(value: dict[str, Any]) -> Iterator[str]:
    for name, inner in value.items():
        yield from (f"{name}.{one}" for one in members(inner)) if isinstance(inner, dict) else (name,)


async def seen(name: str, folder: Path) -> dict[str, Any]:
    """Run one machine and return everything that its observers received, by name."""
    facts: list[Fact] = []
    stream, registry = StringIO(), CollectorRegistry()

    class Kept:
        def observe(self, fact: Fact) -> None:
            facts.append(fact)

    log = TransitionLog(stream=stream, level="debug")
    await MACHINES[name]((Kept(), log, Metrics(registry)), folder)
    lines: dict[str, set[str]] = defaultdict(set)
    for text in stream.getvalue().splitlines():
        line = json.loads(text)
        lines[line["msg"]] |= line.keys()
    moved = {
        f"{sample.name}{{{','.join(sorted(sample.labels))}}}"
        for family in registry.collect()
        for sample in family.samples
        if sample.value and sample.labels.get("machine") == name and _counts(sample.name)
    }
    return {
        "facts": sorted({type(fact).__name__ for fact in facts}),
        "totals": sorted(
            {one for fact in facts if isinstance(fact, RunCompleted) for one in members(fact.summary or {})}
        ),
        "log": {msg: sorted(keys) for msg, keys in sorted(lines.items())},
        "metrics": sorted(moved),
    }


def _counts(sample: str) -> bool:
    """Return whether a sample is a count; times differ between runs."""
    return sample.endswith(("_total", "_count"))


def observability_text() -> str:
    """Return what every machine produces, as the text of the catalogue."""

    async def all_machines(folder: Path) -> dict[str, Any]:
        found = {}
        for name in MACHINES:
            (folder / name).mkdir()
            found[name] = await seen(name, folder / name)
        return found

    with TemporaryDirectory() as folder:
        return json.dumps(asyncio.run(all_machines(Path(folder))), indent=1) + "\n"
