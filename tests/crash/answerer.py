"""A process that answers questions of runs, each at the moment it is told, and says what came of it.

    python -m tests.crash.answerer JOURNAL     # `sqlite:PATH`, or the URL of a database

An order is a line of JSON: `run`, `call`, `at` (monotonic seconds, the same clock for all processes of a machine) and
`answer`, a decision with its options. The reply is a line: null, or the refusal with `said`, `by` and `decision`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from orchestrator.errors import AnswerRefused
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent


def journal_at(address: str) -> Any:
    kind, _, path = address.partition(":")
    return SqliteJournal(path) if kind == "sqlite" else PostgresJournal(address)


async def answered(agent: Agent, order: dict[str, Any]) -> dict[str, Any] | None:
    answer = dict(order["answer"])
    give = getattr(agent, answer.pop("decision"))
    while time.monotonic() < order["at"]:
        pass
    try:
        await give(order["run"], call=order["call"], **answer)
    except AnswerRefused as error:
        earlier = error.earlier or {}
        return {"said": str(error), "by": earlier.get("by"), "decision": earlier.get("decision")}
    return None


async def main(address: str) -> None:
    async with journal_at(address) as journal:
        agent = Agent(ScriptedLLM([]), journal=journal, observers=())
        print("ready", flush=True)  # noqa: T201  what the parent waits for
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await answered(agent, json.loads(line))), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
