"""A function of the host is called when a run parks."""

from __future__ import annotations

import asyncio

from orchestrator import Agent, Outcome, ToolCall, tool
from orchestrator.events import RunParked
from orchestrator.telemetry import ParkNotice
from orchestrator.testing import ScriptedLLM


@tool(approval=True)
def pay(secret: str) -> str:
    """Pay."""
    return f"paid {secret}"


async def test_a_callback_is_called_once_for_a_parked_run() -> None:
    told: list[RunParked] = []
    asked = asyncio.Event()

    def notice(fact: RunParked) -> None:
        told.append(fact)
        asked.set()

    llm = ScriptedLLM([[ToolCall("a", "pay", '{"secret": "canary"}')], "done"])
    agent = Agent(llm, tools=[pay], observers=[ParkNotice(notice)])
    running = asyncio.create_task(agent.run("pay", run_id="r"))
    await asked.wait()
    await agent.approve("r")
    assert (await running).outcome is Outcome.COMPLETED
    assert [(fact.run_id, fact.state, fact.reason) for fact in told] == [("r", "process_tools", "approval")]
