"""Open runs of four machines in one SQLite file: `tests/data/journal/open_v1.db` holds what this wrote.

Classes of the contexts had other names then: runs that are open in a journal continue without a migration. To write a
file for a later version: `python -m tests.runtime.open_runs FILE`, on that version.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

from orchestrator.errors import JournalError
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request
from orchestrator.machines.pipeline.model import Evaluation
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.pipeline.pipeline import Pipeline
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.tools.spec import tool


@tool(effect="pure")
async def search(page: int) -> str:
    """Return a page of a catalogue."""
    return f"page {page}"


def looking(request: Request) -> Any:
    """A model that looks at three pages, then answers; it goes by what was said, not by how often it was asked."""
    pages = sum(message.role == "tool" for message in request.messages)
    return call("search", page=pages) if pages < 3 else "three pages"


def coding(request: Request) -> str:
    """A model that writes two pieces of code, then answers."""
    turn = sum(message.role == "assistant" for message in request.messages)
    return f"```repl\nprint({turn})\n```" if turn < 2 else "FINAL(two turns)"


def pipeline(journal: Any) -> Pipeline:
    """A pipeline whose second plan passes."""
    return Pipeline(
        lambda request: {"plan": request.iteration},
        lambda request: [],
        lambda request: f"code {request.iteration}",
        lambda request: Evaluation(9.0 if request.iteration > 1 else 1.0),
        journal=journal,
        observers=(),
    )


def starts(journal: Any) -> dict[str, Any]:
    """Return what starts each run, by its id."""
    loop = Agent(FunctionLLM(looking), tools=[search], journal=journal, observers=())
    code = Rlm(FunctionLLM(coding), journal=journal, observers=())
    tools = Rlm(FunctionLLM(looking), mode="tools", tools=[search], journal=journal, observers=())
    return {
        "llm_loop": loop.run("Look.", run_id="llm_loop"),
        "pipeline": pipeline(journal).run("a page", run_id="pipeline"),
        "code_mode": code.run("Count.", "text", run_id="code_mode"),
        "tools_mode": tools.run("Look.", "text", run_id="tools_mode"),
    }


def resumptions(journal: Any) -> dict[str, Any]:
    """Return what resumes each run, by its id."""
    loop = Agent(FunctionLLM(looking), tools=[search], journal=journal, observers=())
    code = Rlm(FunctionLLM(coding), journal=journal, observers=())
    tools = Rlm(FunctionLLM(looking), mode="tools", tools=[search], journal=journal, observers=())
    return {
        "llm_loop": loop.resume("llm_loop"),
        "pipeline": pipeline(journal).resume("pipeline"),
        "code_mode": code.resume("code_mode"),
        "tools_mode": tools.resume("tools_mode"),
    }


async def write(path: Path, at: int) -> None:
    """Start each run on a journal that is down after so many appends."""
    for run_id in ("llm_loop", "pipeline", "code_mode", "tools_mode"):
        async with SqliteJournal(path) as inner:
            work = starts(CrashingJournal(inner, at=at))
            for other in work.keys() - {run_id}:
                work[other].close()
            with contextlib.suppress(JournalError):
                await work[run_id]


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), 6))
