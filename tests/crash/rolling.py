"""An agent in two versions, for the workers of a rolling deploy: `--agent tests.crash.rolling:old`.

Each call writes run, turn and version to FLEET_FOLDER/calls.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from orchestrator.kernel.graph import Edge, Graph
from orchestrator.llm.message import Request
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.recovery import Migration
from orchestrator.tools.spec import ToolContext, tool
from tests.with_runtime import with_runtime

TURNS = 4
NEWER = LLM_LOOP.extend(edges=[Edge("budget_exceeded", ("handle_completion",), "terminate_error")])
GRAPHS = {"1": LLM_LOOP, "2": NEWER}


def made(journal: Any, version: str, **options: Any) -> Agent:
    @tool(effect="idempotent")
    async def step(context: ToolContext, turn: int) -> str:
        await asyncio.sleep(0.2)
        with (Path(os.environ["FLEET_FOLDER"]) / "calls").open("a") as file:
            file.write(f"{context.run_id} {turn} {version}\n")
        return f"step {turn}"

    def answer(request: Request) -> Answer:
        turn = sum(message.role == "assistant" for message in request.messages)
        return call("step", turn=turn) if turn < TURNS else f"done in {turn} turns"

    graph: Graph = GRAPHS[version]
    model = FunctionLLM(answer)
    return Agent(
        model,
        tools=[step],
        name="sales",
        version=version,
        graph=graph,
        **with_runtime(journal=journal, observers=(), **options),
    )


def old(journal: Any) -> Agent:
    """Return the version that is replaced."""
    return made(journal, "1")


def new(journal: Any) -> Agent:
    """Return the version that replaces it."""
    return made(journal, "2", migrations=[Migration(LLM_LOOP.fingerprint, lambda stored: stored)])


def without_migration(journal: Any) -> Agent:
    """Return the version that replaces it, before its migration was written."""
    return made(journal, "2")
