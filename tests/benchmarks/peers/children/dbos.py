"""DBOS: a workflow for each run, with a step for each request to the model and for each call; its SQLite database.

Plain steps, as its documentation writes a durable agent: an asynchronous workflow, `DBOS.run_step_async`, and the id of
the workflow from `SetWorkflowID`. It always stores, so the workloads in memory are not measured. Its connections are
set to WAL as everybody's; tracing and its admin server are off.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID

from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, Script

_FILE = "dbos.db"
_current: list[Script] = []
"""The script of the present workload: workflows and steps are functions of a module, registered once."""


async def ask(turn: int) -> list[dict[str, Any]]:
    """Ask the model; return the arguments of its calls."""
    return [dict(call.arguments) for call in await _current[-1].calls(turn)]


async def look_up(arguments: dict[str, Any]) -> str:
    """Run one call."""
    return _current[-1].look_up(**arguments)


@DBOS.workflow()
async def conversation() -> str:
    """Ask the model and run its calls until it answers."""
    turn = 0
    while calls := await DBOS.run_step_async({"name": "ask"}, ask, turn):
        turn += 1
        if len(calls) == 1:
            await DBOS.run_step_async({"name": "look_up"}, look_up, calls[0])
        else:
            await asyncio.gather(
                *(DBOS.run_step_async({"name": "look_up"}, look_up, arguments) for arguments in calls)
            )
    return ANSWER


class Workflows:
    """The workflows of a workload."""

    def __init__(self, script: Script, _: Any = None) -> None:
        _current.append(script)

    async def run(self, name: str) -> str:
        """Run a conversation to its end."""
        with SetWorkflowID(name):
            return await conversation()

    resume = run


def without_store(script: Script) -> Workflows:
    """Raise Unable: there is no run without its database."""
    raise child.Unable("it always stores: see the journalled workloads")


@asynccontextmanager
async def opened(folder: str, spans: list[float]) -> AsyncIterator[Path]:
    """Launch it on a fresh database; the seconds of each step's record are taken from its own writes."""
    file = Path(folder) / _FILE
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA journal_mode=WAL")
    DBOS(
        config={
            "name": "benchmark",
            "system_database_url": f"sqlite:///{file}",
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )
    DBOS.launch()
    _time_writes(spans)
    try:
        yield file
    finally:
        DBOS.destroy()


def _time_writes(spans: list[float]) -> None:
    """Note the seconds of each record of a step, which DBOS writes in a thread."""
    from dbos._dbos import _get_dbos_instance

    database = _get_dbos_instance()._sys_db
    record = database.record_operation_result

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return record(*args, **kwargs)
        finally:
            spans.append(time.perf_counter() - started)

    database.record_operation_result = timed  # type: ignore[method-assign]


async def told(file: Path) -> str:
    """Say what the store is set to."""
    with sqlite3.connect(file) as database:
        ((mode,),) = database.execute("PRAGMA journal_mode")
        ((synchronous,),) = database.execute("PRAGMA synchronous")
    return f"SQLite {sqlite3.sqlite_version} (journal_mode={mode}, synchronous={synchronous})"


if __name__ == "__main__":
    why = "its runs are resumed together at its launch, before one of them can be asked for"
    child.serve(child.Side(("dbos",), without_store, opened, Workflows, told, unresumable=why))
