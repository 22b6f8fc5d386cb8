"""LangGraph: a StateGraph with ToolNode and its SQLite checkpointer, as its documentation builds them."""

from __future__ import annotations

import asyncio
import operator
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import (  # type: ignore[import-not-found, unused-ignore]
    GenericFakeChatModel,
)
from langchain_core.messages import AIMessage, HumanMessage  # type: ignore[import-not-found, unused-ignore]
from langchain_core.tools import tool  # type: ignore[import-not-found, unused-ignore]
from langgraph.checkpoint.sqlite.aio import (  # type: ignore[import-not-found, unused-ignore]
    AsyncSqliteSaver,
)
from langgraph.errors import GraphRecursionError  # type: ignore[import-not-found, unused-ignore]
from langgraph.graph import END, START, MessagesState, StateGraph  # type: ignore[import-not-found, unused-ignore]
from langgraph.prebuilt import ToolNode, tools_condition  # type: ignore[import-not-found, unused-ignore]
from langgraph.types import Command, Send, interrupt  # type: ignore[import-not-found, unused-ignore]

from tests.benchmarks.peers.features import probe
from tests.benchmarks.peers.features.probe import ANSWER, PROMPT, TOOL, World

UNABLE = {
    "tokens": ("no", "its limit counts steps (recursion_limit)"),
    "metrics": ("no", "no metrics in the package; traces go to LangSmith"),
}
THREAD = {"configurable": {"thread_id": "r"}, "recursion_limit": 2 * probe.CAP}
FIRST = {"messages": [HumanMessage(PROMPT)]}


def compiled(
    world: World, saver: Any = None, *, asks: bool = False, endless: bool = False, sleeps: bool = False
) -> Any:
    """Return the agent of a scenario."""

    @tool(TOOL)  # type: ignore[untyped-decorator, unused-ignore]
    async def pay() -> str:
        """Pay an invoice."""
        if asks:
            interrupt({"may": TOOL})
        if sleeps:
            await world.sleep()
        return await world.tool()

    async def ask_model(state: MessagesState) -> dict[str, Any]:
        earlier = sum(isinstance(one, AIMessage) for one in state["messages"])
        if await world.model(earlier) or endless:
            call = {"id": f"c{earlier}", "name": TOOL, "args": {}}
            return {"messages": [AIMessage("", tool_calls=[call])]}
        return {"messages": [AIMessage(ANSWER)]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", ask_model)
    builder.add_node("tools", ToolNode([pay]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=saver)


def opened(world: World) -> AbstractAsyncContextManager[Any]:
    """Open the checkpointer."""
    saver: AbstractAsyncContextManager[Any] = AsyncSqliteSaver.from_conn_string(str(world.folder / "db"))
    return saver


async def _invoke(world: World, given: object, **options: Any) -> dict[str, Any]:
    async with opened(world) as saver:
        end = await compiled(world, saver, **options).ainvoke(given, THREAD, durability="sync")
        return {"output": end["messages"][-1].content, "asked": bool(end.get("__interrupt__"))}


async def run(world: World) -> dict[str, Any]:
    """Start a durable thread."""
    return await _invoke(world, FIRST)


async def resume(world: World) -> dict[str, Any]:
    """Continue it in another process."""
    return await _invoke(world, None)


async def ask(world: World) -> dict[str, Any]:
    """Let a thread come to an interrupt, and die."""
    if (await _invoke(world, FIRST, asks=True))["asked"]:
        world.die()
    return {"error": "no interrupt"}


async def answer(world: World) -> dict[str, Any]:
    """Answer in another process."""
    return await _invoke(world, Command(resume=True), asks=True)


async def graph(world: World) -> dict[str, Any]:
    """Print the control flow of the agent."""
    text = compiled(world).get_graph().draw_mermaid()
    return {"ok": "agent" in text and "tools" in text, "observed": "Mermaid"}


async def lint(world: World) -> dict[str, Any]:
    """Build a graph with a state that cannot be reached."""
    builder = StateGraph(MessagesState)
    for name in ("agent", "lost"):
        builder.add_node(name, lambda state: state)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", END)
    builder.add_edge("lost", END)
    try:
        builder.compile()
    except ValueError as error:
        return {"ok": True, "observed": f"refused: {error}"}
    return {"ok": False, "observed": "accepted"}


async def repeat(world: World) -> dict[str, Any]:
    """Run a model that repeats one call for ever, with a cap on steps that is far away."""
    try:
        await compiled(world, endless=True).ainvoke(FIRST, THREAD)
    except GraphRecursionError:
        return {"ok": False, "observed": f"ended at the cap, after {world.count('model')} requests"}
    return {"ok": True, "observed": f"ended after {world.count('model')} requests"}


async def cancel(world: World) -> dict[str, Any]:
    """Cancel a run while its tool works."""
    return await world.cancel(compiled(world, sleeps=True).ainvoke(FIRST, THREAD))


async def stream(world: World) -> dict[str, Any]:
    """Read the text of the answer while it arrives."""
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))

    async def ask_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", ask_model)
    builder.add_edge(START, "agent")
    pieces = [
        piece.content
        async for piece, _ in builder.compile().astream(FIRST, stream_mode="messages")
        if piece.content
    ]
    return {"ok": len(pieces) > 1, "observed": f"{len(pieces)} pieces"}


