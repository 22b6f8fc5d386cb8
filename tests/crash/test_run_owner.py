"""T9, T10, T11 of whole runs: clocks that jump, an owner that freezes and wakes up, what is asked more than once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import AnswerRefused, Held
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Posted
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.question import Question
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.testing.clock import FakeClock
from tests.crash.invariants import check_run
from tests.crash.lives import Lives, answered, assert_exact, assert_whole
from tests.crash.mortal import RUN
from tests.crash.outside import CALLS, SCRIPT, Outside, agent, said_by

ROOT = Path(__file__).resolve().parents[2]
Begin = Callable[[Path], Lives]
PROMPT = f"go {RUN}"
TOLD = [said_by(tool, turn) for turn, tools in CALLS.items() for tool in tools]


def results(result: Result) -> list[str]:
    return [message.text for message in result.messages if message.role == "tool"]


async def asks(one: Agent) -> Question:
    """Return what a run of this process asks, as soon as it does."""
    while one._service.live.find(RUN) is None or not await one.pending(RUN):  # noqa: ASYNC110  it is not long
        await asyncio.sleep(0)
    (question,) = await one.pending(RUN)
    return question


async def left_asking(outside: Outside, journal: Any, **options: Any) -> Question:
    """Run up to the question, and leave the run there."""
    one = agent(outside, journal, **options)
    running = asyncio.create_task(one.run(PROMPT, run_id=RUN))
    question = await asks(one)
    running.cancel()
    await asyncio.wait((running,))
    return question


# ---- T11 ----


async def five(agents: list[Agent], desk: Agent) -> list[Any]:
    """Let all of them resume the run at once, with a person who answers; what each was told."""
    going = [asyncio.ensure_future(one.resume(RUN)) for one in agents]
    while not any(one._service.live.find(RUN) for one in agents):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await desk.approve(RUN, by="ann")
    return list(await asyncio.gather(*going, return_exceptions=True))


@pytest.mark.canary
@pytest.mark.parametrize("same", [True, False], ids=["one agent", "five agents"])
async def test_of_five_who_resume_a_run_at_once_one_does_and_the_others_are_told(
    tmp_path: Path, same: bool
) -> None:
    outside = Outside()
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        await left_asking(outside, journal)
        one = agent(outside, journal)
        agents = [one] * 5 if same else [one, *(agent(outside, journal) for _ in range(4))]
        desk = agent(outside, journal)
        told = await five(agents, desk)
        done = [each for each in told if isinstance(each, Result)]
        assert done, told
        assert all(isinstance(each, Result | Held) for each in told), told
        assert all(results(each) == TOLD for each in done)
        records = await journal.load(RUN)
        assert [record.kind for record in records].count("resumed") == 1
        await check_run(journal, RUN, outside.history, agent=desk)
        late = await asyncio.gather(*(each.resume(RUN) for each in agents))
        assert all((each.outcome, results(each)) == (Outcome.COMPLETED, TOLD) for each in late)
        assert await journal.load(RUN) == records, "an ended run is only told"


@pytest.mark.canary
def test_of_five_processes_that_resume_a_run_at_once_one_does(begin: Begin, quick: Path) -> None:
    lives = begin(quick / "five")
    assert lives.live("run") == 0
    lives.prove()
    assert lives.live("resume", times=5) == 0, lives.errors()
    assert len(lives.said("result")) + len(lives.said("refused")) == 5
    assert lives.said("result")
    assert all("is held by" in line["why"] for line in lives.said("refused"))
    lives.prove()
    assert_exact(lives)
    assert_whole(lives.said("result")[0])


@pytest.mark.canary
async def test_a_second_answer_is_refused_with_the_first_and_the_same_one_again_is_nothing(
    tmp_path: Path,
) -> None:
    outside = Outside()
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        asked = await left_asking(outside, journal)
        desk = agent(outside, journal, observers=())
        answer = Posted("one", "approve", {"call": asked.key, "digest": asked.digest}, by="ann")
        assert await journal.post(RUN, answer)
        assert not await journal.post(RUN, answer)
        assert await journal.post(
            RUN, Posted("two", "reject", {"call": asked.key, "digest": asked.digest}, by="bob")
        )
        result = await agent(outside, journal).resume(RUN)
        assert (result.outcome, results(result)) == (Outcome.COMPLETED, TOLD)
        records = await journal.load(RUN)
        (approval,) = [record.body for record in records if record.kind == "approval"]
        assert (approval["by"], approval["id"], approval["decision"]) == ("ann", "one", "approve")
        (refused,) = [record.body for record in records if record.kind == "control"]
        assert refused["id"] == "two"
        assert re.fullmatch(r"ann answered before \(approve, [-0-9: ]+ UTC\)", refused["refused"])
        with pytest.raises(AnswerRefused, match="has ended: completed"):
            await desk.approve(RUN, by="carol")
        await check_run(journal, RUN, outside.history, agent=desk)


@pytest.mark.canary
async def test_an_answer_from_another_process_is_bound_to_what_is_asked_when_it_is_given(
    tmp_path: Path,
) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        asked = await left_asking(Outside(), journal)
        await agent(Outside(), journal, observers=()).approve(
            RUN, by="ann"
        )  # it names neither call nor digest
        (posted,) = await journal.inbox(RUN)
        assert (posted.body["call"], posted.body["digest"]) == (asked.key, asked.digest)


@pytest.mark.canary
async def test_a_person_who_ends_a_run_that_another_has_paused_has_rejected_it_for_whoever_resumes_it() -> (
    None
):
    outside, journal = Outside(), MemoryJournal()
    one = agent(outside, journal)
    running = asyncio.create_task(one.run(PROMPT, run_id=RUN))
    await asks(one)
    one.reject(RUN, by="ann", why="too dear", end=True)
    one.pause(RUN, by="bob")
    while (await journal.head(RUN)).reason != "paused":  # noqa: ASYNC110
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait((running,))
    result = await agent(outside, journal).resume(RUN)
    assert (result.outcome, result.reason) == (Outcome.REJECTED, "operator")
    assert "too dear" in str(result.error)


# ---- T9 ----

HOUR, DAY = 3_600.0, 86_400.0


@pytest.mark.canary
@pytest.mark.parametrize("jump", [-DAY, -HOUR, 0.0, HOUR, DAY])
async def test_no_jump_of_the_clock_between_two_lives_changes_what_a_run_does(jump: float) -> None:
    outside, journal = Outside(), MemoryJournal()
    before, after = FakeClock(1_700_000_000.0), FakeClock(1_700_000_000.0 + jump)
    asked = await left_asking(outside, journal, clock=before)
    one = agent(outside, journal, clock=after)
    assert [plan.will for plan in await one.hosting.open_runs()] == [
        f"waits for a person: may pay run? (call {asked.key}); continues in process_tools"
    ]
    await one.approve(RUN, digest=asked.digest, by="ann")
    result = await one.resume(RUN)
    assert (result.outcome, results(result)) == (Outcome.COMPLETED, TOLD)
    times = [record.body["t"] for record in await journal.load(RUN) if "t" in record.body]
    assert times == sorted(times), "active time never goes back"
    assert times[-1] < 1, "nor is a jump counted as work"
    await check_run(journal, RUN, outside.history, agent=one)


@pytest.mark.canary
@pytest.mark.parametrize("jump", [-DAY, -HOUR, HOUR, DAY])
async def test_nor_does_a_jump_while_it_waits(jump: float) -> None:
    outside, journal, clock = Outside(), MemoryJournal(), FakeClock()
    one = agent(outside, journal, clock=clock)
    running = asyncio.create_task(one.run(PROMPT, run_id=RUN))
    asked = await asks(one)
    clock._start += jump
    await clock.advance(60)
    one.approve(RUN, digest=asked.digest, by="ann")
    result = await running
    assert (result.outcome, results(result)) == (Outcome.COMPLETED, TOLD)
    ended = (await journal.load(RUN))[-1].body
    assert ended["t"] < 1, "waiting for a person is not counted"


@pytest.mark.canary
@pytest.mark.parametrize("late", [-1.0, 0.0, DAY])
async def test_an_approval_expires_by_the_wall_clock_alone(late: float) -> None:
    """A week is what a person has: at its end nobody can say yes, neither from outside nor in the run."""
    outside, journal = Outside(), MemoryJournal()
    asked = await left_asking(outside, journal, clock=FakeClock(1_700_000_000.0))
    assert asked.expires_at == 1_700_000_000.0 + 7 * DAY
    one = agent(outside, journal, clock=FakeClock(asked.expires_at + late))
    if late < 0:
        await one.approve(RUN, by="ann")
        assert results(await one.resume(RUN)) == TOLD
        return
    with pytest.raises(AnswerRefused, match="it came too late: the question has expired"):
        await one.approve(RUN, by="ann")
    await journal.post(RUN, Posted("raw", "approve", {"digest": asked.digest}, by="bob"))
    result = await one.resume(RUN)
    assert result.outcome is Outcome.COMPLETED
    assert "nobody approved this call in time" in results(result)[TOLD.index("pay 4")]
    assert not outside.history.effects("pay", RUN)


# ---- T10 ----

FROZEN_AT = {"before the model answers": 2, "after it has": 3, "after an effect, before its record": 17}


def frozen(folder: Path, environment: dict[str, str], at: int) -> subprocess.Popen[str]:
    """Start a process that owns the run and stops at a boundary."""
    folder.mkdir()
    order = {"folder": str(folder), "do": "run", "kill": "frozen", "at": at}
    command = [sys.executable, "-m", "tests.crash.loop_worker", json.dumps(order)]
    owner = subprocess.Popen(command, cwd=ROOT, env=environment, text=True)
    os.waitid(os.P_PID, owner.pid, os.WSTOPPED)
    return owner


async def stolen(folder: Path) -> None:
    """Take the run from its owner, who lives, and bring it to its end."""
    outside = Outside(folder / "outside")
    async with SqliteJournal(folder / "journal.db") as journal:
        one = agent(outside, journal, observers=(outside,))
        with pytest.raises(Held):
            await one.resume(RUN)
        await journal.release(await journal.claim(RUN, "thief", steal=True))
        going = asyncio.create_task(one.resume(RUN))
        while not going.done():
            await asyncio.sleep(0.01)
            for question in [] if one._service.live.find(RUN) is None else await one.pending(RUN):
                await answered(one, journal, question, outside.lines)
        result = await going
        assert results(result) == TOLD
    outside.close()


@pytest.mark.parametrize("when", FROZEN_AT)
async def test_a_frozen_owner_whose_run_was_stolen_wakes_up_and_ends_quietly(
    when: str, quick: Path, environment: dict[str, str]
) -> None:
    folder = quick / "run"
    with frozen(folder, environment, FROZEN_AT[when]) as owner:
        await stolen(folder)
        outside = Outside(folder / "outside")
        async with SqliteJournal(folder / "journal.db") as journal:
            records, before = await journal.load(RUN), len(outside.lines)
            owner.send_signal(signal.SIGCONT)
            assert owner.wait() == 0, (folder / "errors").read_text()
            assert await journal.load(RUN) == records, "nothing of it lands"
            desk = agent(outside, journal, observers=())
            await check_run(journal, RUN, outside.history, agent=desk)
        after = outside.lines[before:]
        outside.close()
        assert not {line["what"] for line in after} & {"ack", "told", "effect", "undone", "stored", "episode"}
        (told,) = [line for line in after if line["what"] in {"result", "refused"}]
        assert told["what"] == "refused" or told["reason"] == "journal_error"
        assert (
            len(SCRIPT) + 1
            >= len([line for line in outside.lines if line["what"] == "served"])
            >= len(SCRIPT)
        )
