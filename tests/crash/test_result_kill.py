"""A payment whose result cannot be shown happens once: whatever the model reads, and wherever kill -9 strikes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunUnknown
from orchestrator.journal.sqlite import SqliteJournal
from tests.crash.life import KILLED, Life, begun_by
from tests.crash.mortal import RUN
from tests.crash.receipt_payer import agent, paid
from tests.result_kinds import KINDS

UNREADABLE = ("object", "bytes in data", "cycle")
READABLE = ("text", "surrogate in data")
KEY = f"{RUN}:1:0-120"
Begin = Callable[[Path], Life]


@pytest.fixture(scope="module")
def begin(environment: dict[str, str]) -> Iterator[Begin]:
    """`begin(folder)` is a run that pays, in a process that is forked for it."""
    with begun_by("tests.crash.receipt_payer", environment, Life) as begin:
        yield begin


async def resumed(folder: Path, kind: str, effect: Any) -> list[dict[str, Any]]:
    """Resume the run as a person who asks the bank, and return its `done` records."""
    async with SqliteJournal(folder / "journal.db") as journal:
        one = agent(journal, folder, kind=kind, effect=effect)
        try:
            await journal.head(RUN)
        except RunUnknown:  # it was killed before the run was stored
            task = asyncio.create_task(one.run("pay", run_id=RUN))
        else:
            task = asyncio.create_task(one.resume(RUN))
        while not task.done():
            await asyncio.wait((task,), timeout=0.02)
            for question in await one.runs.pending(RUN) if not task.done() else ():
                assert question.why == "unknown_effect"
                if paid(folder):
                    await one.respond(RUN, "the bank has the payment", question.key, digest=question.digest)
                else:
                    await one.approve(RUN, question.key, digest=question.digest)
        result = task.result()
        assert (result.outcome, result.output) == ("completed", "paid")
        return [dict(one.body) for one in await journal.load(RUN) if one.kind == "done"]


@pytest.mark.parametrize("effect", ["irreversible", "idempotent"])
@pytest.mark.parametrize("kind", [*UNREADABLE, *READABLE])
@pytest.mark.canary("object-irreversible")
def test_a_kill_between_payment_and_record_never_pays_twice(
    kind: str, effect: str, begin: Begin, quick: Path
) -> None:
    life = begin(quick / "run")
    assert life.live("run", kind=kind, effect=effect, kill="paid") == KILLED, life.errors()
    assert paid(life.folder) == [KEY]
    [done] = asyncio.run(resumed(life.folder, kind, effect))
    if effect == "irreversible":  # a person said what became of it
        told = paid(life.folder), done["outcome"], done["content"]
        assert told == ([KEY], "ok", "the bank has the payment")
    else:  # again, with the key by which the bank knows it
        assert paid(life.folder) == [KEY, KEY]
        assert done["outcome"] == ("ok" if KINDS[kind].text is not None else "result_unreadable")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [*UNREADABLE, *READABLE])
def test_a_kill_at_any_write_pays_once(
    kind: str, when: str, begin: Begin, quick: Path, campaign: Callable[[int, int], int]
) -> None:
    order = {"kind": kind, "effect": "irreversible"}
    undisturbed = begin(quick / "whole")
    assert undisturbed.live("run", **order) == 0, undisturbed.errors()
    assert paid(undisturbed.folder) == [KEY]
    (counted,) = undisturbed.said("counted")
    for at in range(1, counted["writes"] + 1, campaign(2, 1)):
        life = begin(quick / f"at-{at}")
        assert life.live("run", **order, kill=when, at=at) == KILLED, life.errors()
        before = paid(life.folder)
        asyncio.run(resumed(life.folder, kind, "irreversible"))
        assert paid(life.folder) == [KEY], (at, before)
