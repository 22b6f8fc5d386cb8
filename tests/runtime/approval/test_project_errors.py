"""Every way an error can come: it ends in Failed, or refuses the command; nothing is half done."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, JournalError, LLMError, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.machines.approval.fault import RULES, ApprovalError, Fault, GateRefused
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.plan import Intent, PlanDraft, PlanStep, StepKind
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import StepFact
from tests.runtime.approval.stand import (
    DONE,
    DRAFT,
    FILES,
    Script,
    clock,
    contents,
    intent,
    planted,
    project,
    tree,
    waiting,
)

SECRET = "sk-live-0123456789abcdef"  # noqa: S105 - what must appear nowhere


MISSPELT: Any = {"expiry": 1.0}


class OfAHost(Exception):
    """An error that nobody here knows; its text may say anything."""


ERRORS: list[BaseException] = [
    OfAHost(f"with {SECRET} in it"),
    RuntimeError("boom"),
    KeyError("x"),
    RecursionError(),
    MemoryError(),
    OSError(28, "No space left on device"),
    LLMError("refused", kind="auth", status=401),
    TimeoutError(),
    *(ApprovalError(Fault(code, "no")) for code in ("AI-001", "AI-006", "AI-007", "CFG-001")),
]


@pytest.mark.parametrize(
    "error", ERRORS, ids=lambda error: f"{type(error).__name__}-{getattr(error, 'code', '')}"
)
@pytest.mark.parametrize("place", ["extract", "plan"])
async def test_whatever_the_planner_raises_the_request_fails_with_a_code_of_the_table(
    tmp_path: Path, error: BaseException, place: str
) -> None:
    root = planted(tmp_path)
    before = tree(root)
    planner = Script(intents=[error]) if place == "extract" else Script([error])
    async with project(root, planner) as approval:
        status = await approval.run("Please tidy up.")
        assert status.state == "Failed"
        assert status.error["code"] in RULES
        assert not status.error["shown"]
        assert ("retry" in status.actions) == (place == "plan")
    assert tree(root) == before
    for file in (root / ".orchestrator").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


@pytest.mark.parametrize(
    "said", [None, 7, "text", {"steps": []}, object()], ids=lambda said: type(said).__name__
)
async def test_an_answer_that_is_none_fails_the_request(tmp_path: Path, said: Any) -> None:
    class Odd(Script):
        async def plan(self, request: Any) -> Any:
            return said

        async def reachable(self) -> None:
            return None

    async with project(planted(tmp_path), Odd()) as approval:
        status = await approval.run("Please tidy up.")
        assert (status.state, status.error["code"] in RULES) == ("Failed", True)


async def test_a_log_that_cannot_be_written_fails_no_request_but_keeps_a_plan_from_being_begun(
    tmp_path: Path,
) -> None:
    class Forgetful(Script):
        """Is away the first time; meanwhile somebody takes the folder of the logs away."""

        async def extract(self, text: str) -> Any:
            logs = tmp_path / ".orchestrator/logs"
            if logs.is_dir():
                shutil.rmtree(logs)
                logs.write_text("in its place")
                raise ApprovalError(Fault("AI-002", "away"))
            return await super().extract(text)

    async with project(planted(tmp_path), Forgetful()) as approval:
        status = await waiting(approval)
        assert status.error is None
        with pytest.raises(GateRefused, match="the log cannot be written") as closed:
            await approval.approve()
        assert (closed.value.code, closed.value.retryable_now) == ("FS-003", True)
    assert contents(tmp_path) == FILES


class Slow(Script):
    """Answers never, until it is let."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def extract(self, text: str) -> Any:
        return await self._waits("extract", super().extract(text))

    async def plan(self, request: Any) -> Any:
        return await self._waits("plan", super().plan(request))

    async def _waits(self, place: str, answer: Awaitable[Any]) -> Any:
        said = await answer
        if place == self.place:
            self.asked.set()
            await self.go.wait()
        return said


@pytest.mark.parametrize("place", ["extract", "plan"])
async def test_a_cancel_while_the_planner_is_asked_waits_for_its_answer_and_drops_it(
    tmp_path: Path, place: str
) -> None:
    planner = Slow(place)
    async with project(planted(tmp_path), planner) as approval:
        task = asyncio.create_task(approval.run("Please tidy up."))
        await planner.asked.wait()
        approval.ask_cancel()
        approval.ask_pause()
        done, _ = await asyncio.wait((task,), timeout=0.05)
        assert not done  # it is not interrupted
        planner.go.set()
        status = await task
        assert (status.state, status.plan) == ("Idle", None)


