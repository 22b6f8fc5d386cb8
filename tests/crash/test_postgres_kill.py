"""T1, T22 of whole runs on a server: kill -9 at the writes and the effects, and again in the recovery."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.lives import Lives, assert_exact, assert_whole
from tests.crash.place import SERVER

KILLED = (-signal.SIGKILL, -signal.SIGALRM)
Begin = Callable[[Path], Lives]
POINTS = {"before": 13, "after": 13, "outside": 21}
"""Kill -> how many places there are for it; `test_run_kill` counts them."""


@pytest.fixture
def served(quick: Path, database: str) -> Path:
    """A folder whose runs have their journals on a server."""
    (quick / SERVER).write_text(database)
    return quick


def told(lives: Lives) -> None:
    """It ended as the script says, with each effect exactly once."""
    lives.to_the_end()
    assert_exact(lives)
    assert_whole(lives.result())


@pytest.mark.parametrize("when", POINTS)
def test_a_kill_on_the_way_to_the_question(
    when: str, begin: Begin, served: Path, campaign: Callable[[int, int], int]
) -> None:
    for at in range(2, POINTS[when] + 1, campaign(5, 1)):
        lives = begin(served / f"at-{at}")
        assert lives.live("run", kill=when, at=at) in KILLED, (at, lives.errors())
        ran = lives.prove()
        if at % 3 == 0 and ran is not None:
            lives.live("resume", kill="before", at=1 + at % 4)
        told(lives)


@pytest.mark.parametrize("when", POINTS)
def test_a_kill_after_the_answer(
    when: str, begin: Begin, served: Path, campaign: Callable[[int, int], int]
) -> None:
    for at in range(2, 9, campaign(7, 1)):
        lives = begin(served / f"at-{at}")
        assert lives.live("run") == 0, lives.errors()
        lives.prove()
        assert lives.live("resume", kill=when, at=at) in KILLED, (at, lives.errors())
        told(lives)


@pytest.mark.canary
def test_several_who_resume_it_at_once_do_its_work_once(begin: Begin, served: Path) -> None:
    lives = begin(served / "several")
    assert lives.live("run", kill="after", at=7) in KILLED
    lives.prove()
    assert lives.live("resume", times=3) == 0, lives.errors()
    told(lives)
