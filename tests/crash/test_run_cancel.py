"""T17: a run of the loop over a slow journal, cancelled at each of its awaits, by its caller and by request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from orchestrator.journal.codec import encoded
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Draft, Lease, RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.llm_loop.run_record import loop_codec, restored
from orchestrator.testing.clock import FakeClock
from orchestrator_callbacks.llm_loop.admission import close_turn
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.crash.invariants import check_run
from tests.crash.outside import CALLS, Outside, Tap, agent, happened, said_by
from tests.runtime.test_if_exists import MAKES, Gate

RUN = "r"
STRIDE = 3
"""At which steps a run is cut by default: none of what is done takes a multiple of three, so it is cut anywhere."""


class SlowJournal(MemoryJournal):
    """Each write is durable after two turns of the event loop, and told two turns later, as by a writer thread."""

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        await turns()
        lease = await super().create(run_id, owner, body)
        await turns()
        return lease

    async def claim(self, run_id: str, owner: str, *, steal: bool = False) -> Lease:
        await turns()
        lease = await super().claim(run_id, owner, steal=steal)
        await turns()
        return lease

    def append(  # type: ignore[override]  # the memory's own is done at once
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None]:
        kept = [Draft(kind, orjson.loads(encoded(kind, body))) for kind, body in drafts]
        return self._later(lease, kept)

    async def _later(self, lease: Lease, drafts: Sequence[Draft]) -> None:
        await turns()
        super().append(lease, drafts)
        await turns()

    async def release(self, lease: Lease) -> None:
        await turns()
        await super().release(lease)

    async def head(self, run_id: str) -> RunHead:
        await turns()
        return await super().head(run_id)


async def turns() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def slowly(_: str) -> None:
    await asyncio.sleep(0)


class Case:
    """One world, and the run in it as it was when its first agent let go of it."""

    def __init__(self) -> None:
        self.outside = Outside(point=slowly)
        self.journal = SlowJournal()
        self.clock = FakeClock()
        self.runs: list[LoopRun] = []

    def agent(self) -> Agent:
        one = agent(self.outside, Tap(self.journal, self.outside), clock=self.clock)
        opened = one._service.live.open

        def open_(run: Any, *path: Any) -> None:
            self.runs.append(run)
            opened(run, *path)

        one._service.live.open = open_  # type: ignore[method-assign, assignment]
        return one

    async def people(self, one: Agent) -> None:
        """Answer whatever is asked, by the truth outside."""
        while True:
            await asyncio.sleep(0)
            if one._service.live.find(RUN) is None:
                continue
            for question in await one.pending(RUN):
                by = {"digest": question.digest, "by": "ann"}
                there = happened(self.outside.lines, question.tool, f"{RUN}:{question.key}")
                if question.why != "approval" and there:
                    content = said_by(question.tool, int(question.key[0]))
                    one.respond(RUN, content, question.key, **by)
                else:
                    one.approve(RUN, question.key, **by)
                for _ in range(20):  # until it has been read
                    await asyncio.sleep(0)

    async def answered(self, one: Agent, doing: Awaitable[Result]) -> Result:
        people = asyncio.create_task(self.people(one))
        try:
            return await doing
        finally:
            people.cancel()
            await asyncio.wait((people,))

    async def cut(self, number: int, act: Callable[[Agent, asyncio.Task[Result]], object]) -> Result | None:
        """Run, and `act` before the `number`-th step of the event loop; its Result, if it came to one.

        In each step every task that can goes from one await to the next.
        """
        one = self.agent()
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(one.run(f"go {RUN}", run_id=RUN))
        self.hit, steps = False, 0

        def step() -> None:
            nonlocal steps
            steps += 1
            if task.done():
                return
            if steps == number:
                self.hit = True
                act(one, task)
            loop.call_soon(step)

        loop.call_soon(step)
        people = asyncio.create_task(self.people(one))
        await asyncio.wait((task,))
        people.cancel()
        await asyncio.wait((people,))
        return None if task.cancelled() else task.result()

    async def check(self) -> None:
        await check_run(self.journal, RUN, self.outside.history, agent=agent(self.outside, self.journal))
        assert asyncio.all_tasks() == {asyncio.current_task()}


def standing(run: LoopRun) -> dict[str, Any]:
    """Where a run stands, without what an interrupted hook had begun and would do again."""
    ctx = run.ctx
    close_turn(ctx)
    return {
        "cursor": run.cursor.state,
        "seq": run.seq,
        "pending": None if run.cursor.entry_pending else run.cursor.pending_event,
        "error": None if run.error is None else (type(run.error), str(run.error)),
        "iteration": ctx.iteration,
        "messages": ctx.messages,
        "results": [None if one is None else (one.call, one.outcome, one.content) for one in ctx.results],
        "asked": ctx.ledger.asked,
        "base": (ctx.base, ctx.recalled),
        "limits": ctx.limits,
        "progress": ctx.progress,
        "completion": ctx.completion,
        "spent": (ctx.spent.usage, ctx.spent.by_tool, ctx.spent.tool_calls),
    }


async def agree(case: Case) -> None:
    """What was left in memory is what the journal leads to."""
    records = await case.journal.load(RUN)
    one = case.agent()
    stored = StoredRun.of(RUN, records)
    again = standing(restored(stored, one.machine, one._deps, loop_codec()))
    left = standing(case.runs[0])
    for name, value in left.items():
        assert again[name] == value, name


async def test_cancelled_at_any_await_memory_and_journal_agree_and_it_goes_on_as_if_nothing_had_been(
    campaign: Callable[[int, int], int],
) -> None:
    whole = Case()
    expected = await whole.cut(0, lambda *_: None)
    assert expected is not None
    assert expected.outcome is Outcome.COMPLETED
    for number in itertools.count(1, campaign(STRIDE, 1)):
        case = Case()
        first = await case.cut(number, lambda _, task: task.cancel())
        if not case.hit:
            break
        try:
            await one_case(case, first, expected)
        except AssertionError as error:
            raise AssertionError(f"cancelled at step {number}: {error}") from error
    print(f"the caller's cancellation: below step {number} of the event loop")  # noqa: T201
    assert number > 100


async def one_case(case: Case, first: Result | None, expected: Result) -> None:
    assert first is None, "a cancelled caller gets its CancelledError"
    try:
        head = await case.journal.head(RUN)
    except LookupError:
        return
    except Exception:
        if not case.runs:
            return
        raise
    await case.check()
    if head.status != "ended":
        await agree(case)
    one = case.agent()
    result = await case.answered(one, one.resume(RUN))
    assert (result.outcome, result.output) == (expected.outcome, expected.output)
    assert result.messages == expected.messages
    assert [step.event for step in result.transitions] == [step.event for step in expected.transitions]
    await case.check()
    for turn, tools in CALLS.items():
        for position, tool in enumerate(tools):
            count = happened(case.outside.lines, tool, f"{RUN}:{turn}:{position}")
            assert count == 1 or tool == "look", (tool, count)


@pytest.mark.parametrize("way", ["cancel", "pause"])
async def test_asked_at_any_await_to_stop_or_to_pause_it_does(
    way: str, campaign: Callable[[int, int], int]
) -> None:
    for number in itertools.count(1, campaign(STRIDE, 1)):
        case = Case()

        def act(one: Agent, task: asyncio.Task[Result]) -> None:
            if one._service.live.find(RUN) is None:
                return
            if way == "cancel":
                one.cancel(RUN, by="ann")
            else:
                one.pause(RUN, by="ann")
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, lifted(one))

        result = await case.cut(number, act)
        if not case.hit:
            break
        assert result is not None
        assert result.outcome in (
            {Outcome.CANCELLED, Outcome.COMPLETED} if way == "cancel" else {Outcome.COMPLETED}
        )
        try:
            await case.check()
        except AssertionError as error:
            raise AssertionError(f"{way} at step {number}: {error}") from error
    print(f"{way}: below step {number} of the event loop")  # noqa: T201
    assert number > 100


async def lifted(one: Agent) -> None:
    """Let a paused run go on as soon as it stands still."""
    while (run := one._service.live.find(RUN)) is not None:
        if run.control.pause_request is not None and run.parked:
            one._service.control.go_on(RUN, "ann")
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *itertools.product(("Agent", "Pipeline", "Rlm"), ("deposited", "interrupted")),
        ("Ralph", "interrupted"),  # it is not deposited: its runs start where their files are
    ],
)
async def test_a_resumption_that_is_cancelled_at_any_await_leaves_the_run_without_an_owner(
    kind: str, way: str, tmp_path: Path
) -> None:
    for number in itertools.count(1):
        journal: Any = SlowJournal()
        (folder := tmp_path / str(number)).mkdir()
        if way == "interrupted":
            gate = Gate(is_open=False)
            await cancelled(
                MAKES[kind](folder, journal, gate).run("Do it.", run_id="r1"), gate.entered.wait()
            )
        else:
            await MAKES[kind](folder, journal, Gate()).deposit("Do it.", run_id="r1")
        gate = Gate(is_open=False)
        one = MAKES[kind](folder, journal, gate)
        await cancelled(one.resume("r1"), steps(number))
        head = await journal.head("r1")
        assert (head.status, head.owner) in {("open", None), ("parked", None)}, f"cancelled at step {number}"
        if gate.entered.is_set():
            break
    assert number > 10


async def cancelled(work: Awaitable[object], when: Awaitable[object]) -> None:
    """Cancel some work after something else, and wait for it."""
    task = asyncio.ensure_future(work)
    await when
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def steps(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)