@pytest.mark.parametrize("place", ["extract", "plan"])
async def test_a_planner_that_does_not_answer_in_time_is_asked_again_and_then_fails(
    tmp_path: Path, place: str
) -> None:
    hands = clock()
    async with project(
        planted(tmp_path), Slow(place), clock=hands, limits=ApprovalLimits(ai_seconds=0.01)
    ) as approval:
        status = await approval.run("Please tidy up.")
        assert (status.state, status.error["code"]) == ("Failed", "AI-002")
        assert [seconds for seconds in hands.slept if seconds] == [1.0, 2.0, 4.0]
    log = next((tmp_path / ".orchestrator/logs").iterdir()).read_text()
    assert log.count('"code": "AI-002"') >= 3


async def test_a_caller_that_is_cancelled_in_a_step_leaves_it_whole_and_the_next_start_says_so(
    tmp_path: Path,
) -> None:
    root = planted(tmp_path)
    begun = asyncio.Event()

    def on_step(fact: StepFact) -> None:
        if (fact.index, fact.phase) == (3, "begins"):
            begun.set()

    async with project(root, on_step=on_step) as approval:
        await waiting(approval)
        task = asyncio.create_task(approval.approve())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with project(root) as approval:
        assert (approval.recovered.found, approval.recovered.now) == ("Executing", "Paused")
        status = await approval.status()
        assert [one.status for one in status.steps[:2]] == ["done", "done"]
        assert status.recovery == approval.recovered
        await approval.resume()
    assert contents(root) == DONE


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.campaign), "after"])
async def test_a_journal_that_breaks_at_any_append_loses_nothing(tmp_path: Path, when: Any) -> None:
    number = 1
    while True:
        root = tmp_path / str(number)
        root.mkdir()
        planted(root)
        before = tree(root)
        (root / ".orchestrator").mkdir()
        inner = SqliteJournal(root / ".orchestrator/journal.db")
        journal = CrashingJournal(inner, at=number, when=when)
        try:
            async with project(root, journal=journal) as approval:
                await waiting(approval)
                await approval.approve()
        except JournalError:
            pass
        finally:
            await inner.close()
        assert journal.crashed or contents(root) == DONE
        async with project(root) as approval:
            status = await approval.status()
            assert status.state in ("Idle", "AwaitingApproval", "Paused"), (number, status.state)
            if status.state == "Paused":
                await approval.cancel()
            if not (status.state == "Idle" and status.plan_status == "completed"):
                assert tree(root) == before, number
        if not journal.crashed:
            return
        number += 4


