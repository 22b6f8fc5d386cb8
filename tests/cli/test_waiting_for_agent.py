"""A run whose question is answered while no live engine has its agent waits for that agent, and for nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, LocalEngine, SqliteJournal, tool
from orchestrator.cli.metrics import JournalWatch
from orchestrator.errors import RunUnknown
from orchestrator.kernel.journal import RunHead
from orchestrator.llm.message import Request
from orchestrator.providers.scripted import call
from orchestrator.telemetry.exposition.stored import (
    AgentSuccess,
    ExpectedSuccess,
    JournalCollector,
    registry_of,
)
from orchestrator.testing import FunctionLLM
from tests.cli.recorded import JOURNAL, Tape, play
from tests.telemetry.sampling import sampled

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)


@tool(effect="irreversible", approval=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def asks(request: Request) -> Any:
    return call("pay", amount=1) if request.messages[-1].role == "user" else "Paid."


def agent(journal: SqliteJournal, name: str) -> Agent:
    return Agent(FunctionLLM(asks, model="m"), name=name, tools=[pay], journal=journal, observers=())


async def until(journal: SqliteJournal, ready: Callable[[RunHead], bool]) -> None:
    """Wait until the run is as expected."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(RunUnknown):
                if ready(await journal.head("run-one")):
                    return
            await asyncio.sleep(0.01)


async def park() -> None:
    """Let a run ask, and stop its engine."""
    async with (
        SqliteJournal(JOURNAL) as journal,
        LocalEngine({"old": agent(journal, "old")}, grace=0.1) as engine,
    ):
        await engine.submit("go", agent="old", run_id="run-one")
        await until(journal, lambda head: bool(head.waiting))


def answer(cli: Cli) -> None:
    (question,) = json.loads(cli("runs", "show", "run-one", "--json", *AT).out)["waiting_for"]
    cli("runs", "approve", "run-one", "--digest", question["digest"], *AT)


async def waiting() -> dict[tuple[str, str], int]:
    """Return what `metrics serve` says, by machine and agent."""
    watch = JournalWatch(Path(JOURNAL).absolute())
    try:
        first = (await watch.look()).waiting_for_agent
        assert (await watch.look()).waiting_for_agent == first  # without reading anything again
        return dict(first)
    finally:
        await watch.close()


def test_before_its_answer_it_waits_for_a_person(cli: Cli, folder: Path) -> None:
    asyncio.run(park())
    listed = cli("runs", "list", *AT).out
    assert "approval" in listed
    assert "waiting for you" in listed
    assert asyncio.run(waiting()) == {}


def test_after_its_answer_it_waits_for_its_agent(cli: Cli, folder: Path) -> None:
    asyncio.run(park())
    answer(cli)
    listed = cli("runs", "list", *AT).out
    assert "waiting for its agent" in listed
    assert "waiting for you" not in listed
    assert json.loads(cli("runs", "list", "--json", *AT).out)["waits_for_agent"] is True
    shown = cli("runs", "show", "run-one", *AT).out
    assert "waiting for its agent" in shown
    assert "start an engine that has agent 'old'" in shown
    assert asyncio.run(waiting()) == {("llm_loop", "old"): 1}


@pytest.mark.parametrize(("name", "recover", "waits"), [("old", "list", True), ("new", "resume", True)])
def test_an_engine_that_does_not_resume_it_changes_nothing(
    cli: Cli, folder: Path, name: str, recover: Any, waits: bool
) -> None:
    asyncio.run(park())
    answer(cli)

    async def beside() -> dict[tuple[str, str], int]:
        async with (
            SqliteJournal(JOURNAL) as journal,
            LocalEngine({name: agent(journal, name)}, recover=recover),
        ):
            return await waiting()

    assert bool(asyncio.run(beside())) is waits


