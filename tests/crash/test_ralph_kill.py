"""kill -9 in each state of the ralph loop, at writes of its journal and changes of its files: one same end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.kernel.journal import Record
from orchestrator.kernel.outcome import Outcome
from tests.crash import life
from tests.crash.kill_points import every, some_of_each
from tests.crash.life import KILLED, Line, begun_by, whole
from tests.crash.mortal import RUN
from tests.crash.ralph_worker import CHANGES

pytestmark = pytest.mark.timeout(900)  # at full size

Begin = Callable[[Path], "Life"]


class Life(life.Life):
    """A run of the ralph loop."""

    def to_the_end(self) -> Line:
        """Go on with it until it has ended; return how it ended.

        What was durable stands, and no agent whose answer was durable is called again.
        """
        before = self.records()
        durable = answered(before)
        began = len(self.said("began"))
        status = self.live("resume" if before else "run")
        assert status == 0, self.errors()
        assert self.records()[: len(before)] == before
        assert not durable & {line["key"] for line in self.said("began")[began:]}
        return self.said("result")[-1]


def answered(records: Sequence[Record]) -> set[str]:
    """Keys of the calls whose answers are in the journal."""
    keys: set[str] = set()
    moves: list[Any] = [record.body for record in records if record.kind == "transition"]
    state = {0: "Initializing"} | {body["seq"]: body["dest"] for body in moves}
    for record in records:
        for at, answer in enumerate(record.body.get("answers") or [] if record.kind == "context" else []):
            keys.add(f"{RUN}:{state[answer['seq']]}:{answer['seq']}:{at}")
    return keys


@pytest.fixture(scope="module")
def begin(environment: dict[str, str]) -> Iterator[Begin]:
    """`begin(folder)` is a run of the loop that processes drive, one after the other."""
    with begun_by("tests.crash.ralph_worker", environment, Life) as begin:
        yield begin


@pytest.fixture(scope="module")
def undisturbed(begin: Begin, tmp_path_factory: pytest.TempPathFactory) -> tuple[Line, Line]:
    """How the run ends that nobody kills, and what it counts."""
    return whole(begin, tmp_path_factory.mktemp("ralph") / "whole")


@pytest.mark.canary
def test_undisturbed_it_asks_reworks_finds_a_task_fails_its_check_once_and_completes(
    undisturbed: tuple[Line, Line],
) -> None:
    result, counted = undisturbed

    assert (result["outcome"], result["reason"]) == (Outcome.COMPLETED.value, "none")
    assert result["counts"] == [5, 4, 1, 1, 1], "executions, qualified, reworks, replans, rounds of questions"
    assert {state for one in result["log"] for state in (one["from"], one["to"])} == {
        "Initializing",
        "Planning",
        "Executing",
        "Reviewing",
        "Complete",
        "Done",
    }
    progress = result["files"]["progress.md"]
    assert all(f"- [x] {task}" in progress for task in ("task-1", "task-2", "task-9", "task-5"))
    assert counted["points"] == 3 * 16, "sixteen calls of agents, three places to die in each"


STATES = ("Planning", "Executing", "Reviewing", "Complete")


@pytest.mark.parametrize("state", STATES)
def test_a_kill_in_the_work_of_each_state(
    state: str, begin: Begin, quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    expected, counted = whole(begin, quick / "whole", kill="agent", state=state)

    # By fours: an agent has three such places, so all of them come.
    for at in every(campaign(4, 1) if counted["points"] > 6 else 1, counted["points"], seed):
        life = begin(quick / f"at-{at}")
        assert life.live("run", kill="agent", state=state, at=at) == KILLED, life.errors()
        if at % 3 == 0:  # a second kill, in the recovery
            assert life.live("resume", kill="agent", at=2) == KILLED
        assert life.to_the_end() == expected, at


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_write_of_the_journal(
    when: str,
    begin: Begin,
    undisturbed: tuple[Line, Line],
    quick: Path,
    seed: int,
    campaign: Callable[[int, int], int],
) -> None:
    expected, counted = undisturbed

    for at in every(campaign(6, 1), counted["writes"], seed):
        life = begin(quick / f"at-{at}")
        assert life.live("run", kill=when, at=at) == KILLED, life.errors()
        assert life.to_the_end() == expected, at


def test_a_kill_before_or_after_each_kind_of_change_of_the_files(
    begin: Begin, undisturbed: tuple[Line, Line], quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    expected, counted = undisturbed

    assert set(CHANGES) - set(counted["changes"]) == {"answer"}, "nobody answers: planning goes on without"
    for at in some_of_each(counted["changes"], campaign(1, len(counted["changes"])), seed):
        life = begin(quick / f"at-{at}")
        assert life.live("run", kill="files", at=at) == KILLED, life.errors()
        assert life.to_the_end() == expected, at
