"""A frozen owner on SQLite: its lease expires, another process takes the run over, and it is fenced when it wakes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import RunHead
from orchestrator.kernel.outcome import Outcome
from tests.crash.invariants import check_run
from tests.crash.life import ROOT
from tests.crash.lives import Lives, answered, assert_once
from tests.crash.mortal import RUN
from tests.crash.outside import Outside, agent

TTL = 1.2
Begin = Callable[[Path], Lives]
FIRST = (("frozen after", 4), ("frozen before", 4), ("frozen after", 9))
"""Boundaries that every run of the tests visits: between the intent of a call and the call, and around others."""


@pytest.fixture(scope="module")
def boundaries(begin: Begin, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    """Each side of each write of an undisturbed run, until it asks a person."""
    lives = begin(tmp_path_factory.mktemp("undisturbed") / "run")
    assert lives.live("run") == 0, lives.errors()
    (counted,) = lives.said("counted")
    writes = range(2, int(counted["writes"]))  # the first creates the run, the last gives it back
    return [(when, at) for at in writes for when in ("frozen before", "frozen after")]


@contextlib.contextmanager
def frozen(folder: Path, environment: dict[str, str], when: str, at: int) -> Iterator[subprocess.Popen[str]]:
    """Start a process that drives the run and stops itself at a boundary."""
    folder.mkdir()
    order = {"folder": str(folder), "do": "run", "kill": when, "at": at, "ttl": TTL}
    command = [sys.executable, "-m", "tests.crash.loop_worker", json.dumps(order)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True) as owner:
        os.waitid(os.P_PID, owner.pid, os.WSTOPPED)
        yield owner
        owner.kill()


async def expired(journal: SqliteJournal) -> list[RunHead]:
    """Wait until the lease of the run has expired; return what the journal said of the run meanwhile."""
    heads = [await journal.head(RUN)]
    while heads[-1].owner is not None:
        await asyncio.sleep(0.02)
        heads.append(await journal.head(RUN))
    return heads


async def finished(journal: SqliteJournal, outside: Outside) -> Any:
    """Resume the run, answer as a person who looks at what happened, and return its result."""
    one = agent(outside, journal, observers=(outside,))
    going = asyncio.create_task(one.resume(RUN))
    while not going.done():
        await asyncio.sleep(0.01)
        for question in [] if one._service.live.find(RUN) is None else await one.pending(RUN):
            await answered(one, journal, question, outside.lines)
    return await going


async def one_round(folder: Path, environment: dict[str, str], when: str, at: int) -> None:
    with frozen(folder, environment, when, at) as owner:
        outside = Outside(folder / "outside")
        async with SqliteJournal(folder / "journal.db") as journal:
            await expired(journal)
            result = await finished(journal, outside)
            assert result.outcome is Outcome.COMPLETED
            records, before = await journal.load(RUN), len(outside.lines)
            owner.send_signal(signal.SIGCONT)
            assert owner.wait() == 0, (folder / "errors").read_text()
            assert await journal.load(RUN) == records, "nothing of the old owner lands"
            await check_run(journal, RUN, outside.history, agent=agent(outside, journal, observers=()))
        after = outside.lines[before:]
        outside.close()
        (refused,) = [line for line in after if line["what"] in {"result", "refused"}]
        assert refused["why"].startswith(
            f"run {RUN!r} cannot be continued here: another process has claimed it"
        )
        did = Counter(line["what"] for line in after)
        assert did["served"] <= 1, "only the request that it had sent beside its last append goes on"
        assert not did.keys() & {"told", "effect", "repeat", "undone", "stored"}
        assert_once(outside.lines)


async def test_a_frozen_owner_loses_its_run_after_its_lease_and_has_no_second_effect(
    boundaries: list[tuple[str, int]],
    quick: Path,
    environment: dict[str, str],
    seed: int,
    campaign: Callable[[int, int], int],
) -> None:
    others = sorted(set(boundaries) - set(FIRST))
    random.Random(seed).shuffle(others)
    for number, (when, at) in enumerate([*FIRST, *others][: campaign(3, 20)]):
        await one_round(quick / f"{number} {when} {at}", environment, when, at)
