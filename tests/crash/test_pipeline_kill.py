"""kill -9 in each stage of the pipeline and at every write of its journal: it goes on at the same stage, all intact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.kernel.journal import Record
from orchestrator.kernel.outcome import Outcome
from tests.crash import life
from tests.crash.kill_points import every
from tests.crash.life import KILLED, Line, begun_by, whole


class Life(life.Life):
    """A run of the pipeline."""

    def to_the_end(self, **order: Any) -> Line:
        """Go on with it until it has ended, holding it to what its journal says each time; return how it ended."""
        while not self.said("result"):
            before, began = self.records(), len(self.said("began"))
            status = self.live("resume" if before else "run", **order)
            assert status == 0, self.errors()
            self.hold(before, began, planned=not order.get("model"))
        return self.said("result")[-1]

    def hold(self, before: Sequence[Record], began: int, *, planned: bool = True) -> None:
        """What was durable stands, no stage that had ended was begun again, and the first begun is the present one.

        Where a model plans (not `planned`), planning begins without a word, so nobody can tell which is the first.
        """
        now = self.records()
        assert now[: len(before)] == before
        moves = [record.body for record in before if record.kind == "transition"]
        done = {record.body["seq"] for record in before if record.kind == "stage"}
        later = [int(line["key"].rpartition(":")[2]) for line in self.said("began")[began:]]
        stands = moves[-1]["seq"] if moves else 0
        assert not done & set(later)
        assert later == sorted(set(later))
        if later and planned:
            assert later[0] >= stands
            follows = stands in done or stands == 0 or before[-1].body.get("next")
            assert later[0] == stands or (follows and later[0] == stands + 1)


@pytest.fixture(scope="module")
def begin(environment: dict[str, str]) -> Iterator[Callable[[Path], Life]]:
    """`begin(folder)` is a run of the pipeline that processes drive, one after the other."""
    with begun_by("tests.crash.pipeline_worker", environment, Life) as begin:
        yield begin


@pytest.mark.canary
def test_undisturbed_it_fails_validation_twice_is_refined_replanned_and_approved(
    begin: Callable[[Path], Life], quick: Path
) -> None:
    result, counted = whole(begin, quick / "whole")

    assert (result["outcome"], result["output"]) == (Outcome.COMPLETED.value, "code 4.1")
    assert (result["tokens"], result["iterations"], result["refinements"]) == (4 * 100 + 4 + 150 + 21, 4, 1)
    assert [kind for kind, _, _ in result["feedback"]] == [
        "validation_failure",
        "validation_failure",
        "judge_soft_failure",
        "judge_hard_failure",
    ]
    assert counted["points"] == 3 * 14, "fourteen stages, three places to die in each"


def test_a_kill_at_the_begin_in_the_middle_and_at_the_end_of_each_stage(
    begin: Callable[[Path], Life], quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    expected, counted = whole(begin, quick / "whole")

    # By fives: a stage has three such places, and each fourth has the second kill, so all kinds of them come.
    for at in every(campaign(5, 1), counted["points"], seed):
        life = begin(quick / f"at-{at}")
        assert life.live("run", kill="stage", at=at) == KILLED, life.errors()
        if at % 4 == 0:  # the second kill, in the recovery: at the end of the stage gone on with
            before, began = life.records(), len(life.said("began"))
            assert life.live("resume", kill="stage", at=3) == KILLED
            life.hold(before, began)
        assert life.to_the_end() == expected, at


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_every_write_of_the_journal(
    when: str, begin: Callable[[Path], Life], quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    expected, counted = whole(begin, quick / "whole")
    assert counted["writes"] == 32, (
        "create, two for each stage, one for the first move, one for the end, release"
    )

    for at in every(campaign(6, 1), counted["writes"], seed):
        life = begin(quick / f"at-{at}")
        assert life.live("run", kill=when, at=at) == KILLED, life.errors()
        assert life.to_the_end() == expected, at


def test_a_kill_anywhere_in_a_stage_that_a_model_does_and_its_run_below(
    begin: Callable[[Path], Life], quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    expected, counted = whole(begin, quick / "whole", model=True)
    kills = [("stage", at) for at in every(campaign(10, 1), counted["points"], seed)]
    kills += [("after", at) for at in every(campaign(11, 1), counted["writes"], seed)]

    for kill, at in kills:
        life = begin(quick / f"{kill}-{at}")
        assert life.live("run", model=True, kill=kill, at=at) == KILLED, life.errors()
        result = life.to_the_end(model=True)
        # An answer that was lost may have cost something, and that is charged; all else is the same.
        assert result["tokens"] >= expected["tokens"]
        assert result["tokens"] == sum(tokens for _, _, _, tokens, _ in result["moves"])
        for name in ("outcome", "output", "iterations", "refinements", "feedback", "best"):
            assert result[name] == expected[name], (kill, at, name)
        moves = [[move[:3], move[4]] for move in result["moves"]]
        assert moves == [[move[:3], move[4]] for move in expected["moves"]]
        asked = [line["number"] for line in life.said("asked")]
        assert (sorted(set(asked)), len(asked) <= 5) == ([1, 2, 3, 4], True), "asked again at most once"
