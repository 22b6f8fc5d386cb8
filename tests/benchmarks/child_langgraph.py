"""LangGraph's side of the journalled cases: a StateGraph of agent and tools, with its SQLite checkpointer.

As its documentation builds it: MessagesState, ToolNode, tools_condition, one AsyncSqliteSaver for all threads,
and `durability="sync"`, the mode in which a step's checkpoint is on disk before the next step starts. The agent's
node returns the scripted message itself: no chat model is wrapped around it, which favours LangGraph.

Runs with the interpreter of the peers' environment, where our own package is not installed.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiosqlite  # type: ignore[import-not-found, unused-ignore]
from langchain_core.messages import AIMessage, HumanMessage  # type: ignore[import-not-found, unused-ignore]
from langchain_core.tools import tool  # type: ignore[import-not-found, unused-ignore]
from langgraph.checkpoint.sqlite.aio import (  # type: ignore[import-not-found, unused-ignore]
    AsyncSqliteSaver,
)
from langgraph.graph import START, MessagesState, StateGraph  # type: ignore[import-not-found, unused-ignore]
from langgraph.prebuilt import ToolNode, tools_condition  # type: ignore[import-not-found, unused-ignore]

from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, PROMPT, RUN_ID, Script, arguments

_FILE = "checkpoints.db"
_DURABILITY = "sync"
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
        turn = await script.turn(len(state["messages"]))
        if turn is None:
            return {"messages": [AIMessage(ANSWER, usage_metadata=_USAGE)]}
        call = {"id": f"call_{turn}", "name": "look_up", "args": arguments(turn)}
        return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=_USAGE)]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", ask)
    graph.add_node("tools", ToolNode([look_up]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def opened(folder: str) -> AsyncIterator[Any]:
    """Open the checkpointer and make its tables."""
    async with AsyncSqliteSaver.from_conn_string(str(Path(folder) / _FILE)) as saver:
        await saver.setup()
        yield saver


def invoked(graph: Any, script: Script, given: object, thread: str) -> Awaitable[Any]:
    """Run a thread; `given` is None to go on with it. A turn is two steps."""
    config = {"configurable": {"thread_id": thread}, "recursion_limit": 4 * script.turns + 10}
    run: Awaitable[Any] = graph.ainvoke(given, config, durability=_DURABILITY)
    return run


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


async def about(folder: str) -> child.Answer:
    """Name what is measured."""
    async with opened(folder) as saver:
        set_to = ", ".join([await _pragma(saver.conn, name) for name in ("journal_mode", "synchronous")])
        async with saver.conn.execute("SELECT sqlite_version()") as cursor:
            (sqlite,) = await cursor.fetchone()
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("langgraph", "langgraph-checkpoint-sqlite", "aiosqlite")
    )
    return {"about": f'{packages}, SQLite {sqlite} ({set_to}), durability="{_DURABILITY}"'}


async def _pragma(connection: aiosqlite.Connection, name: str) -> str:
    async with connection.execute(f"PRAGMA {name}") as cursor:
        (value,) = await cursor.fetchone()
    return f"{name}={value}"


async def journalled(folder: str, runs: int, turns: int) -> child.Answer:
    """Measure `runs` threads at once."""
    script = Script(turns)
    spans: list[float] = []
    async with opened(folder) as saver:
        saver.aput, saver.aput_writes = timed(saver.aput, spans), timed(saver.aput_writes, spans)
        graph = compiled(script, saver)
        started = time.perf_counter()
        given = {"messages": [HumanMessage(PROMPT)]}
        ends = await asyncio.gather(*(invoked(graph, script, given, str(number)) for number in range(runs)))
        seconds = time.perf_counter() - started
    script.proved(effects=runs * turns, asked=runs * (turns + 1))
    if any(end["messages"][-1].content != ANSWER for end in ends):
        raise RuntimeError("a thread ended without the answer")
    return child.journalled(seconds, runs * turns, spans, folder)


async def prepare(folder: str, turns: int) -> child.Answer:
    """Leave a thread of `turns` turns in the folder, stopped while the model was asked once more."""
    script = Script(turns, blocks=True)
    async with opened(folder) as saver:
        given = {"messages": [HumanMessage(PROMPT)]}
        await script.stop(invoked(compiled(script, saver), script, given, RUN_ID))
    script.proved(effects=turns, asked=turns + 1)
    return {"bytes_per_turn": child.size(folder) / turns}


async def resume(folder: str, turns: int) -> child.Answer:
    """Measure from the call of `ainvoke(None)` until the model is asked, then let the thread end."""
    script = Script(turns)
    async with opened(folder) as saver:
        graph = compiled(script, saver)
        started = time.perf_counter()
        end = await invoked(graph, script, None, RUN_ID)
    script.proved(effects=0, asked=1)
    if end["messages"][-1].content != ANSWER:
        raise RuntimeError("the resumed thread ended without the answer")
    return {"resume_ms": (script.asked_at[0] - started) * 1e3}


if __name__ == "__main__":
    child.serve({"about": about, "journalled": journalled, "prepare": prepare, "resume": resume})
