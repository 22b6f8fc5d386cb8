"""Approval that is stopped: a plan that expires or drifts, a pause, a resume, a cancel; on real folders."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator.machines.approval.fault import Fault
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.runtime.approval.status import StepFact
from orchestrator.testing.clock import FakeClock
from tests.runtime.approval.stand import (
    DONE,
    DRAFT,
    FILES,
    Script,
    clock,
    contents,
    planted,
    project,
    refused,
    tree,
    waiting,
)

# ---- expiry and drift ----


async def test_a_plan_expires_after_its_time_and_is_never_carried_out_then(tmp_path: Path) -> None:
    root = planted(tmp_path)
    before = tree(root)
    hands = clock()
    async with project(root, clock=hands) as approval:
        await waiting(approval)
        await approval.approve(start=False)
        await hands.advance(1800.0)
        error = await refused(approval.execute(), "plan", "ST-004")
        assert error.next_steps == ("submit",)
        assert ((await approval.status()).state, (await approval.status()).plan_status) == ("Idle", "expired")
    assert tree(root) == before


async def test_just_before_its_time_it_may_still_be_carried_out(tmp_path: Path) -> None:
    hands = clock()
    async with project(planted(tmp_path), clock=hands) as approval:
        await waiting(approval)
        await hands.advance(1799.0)
        assert (await approval.approve()).plan_status == "completed"


@pytest.mark.parametrize(("back", "holds"), [(59.0, True), (61.0, False), (7 * 86_400.0, False)])
async def test_a_plan_does_not_live_longer_because_the_clock_was_set_back(
    tmp_path: Path, back: float, holds: bool
) -> None:
    root = planted(tmp_path)
    before = tree(root)
    async with project(root, clock=FakeClock(2_000_000_000.0, auto=True)) as approval:
        await waiting(approval)
        await approval.approve(start=False)
    async with project(root, clock=FakeClock(2_000_000_000.0 - back, auto=True)) as approval:
        if holds:
            assert (await approval.execute()).plan_status == "completed"
        else:
            assert "the clock was set back since the plan was made" in approval.recovered.why
            assert ((await approval.status()).state, (await approval.status()).plan_status) == (
                "Idle",
                "expired",
            )
            assert tree(root) == before


async def test_a_clock_that_is_set_back_meanwhile_is_told_to_who_approves(tmp_path: Path) -> None:
    hands = FakeClock(2_000_000_000.0, auto=True)
    async with project(planted(tmp_path), clock=hands) as approval:
        await waiting(approval)
        hands._start -= 3600.0  # the time of day only; what has passed has passed
        error = await refused(approval.approve(), "plan", "ST-004")
        assert "the clock was set back" in error.reason


async def test_a_plan_whose_target_changed_since_expires_and_names_the_file(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
        (root / "old.txt").write_bytes(b"edited meanwhile")
        error = await refused(approval.approve(), "drift", "ST-005")
        assert "old.txt" in error.reason
        assert (await approval.status()).plan_status == "expired"
    assert contents(root) == FILES | {"old.txt": b"edited meanwhile"}


async def test_a_plan_expires_when_the_limits_it_was_made_under_change(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
    other = ApprovalLimits(caps=ApprovalLimits().caps.__class__(steps=9))
    async with project(root, limits=other) as approval:
        assert approval.recovered.now == "Idle"
        assert "settings" in approval.recovered.why
        assert (await approval.status()).plan_status == "expired"


# ---- pause, resume, cancel ----


async def stopped_after(root: Path, step: int, wish: str) -> Any:
    """Carry out a plan and let somebody wish something while the step of that number is in flight."""

    def on_step(fact: StepFact) -> None:
        if (fact.index, fact.phase) == (step, "begins"):
            getattr(approval, f"ask_{wish}")()

    async with project(root, on_step=on_step) as approval:
        await waiting(approval)
        return await approval.approve()


@pytest.mark.parametrize("step", [1, 2, 3, 4])
async def test_a_plan_pauses_between_steps_and_goes_on_where_it_stopped(tmp_path: Path, step: int) -> None:
    root = planted(tmp_path)
    status = await stopped_after(root, step, "pause")
    assert status.state == "Paused"
    assert [one.status for one in status.steps] == ["done"] * step + ["pending"] * (5 - step)
    async with project(root) as approval:
        assert approval.recovered is None
        status = await approval.resume()
        assert (status.state, status.plan_status) == ("Idle", "completed")
    assert contents(root) == DONE


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
async def test_a_cancel_moves_the_state_at_once_and_brings_every_byte_back(tmp_path: Path, step: int) -> None:
    root = planted(tmp_path)
    before = tree(root)
    status = await stopped_after(root, step, "cancel")
    assert (status.state, status.plan_status) == ("Idle", "cancelled")
    assert tree(root) == before
    assert set(status.undone) <= {*FILES, *DONE}


async def test_a_paused_plan_can_be_cancelled(tmp_path: Path) -> None:
    root = planted(tmp_path)
    before = tree(root)
    await stopped_after(root, 4, "pause")
    async with project(root) as approval:
        status = await approval.cancel()
        assert (status.state, status.plan_status) == ("Idle", "cancelled")
    assert tree(root) == before


@pytest.mark.parametrize("name", ["src/main.py", "README.md"])
async def test_a_conflict_blocks_the_resume_names_the_file_and_keeps_the_edit(
    tmp_path: Path, name: str
) -> None:
    root = planted(tmp_path)
    await stopped_after(root, 2, "pause")
    (root / name).write_bytes(b"from outside")
    async with project(root) as approval:
        error = await refused(approval.resume(), "drift", "ST-005")
        assert name in error.reason
        assert [one.split(",")[0] for one in error.next_steps] == ["resume", "cancel"]
        status = await approval.status()
        assert (status.state, [one.path for one in status.drift]) == ("Paused", [name])
        assert status.drift[0].why == "was changed outside"
        assert (root / name).read_bytes() == b"from outside"


async def test_a_resume_waits_for_a_provider_that_answers(tmp_path: Path) -> None:
    root = planted(tmp_path)
    await stopped_after(root, 2, "pause")
    down = Script(reachable=lambda: Fault("AI-002", "nobody there"))
    async with project(root, down) as approval:
        error = await refused(approval.resume(), "ai", "AI-002")
        assert error.retryable_now
        assert (await approval.status()).state == "Paused"
    async with project(root) as approval:
        assert (await approval.resume()).plan_status == "completed"


async def test_an_edit_from_outside_survives_the_cancel_and_the_rest_is_undone(tmp_path: Path) -> None:
    root = planted(tmp_path)
    await stopped_after(root, 4, "pause")
    (root / "src/main.py").write_bytes(b"from outside")
    async with project(root) as approval:
        status = await approval.cancel()
        assert (status.state, status.error["code"]) == ("Failed", "ST-007")
        assert [one["path"] for one in status.conflicts] == ["src/main.py"]
    assert contents(root) == FILES | {"src/main.py": b"from outside"}


async def test_a_pause_that_comes_after_the_last_step_began_changes_nothing(tmp_path: Path) -> None:
    root = planted(tmp_path)
    status = await stopped_after(root, 5, "pause")
    assert (status.state, status.plan_status) == ("Idle", "completed")
    async with project(root) as approval:  # and it is not found by a later plan
        (root / "old.txt").write_bytes(FILES["old.txt"])
        short = DRAFT.model_copy(update={"steps": DRAFT.steps[2:3]})
        approval._session.executor._planner._planner = Script([short])
        await waiting(approval)
        assert (await approval.approve()).plan_status == "completed"


@pytest.mark.parametrize(
    ("wish", "ends"), [("cancel", ("Idle", "cancelled")), ("pause", ("Paused", "approved"))]
)
async def test_a_step_that_only_waits_for_its_turn_is_not_begun_after_a_cancel_or_a_pause(
    tmp_path: Path, wish: str, ends: tuple[str, str]
) -> None:
    root = planted(tmp_path)
    before = tree(root)
    hands = FakeClock()
    async with project(root, clock=hands, limits=ApprovalLimits(writes_per_minute=1)) as approval:
        await waiting(approval)
        task = asyncio.create_task(approval.approve())
        async with asyncio.timeout(20):
            while not hands.slept:  # noqa: ASYNC110 - the second write of the minute waits by this clock
                await asyncio.sleep(0.01)
            getattr(approval, f"ask_{wish}")()
            status = await task
        assert (status.state, status.plan_status) == ends
        records = await approval._session.journal.load("approval-0001")
        assert {one.body["step"] for one in records if one.kind in ("step", "intent")} == {"plan-1.1/1"}
    assert (tree(root) == before) is (wish == "cancel")
