"""Two processes answer one question differently at the same time: one answer counts, and the other caller is told."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from tests.crash.answerer import journal_at
from tests.runtime.stage import until
from tests.runtime.test_people import Office

ROOT = Path(__file__).resolve().parents[2]
SOON = 0.02
"""Seconds after which both answer: time for either of them to read its order."""

ANSWERS: tuple[dict[str, Any], ...] = (
    {"decision": "approve"},
    {"decision": "approve", "arguments": '{"to": "x", "sum": 3}'},
    {"decision": "approve", "arguments": '{"to": "x", "sum": 4}'},
    {"decision": "reject"},
    {"decision": "reject", "end": True},
    {"decision": "respond", "content": "paid by hand"},
)


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the journal is."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'journal.db'}"
    return str(request.getfixturevalue("database"))


@contextmanager
def person(address: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that answers."""
    command = [sys.executable, "-m", "tests.crash.answerer", address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()
    assert process.returncode == 0


def asked(process: subprocess.Popen[str], order: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()


def reply(process: subprocess.Popen[str]) -> dict[str, Any] | None:
    assert process.stdout is not None
    found: dict[str, Any] | None = json.loads(process.stdout.readline())
    return found


async def asking(agent: Agent, journal: Journal, run: str) -> asyncio.Task[Result]:
    """Begin a run, and return once it is known to wait for an answer."""
    task = asyncio.create_task(agent.run("pay x", run_id=run))

    async def parked() -> bool:
        known = agent._service.live.find(run) is not None and await agent.pending(run)
        return bool(known) and (await journal.head(run)).status == "parked"

    await until(parked)
    return task


async def raced(
    people: tuple[subprocess.Popen[str], ...], run: str, answers: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Have both answer at once; return the answer that counts, and what the other person was told."""
    at = time.monotonic() + SOON
    for process, answer in zip(people, answers, strict=True):
        asked(process, {"run": run, "call": "1:0", "at": at, "answer": answer})
    told = [await asyncio.to_thread(reply, process) for process in people]
    refused = [one for one in told if one is not None]
    assert len(refused) == 1, told
    return answers[told.index(None)], refused[0]


def paid_by(answer: dict[str, Any]) -> list[tuple[str, int]]:
    """What goes out when this answer counts."""
    if answer["decision"] != "approve":
        return []
    return [("x", json.loads(answer.get("arguments", '{"sum": 5}'))["sum"])]


async def assert_decided(journal: Journal, run: str, won: dict[str, Any], told: dict[str, Any]) -> None:
    """One answer was kept, it is the one that counted, and the other person was told who gave it and when."""
    (kept,) = await journal.inbox(run)
    assert (kept.kind, kept.by) == (won["decision"], won["by"])
    records = await journal.load(run)
    (counted,) = [record.body for record in records if record.kind == "approval"]
    assert (counted["id"], counted["by"], counted["decision"]) == (kept.id, kept.by, kept.kind)
    assert not [record for record in records if record.body.get("refused")]
    assert (told["by"], told["decision"]) == (won["by"], won["decision"])
    assert f"{won['by']} answered before ({won['decision']}" in told["said"]
    assert " UTC)" in told["said"]
    assert StoredRun.of(run, records).ended is not None


@pytest.mark.canary("sqlite")
async def test_of_two_processes_that_answer_differently_at_once_one_counts_and_the_other_is_told(
    address: str, environment: dict[str, str], seed: int, campaign: Callable[[int, int], int]
) -> None:
    """In every second round the run lives and reads its inbox meanwhile; in the others no process drives it."""
    chance = random.Random(seed)
    async with journal_at(address) as journal:
        with person(address, environment) as one, person(address, environment) as other:
            for number in range(campaign(10, 100)):
                run, office = f"run {number}", Office()
                agent = office.agent(journal)
                task = await asking(agent, journal, run)
                if number % 2:
                    task.cancel()
                    await asyncio.wait((task,))
                answers = [dict(answer) for answer in chance.sample(ANSWERS, 2)]
                answers = [answer | {"by": by} for answer, by in zip(answers, ("ann", "bob"), strict=True)]
                won, told = await raced((one, other), run, answers)
                await (agent.resume(run) if number % 2 else task)
                assert office.paid == paid_by(won)
                await assert_decided(journal, run, won, told)
