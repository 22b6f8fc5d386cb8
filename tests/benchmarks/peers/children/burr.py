"""Burr: an application of two actions and its answer for each run; for the journalled cases its SQLite persister.

As its documentation builds an asynchronous one: `abuild`, `arun(halt_after=…)`, AsyncSQLitePersister. Its connection
is set to WAL as everybody's, which the persister leaves to its user. No tracker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from burr.core import (  # type: ignore[import-not-found, unused-ignore]
    ApplicationBuilder,
    State,
    action,
    default,
    expr,
)
from burr.integrations.persisters.b_aiosqlite import (  # type: ignore[import-not-found, unused-ignore]
    AsyncSQLitePersister,
)

from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, PROMPT, TOOL, Script

_FILE = "burr.db"
_START: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}]}


@action(reads=["messages"], writes=["messages"])  # type: ignore[untyped-decorator, unused-ignore]
async def ask(state: State, script: Script) -> State:
    """Ask the model."""
    calls = await script.calls(len(state["messages"]) // (1 + script.tools))
    named = [{"id": call.id, "name": TOOL, "arguments": call.arguments} for call in calls]
    return state.append(
        messages={"role": "assistant", "content": None if calls else ANSWER, "tool_calls": named}
    )


@action(reads=["messages"], writes=["messages"])  # type: ignore[untyped-decorator, unused-ignore]
async def look_up(state: State, script: Script) -> State:
    """Run the tools at once."""

    async def result(call: dict[str, Any]) -> dict[str, Any]:
        content = script.look_up(**call["arguments"])
        return {"role": "tool", "tool_call_id": call["id"], "content": content}

    return state.extend(messages=await asyncio.gather(*map(result, state["messages"][-1]["tool_calls"])))


@action(reads=["messages"], writes=["answer"])  # type: ignore[untyped-decorator, unused-ignore]
async def answer(state: State) -> State:
    """Hand over the last word."""
    return state.update(answer=state["messages"][-1]["content"])


class Applications:
    """An application for each run."""

    def __init__(self, script: Script, persister: Any = None) -> None:
        self._script = script
        self._persister = persister

    async def run(self, name: str) -> str:
        """Run a conversation to its end, from the start or from where the persister has it."""
        builder = (
            ApplicationBuilder()
            .with_actions(
                ask=ask.bind(script=self._script), look_up=look_up.bind(script=self._script), answer=answer
            )
            .with_transitions(
                ("ask", "look_up", expr("len(messages[-1]['tool_calls']) > 0")),
                ("ask", "answer", default),
                ("look_up", "ask"),
            )
        )
        if self._persister is None:
            builder = builder.with_state(**_START).with_entrypoint("ask")
        else:
            builder = (
                builder.with_identifiers(app_id=name)
                .initialize_from(
                    self._persister,
                    resume_at_next_action=True,
                    default_state=_START,
                    default_entrypoint="ask",
                )
                .with_state_persister(self._persister)
            )
        _, _, state = await (await builder.abuild()).arun(halt_after=["answer"])
        return str(state["answer"])

    resume = run


class TimedPersister(AsyncSQLitePersister):  # type: ignore[misc, unused-ignore]
    """Notes the seconds of each save."""

    spans: list[float]

    async def save(self, *args: Any, **kwargs: Any) -> None:
        """Save, and note when it is done."""
        started = time.perf_counter()
        try:
            await super().save(*args, **kwargs)
        finally:
            self.spans.append(time.perf_counter() - started)


@asynccontextmanager
async def opened(folder: str, spans: list[float]) -> AsyncIterator[Any]:
    """Open the persister and make its table."""
    async with TimedPersister.from_values(db_path=str(Path(folder) / _FILE)) as persister:
        await persister.connection.execute("PRAGMA journal_mode=WAL")
        await persister.initialize()
        persister.spans = spans
        yield persister


async def told(persister: Any) -> str:
    """Say what the store is set to."""
    set_to = []
    for name in ("journal_mode", "synchronous"):
        async with persister.connection.execute(f"PRAGMA {name}") as cursor:
            (value,) = await cursor.fetchone()
        set_to.append(f"{name}={value}")
    async with persister.connection.execute("SELECT sqlite_version()") as cursor:
        (sqlite,) = await cursor.fetchone()
    return f"SQLite {sqlite} ({', '.join(set_to)})"


if __name__ == "__main__":
    # Seen: a cancelled `ask` is on disk as completed, with the messages from before it, and the run goes on after it.
    why = "it saves a step that was cancelled as completed, so a run stopped at its model goes on past it"
    side = child.Side(("apache-burr", "aiosqlite"), Applications, opened, Applications, told, unresumable=why)
    child.serve(side)
