"""A queue of document jobs on PostgreSQL: each file of a folder is a run, and two workers share the runs.

    ORCHESTRATOR_JOURNAL=postgresql://… python -m orchestrator.examples.documents inbox

Each *.txt file that appears in `inbox` is submitted as a run of the agent `reader`; Procrastinate places the runs on
the workers. The results are printed as the runs end. Each worker is a process (`orchestrator worker`) with metrics for
Prometheus. If one is killed, the other finishes its documents. Ctrl-C stops the application and the workers; the next
start submits new files only and continues with the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel

from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.errors import ConfigError, RunExists
from orchestrator.examples.terminal import complain, say
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Request
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.metrics import Metrics
from orchestrator.tools.spec import tool

LATENCY = 0.3
"""Seconds until the model answers."""
POLL = 0.2
"""Seconds between two looks at the folder and at the journal."""
WORKERS = ("worker-1", "worker-2")


class Summary(BaseModel):
    """What the model finds in a document."""

    title: str
    words: int


@tool(effect="pure")
def count_words(text: str) -> int:
    """Return the number of words of a text."""
    return len(text.split())


def model(request: Request) -> Answer:
    """Answer as a model would: count the words first, then give the summary."""
    document, last = request.messages[0].text, request.messages[-1]
    if last.role != "tool":
        return call(count_words, text=document)
    return json.dumps({"title": document.split("\n", 1)[0][:60], "words": int(last.text)})


def reader(journal: Journal) -> Agent[Summary]:
    """Return the agent; each worker makes its own. For a real model, replace the FunctionLLM."""
    llm = FunctionLLM(model, model="scripted", latency=LATENCY)
    return Agent(
        llm,
        name="reader",
        tools=[count_words],
        output_type=Summary,
        journal=journal,
        observers=[Metrics()],
    )


def start_worker(name: str, port: int) -> subprocess.Popen[bytes]:
    """Start a worker, which reads the address of the journal from the environment."""
    options = ["--agent", f"{__spec__.name}:reader", "--dispatcher", "procrastinate", "--slots", "2"]
    command = ["worker", *options, "--name", name, "--metrics-port", str(port)]
    process = subprocess.Popen([sys.executable, "-m", "orchestrator", *command], stdout=subprocess.DEVNULL)  # noqa: S603
    say(f"{name}: process {process.pid}, http://127.0.0.1:{port}/metrics")
    return process


async def submit_files(folder: Path, agent: Agent[Summary], dispatcher: ProcrastinateDispatcher) -> None:
    """Submit each file of a folder once, those that appear later as well."""
    submitted: set[Path] = set()
    while True:
        for file in sorted(await asyncio.to_thread(lambda: set(folder.glob("*.txt")) - submitted)):
            with contextlib.suppress(RunExists):  # submitted before a restart
                await agent.deposit(file.read_text(encoding="utf-8"), run_id=file.name)
                await dispatcher.submit(file.name, 0)
            submitted.add(file)
        await asyncio.sleep(POLL)


async def print_results(agent: Agent[Summary]) -> None:
    """Print the result of each run that ends."""
    printed: set[str] = set()
    while True:
        for head in await agent.runs.list(agent="reader", status="ended"):
            if head.run_id not in printed:
                result = await agent.runs.result(head.run_id)
                say(f"{head.run_id}: {result.outcome} {result.output}")
                printed.add(head.run_id)
        await asyncio.sleep(POLL)


async def main() -> None:
    """Start the workers, and submit documents until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.examples.documents")
    parser.add_argument("folder", type=Path, help="The folder of the documents (*.txt).")
    parser.add_argument("--ports", type=int, nargs=2, default=(9464, 9465), help="Ports of the metrics.")
    arguments = parser.parse_args()
    dsn = os.environ.get("ORCHESTRATOR_JOURNAL", "")
    dispatcher = ProcrastinateDispatcher(dsn)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    async with PostgresJournal(dsn, name="documents") as journal:
        agent = reader(journal)
        workers = [start_worker(name, port) for name, port in zip(WORKERS, arguments.ports, strict=True)]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(submit_files(arguments.folder, agent, dispatcher))
                group.create_task(print_results(agent))
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            await asyncio.gather(*(asyncio.to_thread(worker.wait) for worker in workers))
            await dispatcher.stop()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except ConfigError as error:
        complain(f"{error}; set ORCHESTRATOR_JOURNAL")
        sys.exit(2)
    except KeyboardInterrupt:
        say("stopped")
