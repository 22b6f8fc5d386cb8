"""T1, T2, T22 of whole runs: kill -9 at every write of the journal, at every boundary of an effect, and at random."""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.kill_points import every
from tests.crash.lives import Lives, assert_exact, assert_whole

KILLED = (-signal.SIGKILL, -signal.SIGALRM)
Begin = Callable[[Path], Lives]


def whole(begin: Begin, folder: Path) -> tuple[int, int, Lives]:
    """How many writes and boundaries the lives of an undisturbed run have up to its question, and the run."""
    lives = begin(folder)
    assert lives.live("run") == 0, lives.errors()
    first = lives.said("counted")[0]
    lives.to_the_end()
    assert_exact(lives)
    return first["writes"], first["points"], lives


def told(lives: Lives) -> None:
    """It ended as the script says, with each effect exactly once."""
    lives.to_the_end()
    assert_exact(lives)
    assert_whole(lives.result())


@pytest.mark.canary
def test_undisturbed_it_does_what_the_script_says(begin: Begin, quick: Path) -> None:
    writes, points, lives = whole(begin, quick / "whole")
    assert_whole(lives.result())
    assert (writes, points) == (13, 21)


@pytest.mark.parametrize("when", ["before", "after", "outside"])
def test_a_kill_at_every_boundary_up_to_the_question(
    when: str, begin: Begin, quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    writes, points, _ = whole(begin, quick / "whole")
    count = points if when == "outside" else writes
    again = 0
    # By fours: each third one has a second kill, so these come too.
    chosen = every(campaign(4, 1), count, seed)
    for at in chosen:
        lives = begin(quick / f"at-{at}")
        assert lives.live("run", kill=when, at=at) in KILLED, (at, lives.errors())
        ran = lives.prove()
        if at % 3 == 0 and ran is not None:  # the second kill, in the recovery
            kind = ("before", "after", "outside")[at // 3 % 3]
            again += lives.live("resume", kill=kind, at=1 + at % 4) in KILLED
        told(lives)
    print(f"{when}: {len(chosen)} of {count} kill points, {again} second kills")  # noqa: T201


@pytest.mark.parametrize("when", ["before", "after", "outside"])
def test_a_kill_at_every_boundary_after_the_answer(
    when: str, begin: Begin, quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    stride = campaign(4, 1)
    for at in itertools.count(1 + seed % stride, stride):
        lives = begin(quick / f"at-{at}")
        lives.live("run")
        lives.prove()
        status = lives.live("resume", kill=when, at=at)
        if status not in KILLED:
            assert status == 0, lives.errors()
            break
        if at % 3 == 0:
            lives.prove()
            lives.live("resume", kill="before", at=1 + at % 5)
        told(lives)
    print(f"{when}: below {at} of the kill points")  # noqa: T201
    assert at > 8


@pytest.mark.canary
def test_a_run_that_dies_whenever_it_asks_loses_no_question(begin: Begin, quick: Path) -> None:
    lives = begin(quick / "asks")
    assert lives.live("run", person="die") in KILLED
    lives.to_the_end(person="die")
    assert_exact(lives)
    assert_whole(lives.result())


def test_kills_at_random_times(
    begin: Begin, quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    chance = random.Random(seed)
    kills = number = 0
    most = campaign(12, 200)
    while kills < most:
        number += 1
        lives = begin(quick / str(number))
        for _ in range(3):
            ran = lives.prove()
            do = "run" if ran is None else "resume"
            kills += lives.live(do, kill="later", at=chance.uniform(0.002, 0.12)) in KILLED
        told(lives)
    print(f"{kills} kills in {number} runs")  # noqa: T201
