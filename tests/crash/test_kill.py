"""T1, T2, T22: kill -9 between any two calls that change the disk, at random, and again while recovering."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.nursery import Nursery, client_log, prove

KILLED = -signal.SIGKILL


def calls(nursery: Nursery, folder: Path) -> int:
    """How many calls the work makes, if nothing interrupts it."""
    folder.mkdir()
    assert nursery.work(folder) == 0, (folder / "client.log").read_text()
    log = prove(folder)
    assert len(log.acknowledged) == 24
    return log.numbers["calls"]


def test_a_kill_at_every_boundary_loses_nothing_acknowledged(
    nursery: Nursery, quick: Path, campaign: Callable[[int, int], int]
) -> None:
    total = calls(nursery, quick / "whole")
    rounds = min(campaign(16, total), total)
    killed = 0
    for step in range(rounds):
        at = 1 + step * total // rounds
        folder = quick / f"at-{at}"
        folder.mkdir()
        mode = ("kill_before", "kill_after")[step % 2]
        status = nursery.work(folder, mode=mode, at=at)
        assert status in (KILLED, 0), (at, status, (folder / "client.log").read_text())
        killed += status == KILLED
        if step % 3 == 0:  # the second kill, in recovery
            nursery.work(folder, mode=mode, at=1 + step % 7, seed=2)
        if (folder / "client.log").exists():
            prove(folder)
            assert nursery.work(folder, seed=3) == 0, "work goes on after the fault"
            prove(folder)
    assert killed > rounds * 0.8


@pytest.mark.canary
def test_kills_at_random_lose_nothing_acknowledged(
    nursery: Nursery, quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    chance = random.Random(seed)
    for number in range(campaign(6, 50)):
        folder = quick / str(number)
        folder.mkdir()
        # Four lives on one journal, each going on where the last was killed.
        for life in range(4):
            mode = chance.choice(("kill_before", "kill_after"))
            nursery.work(folder, mode=mode, at=chance.randrange(1, 250), seed=10 + life)
        if (folder / "client.log").exists():
            log = prove(folder)
            assert client_log(folder).acknowledged == log.acknowledged
