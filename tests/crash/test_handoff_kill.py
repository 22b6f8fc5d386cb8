"""A run of a team that dies at any write: the same handoffs, no effect twice, nothing lost, budgets conserved."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.engines.worker import Worker
from orchestrator.errors import StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request, Response, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.runs.runs import Runs
from orchestrator.runtime.team.handoff import handoff
from orchestrator.tools.spec import ToolContext, tool
from tests.crash.life import ROOT
from tests.postgres import Cluster
from tests.runtime.stage import faults, until

DONE = ("pay", "refund")
WHOLE = ["triage", "billing", "triage", "refunds"]
"""The agents of the run, in order."""


def without_calls(messages: Any) -> list[Message]:
    return [message for message in messages if message.role != "tool" and not message.tool_calls]


def answer(name: str, request: Request) -> Any:
    """What the model of an agent answers: a pure function of what it reads."""
    said = [(one.name, message.role) for message in request.messages for one in message.tool_calls]
    names = [tool_name for tool_name, _ in said]
    match name:
        case "triage":
            return call("transfer_to_refunds" if "transfer_to_triage" in names else "transfer_to_billing")
        case "billing":
            return call("transfer_to_triage") if "pay" in names else call("pay")
        case _:
            return "all done" if "refund" in names else call("refund")


def team(journal: Journal, effect: Callable[[str, str], None], sent: list[str]) -> Agent[Any, Any]:
    """Triage, billing with a way back, and refunds behind a history filter. Each answer costs 10 and 5 tokens."""

    def model(name: str) -> FunctionLLM:
        def ask(request: Request) -> Any:
            assert not faults(request.messages), "a history that a vendor refuses"
            sent.append(name)
            item = answer(name, request)
            calls = () if isinstance(item, str) else (item,)
            text = item if isinstance(item, str) else None
            return Response(text, calls, "stop" if text else "tool_calls", Usage(10, 5))

        return FunctionLLM(ask)

    @tool(effect="idempotent")
    def pay(context: ToolContext) -> str:
        effect("pay", context.idempotency_key)
        return "paid"

    @tool(effect="idempotent")
    def refund(context: ToolContext) -> str:
        effect("refund", context.idempotency_key)
        return "refunded"

    silent: dict[str, Any] = {"observers": (), "retry": RetryPolicy(base=0.0, jitter=0.0)}
    refunds: Agent[Any, Any] = Agent(model("refunds"), name="refunds", tools=[refund], **silent)
    billing: Agent[Any, Any] = Agent(
        model("billing"), name="billing", tools=[pay], handoffs=["triage"], **silent
    )
    return Agent(
        model("triage"),
        name="triage",
        handoffs=[billing, handoff(refunds, history=without_calls)],
        journal=journal,
        **silent,
    )


async def check(journal: Journal, result: Result[Any], effects: list[tuple[str, str]]) -> None:
    """Check a run that has ended after any number of deaths."""
    assert (result.outcome, result.output, result.agent) == (Outcome.COMPLETED, "all done", "refunds")
    assert [(made.agent, made.to) for made in result.handoffs] == [*itertools.pairwise(WHOLE)]
    segments = [head async for head in journal.runs(parent_run_id="p")]
    assert [(head.run_id, head.agent) for head in segments] == [
        (f"p:s{number}", name) for number, name in enumerate(WHOLE, 1)
    ]
    assert {head.status for head in segments} == {"ended"}
    assert not faults(result.messages)
    assert [one.name for message in result.messages for one in message.tool_calls] == [
        "transfer_to_billing",
        "pay",
        "transfer_to_triage",
        "transfer_to_refunds",
        "refund",
    ]
    keys = {name: {key for one, key in effects if one == name} for name in DONE}
    assert {name: len(found) for name, found in keys.items()} == dict.fromkeys(DONE, 1), (
        "an effect had two keys"
    )
    # Conservation: the root has counted what its segments have, and no request that was sent is missing.
    parts = [await _usage(journal, head.run_id) for head in segments]
    assert result.usage.input_tokens == sum(parts)
    assert result.usage.input_tokens >= 6 * 10


async def _usage(journal: Journal, run_id: str) -> int:
    return (await Runs(journal).result(run_id)).usage.input_tokens


@pytest.mark.canary
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_run_of_a_team_that_crashes_at_any_write_takes_the_same_handoffs(when: Any) -> None:
    effects: list[tuple[str, str]] = []
    sent: list[str] = []

    def effect(name: str, key: str) -> None:
        effects.append((name, key))

    probe = CrashingJournal(MemoryJournal(), on=("create", "append"))
    await check(probe.inner, await team(probe, effect, sent).run("go", run_id="p"), effects)
    assert len(probe.writes) > 20
    for at in range(2, len(probe.writes) + 1):
        effects.clear()
        sent.clear()
        journal = MemoryJournal()
        with contextlib.suppress(StoreDown):
            crashing = CrashingJournal(journal, at=at, when=when, on=("create", "append"))
            await team(crashing, effect, sent).run("go", run_id="p")
        for head in [head async for head in journal.runs()]:
            if head.owner:
                journal.bury(head.owner)
        if not [head async for head in journal.runs()]:
            continue  # it died before its first record
        await check(journal, await team(journal, effect, sent).resume("p"), effects)


PROGRAM = """
import asyncio, os, sys
from orchestrator import SqliteJournal
from orchestrator.journal.crashing import CrashingJournal, kill
from tests.crash.test_handoff_kill import team

