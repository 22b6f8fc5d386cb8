"""A payment whose result cannot be shown happens once: whatever the model reads, and wherever kill -9 strikes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunUnknown
from orchestrator.journal.sqlite import SqliteJournal
from tests.crash.life import ROOT
from tests.crash.mortal import RUN
from tests.crash.receipt_payer import agent, paid
from tests.result_kinds import KINDS

UNREADABLE = ("object", "bytes in data", "cycle")
READABLE = ("text", "surrogate in data")
KEY = f"{RUN}:1:0-120"


def live(folder: Path, **order: Any) -> int:
    """Let a process pay; return the number of its writes, or the negative signal that killed it."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.crash.receipt_payer", str(folder), json.dumps(order)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr
    return int(ended.stdout) if ended.returncode == 0 else ended.returncode


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
def test_a_kill_between_payment_and_record_never_pays_twice(kind: str, effect: str, tmp_path: Path) -> None:
    assert live(tmp_path, kind=kind, effect=effect, kill="paid") == -signal.SIGKILL
    assert paid(tmp_path) == [KEY]
    [done] = asyncio.run(resumed(tmp_path, kind, effect))
    if effect == "irreversible":  # a person said what became of it
        assert (paid(tmp_path), done["outcome"], done["content"]) == ([KEY], "ok", "the bank has the payment")
    else:  # again, with the key by which the bank knows it
        assert paid(tmp_path) == [KEY, KEY]
        assert done["outcome"] == ("ok" if KINDS[kind].text is not None else "result_unreadable")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [*UNREADABLE, *READABLE])
def test_a_kill_at_any_write_pays_once(
    kind: str, when: str, tmp_path: Path, campaign: Callable[[int, int], int]
) -> None:
    order = {"kind": kind, "effect": "irreversible"}
    writes = live(tmp_path / "whole", **order)
    assert paid(tmp_path / "whole") == [KEY]
    for at in range(1, writes + 1, campaign(2, 1)):
        folder = tmp_path / f"at-{at}"
        assert live(folder, **order, kill=when, at=at) == -signal.SIGKILL
        before = paid(folder)
        asyncio.run(resumed(folder, kind, "irreversible"))
        assert paid(folder) == [KEY], (at, before)
