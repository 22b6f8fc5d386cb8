"""LangGraph: a StateGraph of agent and tools, and for the journalled cases its SQLite checkpointer.

As its documentation builds it: MessagesState, ToolNode, tools_condition, one AsyncSqliteSaver for all threads,
and `durability="sync"`, the mode in which a step's checkpoint is on disk before the next step starts. With the argument
`async` the next step starts meanwhile, as LangGraph's default has it: a crash may lose the last steps. The agent's
node returns the scripted message itself: no chat model is wrapped around it, which favours LangGraph.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage  # type: ignore[import-not-found, unused-ignore]
from langchain_core.tools import tool  # type: ignore[import-not-found, unused-ignore]
from langgraph.checkpoint.sqlite.aio import (  # type: ignore[import-not-found, unused-ignore]
    AsyncSqliteSaver,
)
from langgraph.graph import START, MessagesState, StateGraph  # type: ignore[import-not-found, unused-ignore]
from langgraph.prebuilt import ToolNode, tools_condition  # type: ignore[import-not-found, unused-ignore]

from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, PROMPT, TOOL, Script

_FILE = "checkpoints.db"
_DURABILITY = "async" if "async" in sys.argv[1:] else "sync"
_USAGE = {
    "input_tokens": INPUT_TOKENS,
    "output_tokens": OUTPUT_TOKENS,
    "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
}


def compiled(script: Script, saver: Any) -> Any:
    """Return the graph under test."""

    @tool  # type: ignore[untyped-decorator, unused-ignore]
    async def look_up(key: str, depth: int = 1) -> str:
        """Look something up."""
        return script.look_up(key, depth)

    async def ask(state: MessagesState) -> dict[str, Any]:
        calls = await script.calls(len(state["messages"]) // (1 + script.tools))
        if not calls:
            return {"messages": [AIMessage(ANSWER, usage_metadata=_USAGE)]}
        named = [{"id": call.id, "name": TOOL, "args": call.arguments} for call in calls]
        return {"messages": [AIMessage("", tool_calls=named, usage_metadata=_USAGE)]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", ask)
    graph.add_node("tools", ToolNode([look_up]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile(checkpointer=saver)


class Threads:
    """One compiled graph; with a checkpointer a run is a thread of it."""

    def __init__(self, script: Script, saver: Any = None) -> None:
        self._script = script
        self._graph = compiled(script, saver)
        self._durable = {"durability": _DURABILITY} if saver else {}

    async def run(self, name: str) -> str:
        """Run a conversation to its end."""
        return await self._invoke({"messages": [HumanMessage(PROMPT)]}, name)

    async def resume(self, name: str) -> str:
        """Go on with a thread."""
        return await self._invoke(None, name)

    async def _invoke(self, given: object, name: str) -> str:
        """A turn is two steps, and the default limit of steps is out of the way."""
        config = {"configurable": {"thread_id": name}, "recursion_limit": 4 * self._script.turns + 10}
        end = await self._graph.ainvoke(given, config, **self._durable)
        return str(end["messages"][-1].content)


@asynccontextmanager
async def opened(folder: str, spans: list[float]) -> AsyncIterator[Any]:
    """Open the checkpointer and make its tables."""
    async with AsyncSqliteSaver.from_conn_string(str(Path(folder) / _FILE)) as saver:
        await saver.setup()
        saver.aput, saver.aput_writes = timed(saver.aput, spans), timed(saver.aput_writes, spans)
        yield saver


def timed(write: Callable[..., Awaitable[Any]], spans: list[float]) -> Callable[..., Awaitable[Any]]:
    """Note the seconds of each write, waiting for the connection's lock included."""

    @functools.wraps(write)  # LangGraph looks at the signature
    async def timing(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return await write(*args, **kwargs)
        finally:
            spans.append(time.perf_counter() - started)

    return timing


async def told(saver: Any) -> str:
    """Say what the store is set to."""
    set_to = []
    for name in ("journal_mode", "synchronous"):
        async with saver.conn.execute(f"PRAGMA {name}") as cursor:
            (value,) = await cursor.fetchone()
        set_to.append(f"{name}={value}")
    async with saver.conn.execute("SELECT sqlite_version()") as cursor:
        (sqlite,) = await cursor.fetchone()
    return f'SQLite {sqlite} ({", ".join(set_to)}), durability="{_DURABILITY}"'


if __name__ == "__main__":
    packages = ("langgraph", "langchain-core", "langgraph-checkpoint-sqlite", "aiosqlite")
    child.serve(child.Side(packages, Threads, opened, Threads, told))
