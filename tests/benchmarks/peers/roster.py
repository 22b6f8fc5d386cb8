"""The contestants: what each is called, how its process starts, and what it does more or less than ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import environments
from tests.benchmarks.contestant import Contestant, NotMeasured

OURS = "ours"
HAND = "hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One contestant. `remark` is a sentence on what it does more or less than ours in this work."""

    name: str
    title: str
    module: str
    remark: str
    arguments: Sequence[str] = ()
    environment: str = ""
    """Name of its environment and of its file of pins; empty for those that run in ours."""
    bundled: bool = False
    """Whether our own environment holds all it needs."""
    package: str = ""
    """What is imported by its name alone; empty where nothing is, and `unpackaged` says why."""
    unpackaged: str = ""
    imports: str = ""
    """What a user's first lines import."""

    def interpreter(self, root: Path, *, install: bool) -> Path:
        """Return the interpreter of its environment under `root`. Raises NotMeasured."""
        if not self.environment:
            return Path(sys.executable)
        folder = root / self.environment
        if install:
            return environments.environment(folder, environments.PINS / f"{self.environment}.txt")
        if found := environments.there(folder):
            return found
        if self.bundled:
            return Path(sys.executable)
        raise NotMeasured("its environment is not there, and nothing was to be installed")

    def contestant(self, root: Path, *, install: bool, timeout: float) -> Contestant:
        """Start its process."""
        try:
            interpreter = self.interpreter(root, install=install)
        except NotMeasured as why:
            return Contestant(self.name, (), why_not=str(why))
        command: list[str | Path] = [
            interpreter,
            "-m",
            f"tests.benchmarks.peers.children.{self.module}",
            *self.arguments,
        ]
        return Contestant(self.name, command, timeout=timeout)

    def footing(self, root: Path, *, install: bool) -> Callable[[], Path]:
        """Return what makes the environment that its size and import time are taken in."""
        if self.module == "ours" and install:
            return lambda: environments.ours(root / OURS)
        return lambda: self.interpreter(root, install=install)


ROSTER = (
    Entry(
        name=OURS,
        title="ours",
        module="ours",
        arguments=("full",),
        bundled=True,
        package="orchestrator",
        imports="from orchestrator import Limits, Agent, tool",
        remark=(
            "With its JSON log (a line for each transition, to a file), every metric, its in-memory journal, and the "
            "budget, loop and progress guards on; it does not stream here and no provider's wire format is made."
        ),
    ),
    Entry(
        name="ours, bare",
        title="ours, bare",
        module="ours",
        bundled=True,
        unpackaged="as ours",
        remark="The same without log and metrics; journal and guards stay on.",
    ),
    Entry(
        name=HAND,
        title="hand-written loop",
        module="by_hand",
        unpackaged="it is code of one's own: nothing is installed or imported",
        bundled=True,
        remark=(
            "Less: no state, log, metric, journal, guard but a cap, argument check, timeout or resume; it is what "
            "one writes in an afternoon, and the yardstick."
        ),
    ),
    Entry(
        name="transitions",
        title="transitions AsyncMachine",
        module="transitions_async",
        environment="transitions",
        bundled=True,
        package="transitions",
        imports="from transitions.extensions.asyncio import AsyncMachine",
        remark=(
            "The library that ours stands on, with the same four transitions a turn. Less: no agent in it, so no "
            "tool schema, retry, log, metric, journal or timeout; it loses cancellation, which ours repairs."
        ),
    ),
    Entry(
        name="python-statemachine",
        title="python-statemachine",
        module="python_statemachine",
        environment="python-statemachine",
        package="statemachine",
        imports="from statemachine import State, StateChart",
        remark=(
            "The same four transitions a turn. More: full statecharts (compound, parallel and history states). Less: "
            "no agent in it, so no tool schema, retry, log, metric or journal."
        ),
    ),
    Entry(
        name="burr",
        title="Burr",
        module="burr",
        environment="burr",
        package="burr.core",
        imports="from burr.core import ApplicationBuilder, State, action, default, expr",
        remark=(
            "More: its state is immutable, so each step's is a value of its own that can be kept. Less: tools and "
            "their errors are the user's code; no metric, budget or loop guard; its tracker is off."
        ),
    ),
    Entry(
        name="llama-index",
        title="LlamaIndex Workflows",
        module="llama_index",
        environment="llama-index",
        package="workflows",
        imports="from workflows import Context, Workflow, step",
        remark=(
            "More: steps fan out and wait for events, and events can be streamed. Less: tools and their errors are "
            "the user's code; no metric, budget or loop guard."
        ),
    ),
    Entry(
        name="langgraph",
        title="LangGraph",
        module="langgraph",
        environment="langgraph",
        package="langgraph.graph",
        imports="from langgraph.graph import START, MessagesState, StateGraph\n"
        "from langgraph.prebuilt import ToolNode, tools_condition",
        remark=(
            "More: the whole state after each step can be a checkpoint to read and branch from, and every step can "
            "be streamed. Less: no metric or loop guard; no chat model is wrapped round its script, in its favour."
        ),
    ),
    Entry(
        name="pydantic-ai",
        title="pydantic-ai",
        module="pydantic_ai",
        environment="pydantic-ai",
        package="pydantic_ai",
        imports="from pydantic_ai import Agent",
        remark=(
            "More: provider-neutral message parts and typed dependencies. Less: no journal, metric or loop guard; "
            "the slim package without any vendor's client, its instrumentation off."
        ),
    ),
    Entry(
        name="openai-agents",
        title="openai-agents",
        module="openai_agents",
        environment="openai-agents",
        package="agents",
        imports="from agents import Agent, Runner, function_tool",
        remark=(
            "More: handoffs, guardrails on input and output, and items in the Responses API's own format. Less: no "
            "journal, metric or loop guard; its tracing, on by default, is off."
        ),
    ),
)

LANGGRAPH_ASYNC = Entry(
    name="langgraph, async",
    title="LangGraph, async",
    module="langgraph",
    arguments=("async",),
    environment="langgraph",
    unpackaged="as langgraph",
    remark=(
        "LangGraph's default: a step's checkpoint is written while the next one runs. Less: a crash may lose steps "
        "whose effects have happened, which then happen again."
    ),
)
"""The same library with its default durability: it takes part in the journalled workloads of `make bench` only."""

DBOS = Entry(
    name="dbos",
    title="DBOS",
    module="dbos",
    environment="dbos",
    package="dbos",
    imports="from dbos import DBOS, SetWorkflowID",
    remark=(
        "Plain steps without an agent library. More: queues, schedules and messages between workflows. Less: no "
        "table of states, tool schema, metric, budget or loop guard; a tool with an effect may run twice."
    ),
)
"""A store without an agent: it takes part in the journalled workloads of `make bench` only."""