def test_an_engine_with_its_agent_resumes_it(cli: Cli, folder: Path) -> None:
    asyncio.run(park())
    answer(cli)

    async def resumed() -> str:
        async with SqliteJournal(JOURNAL) as journal:
            async with LocalEngine({"old": agent(journal, "old")}, recover="resume"):
                await until(journal, lambda head: head.status == "ended")
            return (await journal.head("run-one")).outcome

    assert asyncio.run(resumed()) == "completed"
    assert "waiting for its agent" not in cli("runs", "list", *AT).out
    assert asyncio.run(waiting()) == {}


# ---- the last success of an agent ----


async def ended(number: int, outcome: str, reason: str, name: str = "nightly") -> None:
    """Write a run that ended at second `number`."""
    async with SqliteJournal(JOURNAL, now=lambda: float(number)) as journal:
        tape = Tape(f"run-{number}", began=float(number), agent=name).begin().ends(outcome, reason)
        await journal.release(await play(tape, journal))


ENDS = {
    "a success is the last": ([("failed", "llm_error"), ("completed", "none")], AgentSuccess(2.0, 0)),
    "three failures after a success": (
        [
            ("completed", "none"),
            ("failed", "llm_error"),
            ("budget_exceeded", "time"),
            ("no_progress", "stalled"),
        ],
        AgentSuccess(1.0, 3),
    ),
    "an empty answer is none": ([("completed", "none"), ("completed", "empty_answer")], AgentSuccess(1.0, 1)),
    "what people stop is no attempt": (
        [("completed", "none"), ("cancelled", "caller"), ("rejected", "operator")],
        AgentSuccess(1.0, 0),
    ),
    "never": ([("failed", "internal"), ("failed", "internal")], AgentSuccess(1.0, 2)),
}


@pytest.mark.parametrize("title", ENDS)
async def test_the_last_success_of_an_agent_and_the_runs_since_then(folder: Path, title: str) -> None:
    ends, expected = ENDS[title]
    for number, end in enumerate(ends, 1):
        await ended(number, *end)
    watch = JournalWatch(folder / JOURNAL)
    assert (await watch.look()).successes == {"nightly": expected}
    await watch.close()


async def test_every_agent_has_its_last_success_and_the_journal_has_few_labels(folder: Path) -> None:
    for number in range(1, 41):
        await ended(number, "failed", "internal", f"agent-{number:02}")
    watch = JournalWatch(folder / JOURNAL, agents=35)
    picture = await watch.look()
    await watch.close()
    assert len(picture.successes) == 40
    assert len({agent for _, agent, *_ in picture.ended}) == 36
    expected = {
        "agent-07": ExpectedSuccess(3600.0),
        "*": ExpectedSuccess(None, 5),
        "absent": ExpectedSuccess(60.0),
    }
    async with SqliteJournal(JOURNAL) as journal:
        collector = JournalCollector(journal, expected=expected)
        collector.show(picture)
        registry = registry_of(collector)
        assert sampled(registry, "agent_success_within_seconds", agent="agent-07") == 3600
        assert sampled(registry, "agent_attempts_limit", agent="agent-40") == 5
        assert sampled(registry, "agent_attempts_limit", agent="agent-07") == 5
        assert sampled(registry, "agent_attempts_since_success", agent="agent-40") == 1
        assert (sampled(registry, "agent_last_success_timestamp_seconds", agent="absent") or 0) > 1e9


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--success-within", "nightly"), "has another form than AGENT=VALUE"),
        (("--success-within", "nightly=soon"), "soon"),
        (("--attempts", "nightly=0"), "give a number of runs, 1 or more"),
        (("--attempts", "=3"), "has another form than AGENT=VALUE"),
        (("--agents", "0"), "it must be 1 or more"),
    ],
)
def test_what_cannot_be_expected_is_one_sentence(
    folder: Path, cli: Cli, one_sentence: Callable[[Any], str], options: tuple[str, ...], problem: str
) -> None:
    asyncio.run(ended(1, "completed", "none"))
    done = cli("metrics", "serve", *AT, "--port", "0", *options)
    assert problem in one_sentence(done)
    assert done.code == 2
