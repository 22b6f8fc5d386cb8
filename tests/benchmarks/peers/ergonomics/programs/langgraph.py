"""LangGraph: its checkpointer has the run and the question; `create_agent` of LangChain is its agent."""

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentState, HumanInTheLoopMiddleware, before_model
from langchain.messages import AIMessage, AIMessageChunk
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models import BaseChatModel, FakeMessagesListChatModel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.runtime import Runtime
from langgraph.types import Command

from tests.benchmarks.peers.ergonomics import task
from tests.benchmarks.peers.ergonomics.task import Receipt, Shop


@tool
def price(order: str, runtime: ToolRuntime[Shop]) -> str:
    """Look up the price of an order."""
    return runtime.context.price(order)


@tool
def refund(order: str, euros: int, runtime: ToolRuntime[Shop]) -> str:
    """Refund an order."""
    return runtime.context.refund(order, euros)


@before_model
def limit(state: AgentState[Any], runtime: Runtime[Shop]) -> None:
    answers = [message for message in state["messages"] if isinstance(message, AIMessage)]
    if (
        sum(answer.usage_metadata["output_tokens"] for answer in answers if answer.usage_metadata)
        > task.TOKENS
    ):
        raise RuntimeError("the run is past its limit on tokens")


async def run(model: str | BaseChatModel, checkpointer: BaseCheckpointSaver[Any]) -> Receipt:
    agent = create_agent(
        model,
        system_prompt=task.INSTRUCTIONS,
        tools=[price, refund],
        context_schema=Shop,
        response_format=Receipt,
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"refund": True}), limit],
        checkpointer=checkpointer,
    )
    thread = {"configurable": {"thread_id": task.RUN}}
    while not (state := await agent.aget_state(thread)).values.get("structured_response"):
        work: Any = None if state.values else {"messages": [{"role": "user", "content": task.PROMPT}]}
        for interrupt in state.interrupts:
            [action] = interrupt.value["action_requests"]
            approved = await task.ask_person(action["name"], action["args"])
            work = Command(resume={"decisions": [{"type": "approve" if approved else "reject"}]})
        async for message, _ in agent.astream(
            work, thread, context=Shop(), stream_mode="messages", durability="sync"
        ):
            if isinstance(message, AIMessageChunk):
                task.show(message.text)
    return state.values["structured_response"]


async def main() -> None:
    async with AsyncSqliteSaver.from_conn_string(str(task.STATE)) as checkpointer:
        task.finish(await run(f"openai:{task.MODEL}", checkpointer))


class FakeModel(FakeMessagesListChatModel):
    def bind_tools(self, *args: Any, **options: Any) -> "FakeModel":
        return self


async def test() -> None:
    calls = [
        ("price", {"order": "A-17"}),
        ("refund", {"order": "A-17", "euros": 40}),
        ("Receipt", task.RECEIPT.model_dump()),
    ]
    answers = [
        AIMessage("", tool_calls=[{"id": f"call_{name}", "name": name, "args": arguments}])
        for name, arguments in calls
    ]
    assert await run(FakeModel(responses=answers), InMemorySaver()) == task.RECEIPT


if __name__ == "__main__":
    task.main(main, test)
