"""A process with an engine that runs one agent: `python -m tests.console.host JOURNAL GATES [RUN]`.

Each answer of the model waits for a file in GATES, so that a test decides when the run continues.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from orchestrator import Agent, LocalEngine, Request, Response, SqliteJournal, Usage
from orchestrator.providers.scripted import FunctionLLM, call
from tests.console.stored import look, pay


async def main(journal_path: str, gates: str, run_id: str | None = None) -> None:
    """Run until killed; with a run id, start that run first."""
    folder = Path(gates)

    async def answer(request: Request) -> Response:
        done = sum(message.role == "tool" for message in request.messages)
        while not (folder / f"answer-{done}").exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
        calls = ((call("look", where="here"),), (call("pay", amount=7),), ())[done]
        text = None if calls else request.messages[-1].text
        return Response(text, calls, usage=Usage(100, 10, cost=0.01))

    async with SqliteJournal(journal_path) as journal:
        llm = FunctionLLM(answer)
        agent = Agent(llm, journal=journal, name="support", tools=[pay, look], observers=())
        async with LocalEngine({"support": agent}, recover="resume", rescan=0.5) as engine:
            if run_id is not None:
                await engine.submit("Look, then pay.", agent="support", run_id=run_id)
            (folder / "started").touch()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
