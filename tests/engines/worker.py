"""A process with an engine: `python -m tests.engines.worker FOLDER OPTIONS PROMPT…`; OPTIONS is JSON.

Its journal is FOLDER/journal.db. The model asks for `steps` calls of `work`, one a turn, each of which adds a line to
FOLDER/effects; a prompt that begins with `held` is answered in turn N once the file `go-PROMPT-N` exists. `ask` makes
it call a tool that needs approval, `risk` one that adds its line and then hangs until `go-charge` exists. With `settle`
a drain gives the runs time until `go-settled` exists. The process says "ready", then one line of JSON at its end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.engines import local_engine
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import ToolContext, tool

STEPS = 3


class Work:
    """What the runs of the process do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def model(self, request: Request) -> Answer:
        prompt = next(m.text for m in request.messages if m.role == "user")
        turn = sum(m.role == "assistant" for m in request.messages)
        if prompt.startswith("ask"):
            return call("send", to="everybody") if not turn else "sent"
        if prompt.startswith("risk"):
            return call("charge", to=prompt) if not turn else request.messages[-1].text
        may = self.folder / f"go-{prompt}-{turn}"
        while prompt.startswith("held") and not may.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.005)
        return call("work", prompt=prompt, step=turn) if turn < STEPS else f"{prompt}: done"

    def tools(self) -> list[Any]:
        @tool(effect="irreversible")
        async def work(context: ToolContext, prompt: str, step: int) -> str:
            self.note(f"{prompt}:{step}:{context.idempotency_key}")
            return f"step {step}"

        @tool(effect="irreversible", approval=True)
        async def send(to: str) -> str:
            self.note(f"send:{to}")
            return "sent"

        @tool(effect="irreversible")
        async def charge(to: str) -> str:
            self.note(f"charge:{to}")
            while not (self.folder / "go-charge").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.005)
            return "charged"

        return [work, send, charge]

    def note(self, line: str) -> None:
        with (self.folder / "effects").open("ab", buffering=0) as file:
            file.write(f"{line}\n".encode())


async def settled(folder: Path, engine: LocalEngine) -> None:
    """End the time in which a drain lets runs finish their step."""
    while not (folder / "go-settled").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.005)
    assert engine._drain is not None
    engine._drain.hurry()


async def main(folder: Path, options: dict[str, Any], prompts: list[str]) -> dict[str, Any]:
    settle, finish = options.pop("settle", False), options.pop("finish", False)
    work = Work(folder)
    async with SqliteJournal(folder / "journal.db") as journal:
        runner = Agent(
            FunctionLLM(work.model, model="worker"), tools=work.tools(), journal=journal, observers=()
        )
        async with LocalEngine(runner, **options) as engine:
            handles = [await engine.submit(prompt, run_id=prompt) for prompt in prompts]
            if finish:
                print("ready", engine.run_id, flush=True)  # noqa: T201
                handles += engine.recovered.values()
                return {handle.run_id: (await handle).outcome for handle in handles}
            line = f"ready {engine.run_id}"
            stopping = engine.run_until_signal(ready=lambda: print(line, flush=True))  # noqa: T201
            if not settle:
                return asdict(await stopping)
            local_engine.SETTLE = 3600.0
            report, _ = await asyncio.gather(stopping, settled(folder, engine))
            return asdict(report)


if __name__ == "__main__":
    told = asyncio.run(main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]))
    print(json.dumps(told), flush=True)  # noqa: T201
