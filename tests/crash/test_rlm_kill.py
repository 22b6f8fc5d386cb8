"""kill -9 at every write of the journal of a mode's run, and in each question and tool: it comes to the same end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.kernel.outcome import Outcome
from tests.crash import life
from tests.crash.kill_points import every
from tests.crash.life import KILLED, Line, begun_by, whole
from tests.crash.mortal import RUN

pytestmark = pytest.mark.timeout(900)  # at full size

MODES = ("code", "tools")


class Life(life.Life):
    """A run of a mode."""

    def to_the_end(self, mode: str) -> Line:
        """Go on with it in another process until it has ended, holding it to its journal; return how it ended."""
        while not self.said("result"):
            before, asked, began = self.records(), len(self.said("asked")), len(self.said("began"))
            status = self.live("resume" if before else "run", mode=mode)
            assert status == 0, self.errors()
            self.hold(mode, before, self.said("asked")[asked:], self.said("began")[began:])
        return self.said("result")[-1]

    def hold(self, mode: str, before: Sequence[Record], asked: list[Line], began: list[Line]) -> None:
        """What was durable stands, and nothing of it is asked or done again; the model hears what was lost."""
        assert self.records()[: len(before)] == before
        stored = StoredRun.of(RUN, before)
        said = [message for message in stored.messages if message["role"] == "assistant"]
        turns = [line for line in asked if "turn" in line]
        assert all(line["turn"] >= len(said) for line in turns)
        over = str([one for at, one in enumerate(stored.messages) if at + 1 < len(stored.messages)])
        assert not [line["question"] for line in asked if "question" in line and line["question"] in over]
        done = stored.context.get("iteration", 0)
        assert all(int(line["key"].split(":")[1]) > done for line in began)
        lost = mode == "code" and bool(stored.context.get("begun"))
        assert [line["lost"] for line in turns] == [lost and not at for at in range(len(turns))]
        again = lost and stored.state == "EXECUTING" and stored.ended is None
        assert [line["again"] for line in turns] == [again and not at for at in range(len(turns))]


@pytest.fixture(scope="module")
def begin(environment: dict[str, str]) -> Iterator[Callable[[Path], Life]]:
    """`begin(folder)` is a run of a mode that processes drive, one after the other."""
    with begun_by("tests.crash.rlm_worker", environment, Life) as begin:
        yield begin


def assert_same(life: Life, result: Line, expected: Line, mode: str) -> None:
    """Tell whether a run that was killed came to the end of one that was not."""
    names = ["outcome", "reason", "output"]
    if mode == "tools" or not any(line["lost"] for line in life.said("asked")):
        names += ["iterations", "moves", "messages"]
    used = [sum(line["tokens"][at] for line in life.said("asked")) for at in (0, 1)]
    assert all(charged >= asked for charged, asked in zip(result["tokens"], used, strict=True))
    assert {name: result[name] for name in names} == {name: expected[name] for name in names}


@pytest.mark.canary
def test_undisturbed_both_modes_ask_and_answer(begin: Callable[[Path], Life], quick: Path) -> None:
    for mode, sub_calls, points in (("code", 3, 3 * 7), ("tools", 1, 3 * (5 + 3))):
        result, counted = whole(begin, quick / mode, mode=mode)
        assert (result["outcome"], result["output"]) == (Outcome.COMPLETED.value, "42")
        assert (result["iterations"], result["sub_calls"]) == (3, sub_calls)
        assert counted["points"] == points, "three places to die in each question and tool"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_every_write_of_the_journal(
    mode: str,
    when: str,
    begin: Callable[[Path], Life],
    quick: Path,
    seed: int,
    campaign: Callable[[int, int], int],
) -> None:
    expected, counted = whole(begin, quick / "whole", mode=mode)

    for at in every(campaign(7, 1), counted["writes"], seed, first=1 + (when == "after")):
        life = begin(quick / f"at-{at}")
        assert life.live("run", mode=mode, kill=when, at=at) == KILLED, life.errors()
        assert_same(life, life.to_the_end(mode), expected, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_kill_in_every_question_and_tool(
    mode: str, begin: Callable[[Path], Life], quick: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    expected, counted = whole(begin, quick / "whole", mode=mode)

    for at in every(campaign(7, 1), counted["points"], seed):
        life = begin(quick / f"at-{at}")
        assert life.live("run", mode=mode, kill="asked", at=at) == KILLED, life.errors()
        if at % 3 == 0:  # a second kill, in the recovery
            assert life.live("resume", mode=mode, kill="asked", at=2) == KILLED
        assert_same(life, life.to_the_end(mode), expected, mode)