async def test_a_folder_that_cannot_be_written_stops_before_the_state_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = planted(tmp_path)
    before = tree(root)
    async with project(root) as approval:
        await waiting(approval)

        def broken(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("orchestrator.runtime.approval.project_journal.atomic_write", broken)
            with pytest.raises(StoreDown, match="No space left"):
                await approval.approve()
    async with project(root) as approval:
        assert (await approval.status()).state in ("AwaitingApproval", "Paused")
    assert tree(root) == before


async def test_a_command_that_fails_fails_the_step_and_is_not_undone(tmp_path: Path) -> None:
    root = planted(tmp_path)
    steps = (*DRAFT.steps[:1], PlanStep(id="run", kind=StepKind.RUN, argv=("false",)))
    async with project(root, Script([PlanDraft(goal="g", steps=steps)])) as approval:
        await waiting(approval)
        status = await approval.approve()
        assert (status.state, status.error["code"]) == ("Failed", "BLD-002")
        assert contents(root) == FILES | {"docs/guide/new.md": b"# New\n"}
        status = await approval.rollback()
        assert status.undone == ("docs/guide/new.md",)
    assert contents(root) == FILES


async def test_an_observer_and_a_hook_that_raise_cannot_leave_a_state_open(tmp_path: Path) -> None:
    class Loud:
        def observe(self, fact: object) -> None:
            raise OfAHost("an observer")

    class Hook:
        async def enter_executing(self, run: Any) -> None:
            raise OfAHost("a hook")

    root = planted(tmp_path)
    async with project(root, observers=[Loud()], hooks=[Hook()]) as approval:
        await waiting(approval)
        status = await approval.approve()
        assert (status.state, status.error["code"]) == ("Failed", "ST-008")
    async with project(root) as approval:
        assert (await approval.status()).state == "Failed"


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda: ApprovalLimits(confirm=0.9, proceed=0.8), "confirm must not be above"),
        (lambda: ApprovalLimits(proceed=1.1), "not above 1"),
        (lambda: ApprovalLimits(keep_plans=0), "1 to 100"),
        (lambda: ApprovalLimits(keep_plans=101), "1 to 100"),
        (lambda: ApprovalLimits(expiry_seconds=-1), "0 \\(off\\) or more"),
        (lambda: ApprovalLimits(**MISSPELT), "expiry_seconds"),
        (lambda: Approval("/nowhere/at/all"), "cannot be opened"),
        (lambda: Approval("/", limits={"keep_plans": 3}), "give ApprovalLimits.keep_plans=3"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(wrong: Callable[[], Any], match: str) -> None:
    with pytest.raises((ConfigError, ApprovalError), match=match):
        wrong()


async def test_an_intent_of_no_kind_is_never_gone_on_with_unasked(tmp_path: Path) -> None:
    unknown = Intent.read(intent(1.0).plain() | {"kind": "Unknown"})
    async with project(planted(tmp_path), Script(intents=[[unknown]])) as approval:
        status = await approval.run("Please tidy up.")
        assert (status.state, "confirm" in status.actions) == ("Idle", True)


async def test_more_questions_than_a_minute_allows_wait_for_their_turn(tmp_path: Path) -> None:
    hands = clock()
    async with project(planted(tmp_path), clock=hands, limits=ApprovalLimits(ai_per_minute=2)) as approval:
        await waiting(approval)
        await approval.changes("Otherwise.")
        assert sum(hands.slept) == pytest.approx(60.0)
        await approval.cancel()
        with pytest.raises(GateRefused):
            await approval.changes("x")


@pytest.mark.parametrize("plan", [None, {"id": "plan-1"}, {"goal": 7}], ids=["missing", "cut off", "no plan"])
async def test_a_plan_that_cannot_be_read_any_more_fails_the_resume(tmp_path: Path, plan: Any) -> None:
    root = planted(tmp_path)

    def on_step(fact: StepFact) -> None:
        if (fact.index, fact.phase) == (2, "begins"):
            approval.ask_pause()

    async with project(root, on_step=on_step) as approval:
        await waiting(approval)
        assert (await approval.approve()).state == "Paused"
        between = tree(root)
        approval._session.run.ctx.plan = plan
        status = await approval.resume()
        assert (status.state, status.error["code"], status.plan) == ("Failed", "ST-002", None)
    assert tree(root) == between


@pytest.mark.parametrize(("place", "seconds"), [("extract", 900.0), ("plan", 3600.0)])
async def test_a_state_that_lasts_too_long_fails_by_its_own_edge(
    tmp_path: Path, place: str, seconds: float
) -> None:
    root, hands, planner = planted(tmp_path), clock(), Slow(place)
    async with project(root, planner, clock=hands, limits=ApprovalLimits(ai_seconds=0)) as approval:
        task = asyncio.create_task(approval.run("Please tidy up."))
        await planner.asked.wait()
        await hands.advance(seconds)
        status = await task
        assert (status.state, status.error["code"]) == ("Failed", "ST-008")
        assert "lasted longer" in status.error["message"]


async def test_an_execution_that_lasts_too_long_fails_between_its_steps_and_can_be_rolled_back(
    tmp_path: Path,
) -> None:
    root, hands, begun = planted(tmp_path), clock(), asyncio.Event()
    before = tree(root)

    async def on_step(fact: StepFact) -> None:
        if fact.index == 3:
            begun.set()
            await asyncio.Event().wait()

    async with project(root, clock=hands, on_step=on_step) as approval:
        await waiting(approval)
        task = asyncio.create_task(approval.approve())
        await begun.wait()
        await hands.advance(7200.0)
        status = await task
        assert (status.state, status.plan_status) == ("Failed", "failed")
        assert [one.status for one in status.steps[:2]] == ["done", "done"]
        await approval.rollback()
    assert tree(root) == before
