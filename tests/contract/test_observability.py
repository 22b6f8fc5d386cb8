"""What operators see of a run of each machine: the facts, the keys of each log line, the metrics that move.

`observability.json` lists it for one successful run of each of the six machines. Log keys, metric names and members of
a run's totals are an interface: a difference here is a change that users notice. With `ACCEPT=1` the
tests write the list anew.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.cli.shipped import SHIPPED
from orchestrator.kernel.record import Fact, Observer, RunCompleted
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.pipeline.limits import PipelineLimits
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.limits import RalphLimits
from orchestrator.providers.scripted import call
from orchestrator.rlm import Rlm, RlmLimits
from orchestrator.runtime.llm_loop.agent import Orchestrator
from orchestrator.telemetry import Metrics, TransitionLog
from orchestrator.telemetry.catalogue import CATALOGUE
from orchestrator.telemetry.line import KEYS
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.spec import tool
from tests.runtime.approval.stand import planted, project, waiting
from tests.runtime.pipeline_stage import PASS, SOFT, Stages
from tests.runtime.ralph_stage import NOT_QUALIFIED, World

GOLDEN = Path(__file__).with_name("observability.json")
TOKENS: dict[str, Any] = {"max_input_tokens": 10_000, "max_output_tokens": 10_000}
Observers = Iterable[Observer]
PREFIX = "orchestrator_"
Works = Callable[[Observers, Path], Awaitable[object]]


@tool(effect="pure")
def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


async def llm_loop(observers: Observers, _: Path) -> None:
    llm = ScriptedLLM([call("add", one=1, other=2), "3"])
    limits = Limits(max_iterations=9, max_tool_calls=9, **TOKENS)
    await Orchestrator(llm, tools=[add], limits=limits, observers=observers).run("1 + 2?")


async def pipeline(observers: Observers, _: Path) -> None:
    limits = PipelineLimits(max_iterations=9, token_budget=1_000)
    await Stages(judged=(SOFT, PASS)).pipeline(observers=observers, limits=limits).run("goal")


async def approval(observers: Observers, folder: Path) -> None:
    async with project(planted(folder), observers=observers) as opened:
        await waiting(opened)
        await opened.approve()


async def ralph(observers: Observers, folder: Path) -> None:
    world = World(folder, {Role.PLANNER: [{"status": "needs_qa_cycle"}], Role.REVIEWER: [NOT_QUALIFIED]})
    await world.ralph(observers=observers, limits=RalphLimits(max_executions=9, max_replans=9)).run_async("x")


async def code_mode(observers: Observers, _: Path) -> None:
    llm = ScriptedLLM(["```repl\nprint(1)\n```", "FINAL(1)"])
    await Rlm(llm, limits=RlmLimits(max_iterations=9, **TOKENS), observers=observers).completion("p", "data")


async def tools_mode(observers: Observers, _: Path) -> None:
    llm = ScriptedLLM([call("add", one=1, other=2), "3"])
    modes = Rlm(
        llm, mode="tools", tools=[add], limits=RlmLimits(max_iterations=9, **TOKENS), observers=observers
    )
    await modes.completion("1 + 2?")


MACHINES: dict[str, Works] = {
    work.__name__: work for work in (llm_loop, pipeline, approval, ralph, code_mode, tools_mode)
}
EVERYWHERE = frozenset(("RunStarted", "Transition", "JournalWrite"))
"""Facts that every machine publishes."""


def members(value: dict[str, Any]) -> Iterator[str]:
    for name, inner in value.items():
        yield from (f"{name}.{one}" for one in members(inner)) if isinstance(inner, dict) else (name,)


async def seen(name: str, folder: Path) -> dict[str, Any]:
    """Run one machine; return what its observers got."""
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
    """Tell whether a sample is a count: times differ from run to run."""
    return sample.endswith(("_total", "_count"))


def catalogue() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


@pytest.mark.parametrize("name", MACHINES)
async def test_operators_see_of_each_machine_what_the_catalogue_lists(name: str, tmp_path: Path) -> None:
    found = await seen(name, tmp_path)
    if os.environ.get("ACCEPT"):
        listed = catalogue() if GOLDEN.exists() else {}
        GOLDEN.write_text(json.dumps({**listed, name: found}, indent=1) + "\n")
    assert found == catalogue()[name]


def test_the_catalogue_has_every_machine_that_is_shipped_and_only_known_names() -> None:
    listed = catalogue()
    assert listed.keys() == MACHINES.keys() == SHIPPED.keys()
    for name, one in listed.items():
        assert set(one["facts"]) >= EVERYWHERE, name
        assert set().union(*one["log"].values()) <= KEYS, name
        families = {sample.partition("{")[0] for sample in one["metrics"]}
        known = {f"{PREFIX}{metric.name}{end}" for metric in CATALOGUE for end in ("", "_count")}
        assert families <= known, name
