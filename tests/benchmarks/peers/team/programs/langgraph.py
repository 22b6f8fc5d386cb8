"""LangGraph: its checkpointer has the thread and the question; a swarm of its agents remembers who is active."""

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command
from langgraph_swarm import create_handoff_tool, create_swarm

from tests.benchmarks.peers.team import task


@tool
async def find_order(order: str) -> str:
    """Find an order."""
    return await task.look_up("find_order", order)


@tool
async def find_parcel(order: str) -> str:
    """Find the parcel of an order."""
    return await task.look_up("find_parcel", order)


@tool
async def find_terms(order: str) -> str:
    """Find the terms of an order."""
    return await task.look_up("find_terms", order)


@tool
def refund(order: str, euros: int) -> str:
    """Refund an order."""
    return task.refund(order, euros)


MODEL = f"openai:{task.MODEL}"
refunds = create_agent(
    MODEL,
    name="refunds",
    system_prompt=task.INSTRUCTIONS["refunds"],
    tools=[refund],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"refund": True})],
)
delivery = create_agent(
    MODEL,
    name="delivery",
    system_prompt=task.INSTRUCTIONS["delivery"],
    tools=[find_order, find_parcel, find_terms, create_handoff_tool(agent_name="refunds")],
)
triage = create_agent(
    MODEL,
    name="triage",
    system_prompt=task.INSTRUCTIONS["triage"],
    tools=[create_handoff_tool(agent_name="delivery")],
)
swarm = create_swarm([triage, delivery, refunds], default_active_agent="triage")


async def main(number: int, prompt: str) -> str:
    async with AsyncSqliteSaver.from_conn_string(str(task.STATE)) as checkpointer:
        team = swarm.compile(checkpointer=checkpointer)
        thread = {"configurable": {"thread_id": task.CASE}}
        state = await team.aget_state(thread)
        said = sum(message.type == "human" for message in state.values.get("messages", []))
        work: Any = None if said == number else {"messages": [{"role": "user", "content": prompt}]}
        while work is not None or state.next:
            for interrupt in state.interrupts:
                [action] = interrupt.value["action_requests"]
                approved = await task.ask_person(action["name"], action["args"])
                work = Command(resume={"decisions": [{"type": "approve" if approved else "reject"}]})
            await team.ainvoke(work, thread, durability="sync")
            work, state = None, await team.aget_state(thread)
        return state.values["messages"][-1].text


if __name__ == "__main__":
    task.main(main)
