"""LangGraph: its checkpointer has the question; `create_agent` of LangChain is its agent."""

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.messages import AIMessageChunk
from langchain.tools import ToolRuntime, tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, ValuesStreamPart

from tests.benchmarks.peers.ergonomics import task
from tests.benchmarks.peers.ergonomics.task import Receipt, Shop


@tool
def refund(order: str, euros: int, runtime: ToolRuntime[Shop]) -> str:
    """Refund an order."""
    return runtime.context.refund(order, euros)


async def run(work: dict[str, Any] | Command[Any]) -> ValuesStreamPart[Any]:
    async with AsyncSqliteSaver.from_conn_string(str(task.STATE)) as checkpointer:
        agent = create_agent(
            f"openai:{task.MODEL}",
            system_prompt=task.INSTRUCTIONS,
            tools=[refund],
            context_schema=Shop,
            response_format=Receipt,
            middleware=[HumanInTheLoopMiddleware(interrupt_on={"refund": True})],
            checkpointer=checkpointer,
        )
        async for part in agent.astream(
            work,
            {"configurable": {"thread_id": task.RUN}},
            context=Shop(),
            stream_mode=["messages", "values"],
            version="v2",
        ):
            if part["type"] == "values":
                state = part
            elif part["type"] == "messages" and isinstance(part["data"][0], AIMessageChunk):
                task.show(part["data"][0].text)
        return state


async def start() -> None:
    state = await run({"messages": [{"role": "user", "content": task.PROMPT}]})
    for interrupt in state["interrupts"]:
        for action in interrupt.value["action_requests"]:
            task.ask_person(action["name"], action["args"])


async def approve() -> None:
    state = await run(Command(resume={"decisions": [{"type": "approve"}]}))
    task.finish(state["data"]["structured_response"])


if __name__ == "__main__":
    task.main(start, approve)