def effect(name, key):
    with open(sys.argv[2], "a") as file:
        file.write(f"{name} {key}\\n")

async def main(path, at):
    journal = CrashingJournal(SqliteJournal(path), at=at, crash=kill, on=("create", "append"))
    await team(journal, effect, []).run("go", run_id="p")

asyncio.run(main(sys.argv[1], int(sys.argv[3])))
"""


@pytest.mark.campaign
async def test_a_killed_process_leaves_a_team_that_another_one_continues(
    tmp_path: Path, campaign: Callable[[int, int], int]
) -> None:
    step = campaign(6, 1)
    for at in range(2, 26, step):
        path, log = tmp_path / f"{at}.db", tmp_path / f"{at}.log"
        command = [sys.executable, "-c", PROGRAM, str(path), str(log), str(at)]
        done = await asyncio.to_thread(
            subprocess.run, command, check=False, capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == -9, done.stderr
        async with SqliteJournal(path) as journal:

            def effect(name: str, key: str, log: Path = log) -> None:
                with log.open("a") as file:
                    file.write(f"{name} {key}\n")

            result = await team(journal, effect, []).resume("p")
            lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
            await check(journal, result, [(name, key) for name, key in lines])


WORKER = """
import asyncio, pathlib, sys, time
from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.engines.worker import Worker
from orchestrator.journal.postgres import PostgresJournal
from tests.crash.test_handoff_kill import team

folder = pathlib.Path(sys.argv[2])

def effect(name, key):
    if (folder / "hang").exists():
        (folder / "hanging").touch()
        time.sleep(600)
    with open(folder / "effects", "a") as file:
        file.write(f"{name} {key}\\n")

async def main(url):
    async with PostgresJournal(url, name="w1") as journal:
        async with Worker(team(journal, effect, []), ProcrastinateDispatcher(url), rescan=0.2):
            await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.campaign
async def test_another_worker_takes_over_the_tree_of_a_killed_one_at_its_root(
    tmp_path: Path, environment: dict[str, str], postgres: Cluster, with_tables: str
) -> None:
    database, log = postgres.database(with_tables), tmp_path / "effects"
    (tmp_path / "hang").touch()

    def effect(name: str, key: str) -> None:
        with log.open("a") as file:
            file.write(f"{name} {key}\n")

    async with PostgresJournal(database, name="w2") as journal:
        triage = team(journal, effect, [])
        await triage.deposit("go", run_id="p")
        command = [sys.executable, "-c", WORKER, database, str(tmp_path)]
        first = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment)
        try:
            await until((tmp_path / "hanging").exists)
            before = await journal.head("p")
        finally:
            first.kill()
            await first.wait()
        (tmp_path / "hang").unlink()
        async with Worker(triage, ProcrastinateDispatcher(database), rescan=0.2, grace=0):
            await until(lambda: _has_ended(journal))
        lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
        await check(journal, await triage.resume("p"), [(name, key) for name, key in lines])
        assert (await journal.head("p")).epoch == before.epoch + 1


async def _has_ended(journal: Journal) -> bool:
    return (await journal.head("p")).status == "ended"