async def fork(world: World) -> dict[str, Any]:
    """Continue a thread from an earlier checkpoint; the later ones stay."""
    async with opened(world) as saver:
        agent = compiled(world, saver)
        await agent.ainvoke(FIRST, THREAD)
        states = [one async for one in agent.aget_state_history(THREAD)]
        after_tool = next(one for one in states if one.next == ("agent",) and len(one.values["messages"]) > 1)
        before = world.count("model")
        end = await agent.ainvoke(None, after_tool.config)
        kept = len([one async for one in agent.aget_state_history(THREAD)]) > len(states)
        asked = world.count("model") - before
        ok = end["messages"][-1].content == ANSWER and asked == 1 and kept
        return {"ok": ok, "observed": f"from a checkpoint, {asked} request"}


class _Branches(TypedDict):
    results: Annotated[list[int], operator.add]


async def parallel(world: World) -> dict[str, Any]:
    """Run two branches at the same time and join them."""
    both = asyncio.Barrier(2)

    async def branch(number: int) -> dict[str, Any]:
        await asyncio.wait_for(both.wait(), 5)  # passes only if both run at the same time
        return {"results": [number]}

    builder = StateGraph(_Branches)
    builder.add_node("branch", branch)
    builder.add_node("join", lambda state: {"results": []})
    builder.add_conditional_edges(START, lambda state: [Send("branch", 1), Send("branch", 2)])
    builder.add_edge("branch", "join")
    end = await builder.compile().ainvoke({"results": []})
    return {"ok": sorted(end["results"]) == [1, 2], "observed": "two branches, joined"}


async def handoff(world: World) -> dict[str, Any]:
    """Let one agent pass the conversation to another, which answers."""

    async def first(state: MessagesState) -> Any:
        return Command(goto="second")

    async def second(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("from the second")]}

    builder = StateGraph(MessagesState)
    builder.add_node("first", first, destinations=("second",))
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    end = await builder.compile().ainvoke(FIRST)
    return {"ok": end["messages"][-1].content == "from the second", "observed": "Command(goto=…)"}


async def talk(world: World) -> dict[str, Any]:
    """Say something in a thread; the answer is how many messages the model sees."""

    async def count(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(str(len(state["messages"])))]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", count)
    builder.add_edge(START, "agent")
    async with opened(world) as saver:
        end = await builder.compile(checkpointer=saver).ainvoke(FIRST, THREAD)
        return {"output": end["messages"][-1].content}


async def vendors(world: World) -> dict[str, Any]:
    """Count the vendors of models with an adapter of their own: LangChain has a package for each."""
    from langchain_core.language_models import BaseChatModel  # type: ignore[import-not-found, unused-ignore]

    return {
        "ok": issubclass(GenericFakeChatModel, BaseChatModel),
        "value": "LangChain",
        "observed": "packages of LangChain",
    }


if __name__ == "__main__":
    probe.main(globals(), ("langgraph", "langgraph-checkpoint-sqlite"))
