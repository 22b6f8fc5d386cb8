"""`kill -9` of a process with branches: nothing is lost, no effect happens twice, the decision stands."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Outcome, SqliteJournal
from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.engines.worker import Worker
from orchestrator.journal.postgres import PostgresJournal
from tests.crash.branch_worker import BUDGET, ITEMS, JOINS, Outside, has_ended, machine
from tests.crash.life import ROOT
from tests.postgres import Cluster
from tests.runtime.branches.machine import SpreadContext
from tests.runtime.stage import until


def lived(folder: Path, environment: dict[str, str], **order: Any) -> dict[str, Any] | None:
    """Run a process to its end; return what it said, or None if it was killed."""
    order = {"folder": str(folder), **order}
    command = [sys.executable, "-m", "tests.crash.branch_worker", json.dumps(order)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == -9:
        return None
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.campaign
def test_a_process_with_branches_is_killed_at_any_write_and_continued(
    quick: Path, environment: dict[str, str], seed: int, campaign: Callable[[int, int], int]
) -> None:
    chance = random.Random(seed)
    kills: Counter[str] = Counter()
    for number in range(campaign(8, 300)):
        join = sorted(JOINS)[number % len(JOINS)]
        folder = quick / str(number)
        folder.mkdir()
        said, lives = None, 0
        while said is None:
            lives += 1
            at = chance.randrange(1, 45) if lives <= 4 else 0  # as many lives without a step would be poison
            said = lived(folder, environment, join=join, at=at, when=chance.choice(("before", "after")))
            kills[join] += said is None
        asyncio.run(checked(folder, said, join))
    print(f"killed: {dict(kills)}")  # noqa: T201
    assert set(kills) == set(JOINS)


async def checked(folder: Path, said: dict[str, Any], join: str) -> None:
    outside = Outside(folder)
    async with SqliteJournal(folder / "journal.db") as journal:
        await consistent(journal, outside)
        result = await machine(outside, journal, JOINS[join]).resume("p1")
        assert result.outcome is Outcome.COMPLETED
        assert said["tokens"] == result.usage.input_tokens <= BUDGET


async def consistent(journal: Any, outside: Outside) -> None:
    """Hold the records of an ended run against the effects outside."""
    records = await journal.load("p1")
    (fan,) = [one.body for one in records if one.kind == "fan"]
    (joined,) = [one.body for one in records if one.kind == "joined"]
    assert len(fan["items"]) == len(ITEMS)
    heads = {head.run_id: head async for head in journal.runs(parent_run_id="p1")}
    assert {head.status for head in heads.values()} <= {"ended"}
    lines = Counter(outside.lines)
    for index, (kind, _) in enumerate(ITEMS):
        run_id = f"p1:spread.0:{index}"
        key = f"{run_id}:1:0"
        happened = lines[f"{kind} {key}"]
        # A compensable call that a crash interrupted is undone and runs again, so the last line counts.
        last = next((line for line in reversed(outside.lines) if line.endswith(f" {key}")), "")
        if kind == "irreversible":
            assert happened <= 1, key
        if index in joined["ended"]:
            assert heads[run_id].outcome in {"completed", "failed"}, key
            assert not last.startswith("undone"), key
            assert happened >= 1 or kind == "agent", key
        elif kind == "compensable" and happened:
            assert last.startswith("undone"), key
        if run_id in heads and heads[run_id].outcome == "completed" and kind == "irreversible":
            assert happened == 1, key


async def test_a_worker_takes_the_tree_of_a_killed_one_over_at_its_root(
    tmp_path: Path, environment: dict[str, str], postgres: Cluster, with_tables: str
) -> None:
    database = postgres.database(with_tables)
    (tmp_path / "hang").touch()
    outside = Outside(tmp_path)
    async with PostgresJournal(database, name="w2") as journal:
        one = machine(outside, journal, JOINS["ended"])
        await one.deposit(SpreadContext(ITEMS), run_id="p1")
        order = json.dumps({"folder": str(tmp_path), "join": "ended", "worker": database})
        command = (sys.executable, "-m", "tests.crash.branch_worker", order)
        first = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment)
        try:
            await until((tmp_path / "hanging").exists)
            before = await journal.head("p1")
        finally:
            first.kill()
            await first.wait()
        (tmp_path / "hang").unlink()
        async with Worker(one, ProcrastinateDispatcher(database), rescan=0.2, grace=0):
            await until(lambda: asks(one))
            (question,) = await one.questions(
                "p1"
            )  # whether the interrupted irreversible call has happened: no
            assert (question.run_id, question.why) == (f"p1:spread.0:{len(ITEMS) - 1}", "unknown_effect")
            await one.approve(question.run_id, question.key, digest=question.digest, by="ann")
            await until(lambda: has_ended(journal))
        await consistent(journal, outside)
        after = await journal.head("p1")
        assert (after.outcome, after.epoch) == ("completed", before.epoch + 1)
        assert Counter(outside.lines)["request"] == 2, "an ended branch is read"


async def asks(one: Any) -> bool:
    return bool(await one.questions("p1"))
