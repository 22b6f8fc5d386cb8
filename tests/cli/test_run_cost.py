"""What the command line shows of blank answers, and of answers that were lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request, Response, Usage
from orchestrator.providers import price_table
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.service.runtime import Runtime

Cli = Callable[..., Any]

_BLANK = """
from orchestrator.testing import ScriptedLLM
llm = ScriptedLLM([" \\n "] * 3)
"""


@pytest.mark.parametrize("form", [(), ("--json",), ("--stream",)])
def test_a_blank_answer_is_told_on_standard_error_and_completes(
    cli: Cli, folder: Path, form: tuple[str, ...]
) -> None:
    (folder / "blank.py").write_text(_BLANK)
    done = cli("run", "hi", "--model", "python:blank:llm", *form)
    assert done.code == 0
    assert done.err == "orchestrator: the final answer of the model is blank\n"
    assert "empty_answer" in done.out


async def lose(path: Path, times: int) -> None:
    asked = asyncio.Event()

    async def model(_: Request) -> Response:
        asked.set()
        if times:
            await asyncio.Event().wait()
        return Response("done", usage=Usage(7, 5))

    async with SqliteJournal(path) as journal:
        one = Agent(
            FunctionLLM(model, model="m"),
            params={"max_tokens": 300},
            runtime=Runtime(journal=journal, observers=(), price=price_table({"m": (0, 1_000)})),
        )
        first = True
        while times:
            asked.clear()
            work = asyncio.create_task(one.run("go", run_id="r") if first else one.resume("r"))
            await asked.wait()
            work.cancel()
            await asyncio.wait((work,))
            first, times = False, times - 1
        await one.resume("r")


def test_what_was_charged_for_lost_answers_is_shown_apart(cli: Cli, folder: Path) -> None:
    asyncio.run(lose(folder / "journal.db", 2))
    at = ("--journal", "journal.db")
    done = cli("runs", "show", "r", *at)
    assert "1 answer, 7 tokens in (0 cached), 5 out, cost 0.005, 0 retried" in done.out
    assert "estimate charged for lost and interrupted answers: 2 tokens in, 600 out, cost 0.6" in done.out
    usage = json.loads(cli("runs", "show", "r", *at, "--json").out)["usage"]
    assert (usage["output_tokens"], usage["cost"]) == (605, 0.605)
    assert (usage["estimated_output_tokens"], usage["estimated_cost"]) == (600, 0.6)
