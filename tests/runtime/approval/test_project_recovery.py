"""What the next process makes of each state that a crash left behind (B10), and that it is told and audited."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.errors import JournalError
from orchestrator.files.path_safety import temporary_for
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import Observer, RunRecovered
from orchestrator.kernel.journal import Draft, Journal, Lease
from orchestrator.machines.approval.plan import ApprovalPlan, FileChange, PlanStep, StepKind, StepOutcome
from orchestrator.runtime.approval.workspace import fingerprint
from orchestrator.telemetry.metrics import Metrics
from tests.runtime.approval.stand import (
    DONE,
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
from tests.telemetry.sampling import sampled


class Until(CrashingJournal):
    """Crashes at the append that would lead out of a state."""

    def __init__(self, inner: Journal, state: str) -> None:
        super().__init__(inner)
        self._state = state

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None] | None:
        if any(one.kind == "transition" and one.body["source"] == self._state for one in drafts):
            self._die()
        return super().append(lease, drafts, blobs)


class Heard:
    """An observer that keeps what it was told of recoveries."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def observe(self, fact: object) -> None:
        if isinstance(fact, RunRecovered):
            self.outcomes.append(fact.outcome)


async def crashed_in(root: Path, state: str) -> None:
    """Let a process end on its way out of a state."""
    (root / ".orchestrator").mkdir()
    inner = SqliteJournal(root / ".orchestrator/journal.db")
    hands: Any = {"journal": Until(inner, state), "clock": clock()}
    approval: Any = None

    def pausing(_: Any) -> None:
        approval.ask_pause()

    async def lived() -> None:
        nonlocal approval
        async with project(root, on_step=pausing if state == "Cancelling" else None, **hands) as approval:
            await waiting(approval)
            await approval.approve()
            await approval.cancel()

    try:
        with pytest.raises(JournalError):
            await lived()
    finally:
        await inner.close()


@pytest.mark.parametrize(
    ("state", "now", "then", "kept"),
    [
        ("ExtractingIntent", "Idle", {"submit"}, 0),
        ("Planning", "Idle", {"submit", "confirm"}, 0),
        ("Executing", "Paused", {"resume", "cancel"}, 5),
        ("Completed", "Idle", {"submit"}, 0),
        ("Cancelling", "Idle", {"submit"}, 0),
    ],
)
async def test_each_state_is_recovered_as_the_table_says_told_and_audited(
    tmp_path: Path, state: str, now: str, then: set[str], kept: int
) -> None:
    root = planted(tmp_path)
    await crashed_in(root, state)
    heard: Any = Heard()
    async with project(root, observers=[heard]) as approval:
        found = approval.recovered
        assert (found.found, found.now, len(found.kept)) == (state, now, kept)
        status = await approval.status()
        assert status.state == now
        assert then <= set(status.actions)
        assert status.recovery == found
        records = await approval._session.journal.load(status.run_id)
        jumps = [(one.body["from"], one.body["to"]) for one in records if one.kind == "recovered"]
        by_itself = state in ("Completed", "Cancelling")  # by edges of the table
        assert jumps == ([] if by_itself else [(state, now)])
        assert heard.outcomes == ([] if by_itself else ["resumed"])
    async with project(root) as approval:
        assert approval.recovered is None  # once
        assert (await approval.status()).recovery == found  # but it is still told


async def test_after_a_crash_in_planning_the_intent_is_planned_for_with_the_persons_word(
    tmp_path: Path,
) -> None:
    root = planted(tmp_path)
    await crashed_in(root, "Planning")
    planner = Script()
    async with project(root, planner) as approval:
        status = await approval.confirm()
        assert (status.state, planner.requests[0].intent.summary) == ("AwaitingApproval", "Tidy up")
        assert status.recovery is None


async def test_after_a_crash_in_executing_the_rest_is_resumed_or_all_is_taken_back(tmp_path: Path) -> None:
    for number, action in enumerate(("resume", "cancel")):
        root = tmp_path / str(number)
        root.mkdir()
        before = tree(planted(root))
        await crashed_in(root, "Executing")
        async with project(root) as approval:
            status = await getattr(approval, action)()
            assert status.state == "Idle"
        assert contents(root) == DONE if action == "resume" else tree(root) == before


@pytest.mark.parametrize("how", ["time", "target", "removed"])
async def test_a_plan_that_waits_is_kept_until_it_expires_or_a_target_changes(
    tmp_path: Path, how: str
) -> None:
    root, hands = planted(tmp_path), clock()
    async with project(root, clock=hands) as approval:
        await waiting(approval)
    (root / "empty").write_bytes(b"no target of the plan")
    async with project(root, clock=hands) as approval:
        assert approval.recovered is None
        assert (await approval.status()).state == "AwaitingApproval"
    match how:
        case "time":
            await hands.advance(1800.0)
        case "target":
            (root / "README.md").write_bytes(b"other\n")
        case _:
            (root / "old.txt").unlink()
    async with project(root, clock=hands) as approval:
        assert (approval.recovered.found, approval.recovered.now) == ("AwaitingApproval", "Idle")
        assert "expired" in approval.recovered.why
        status = await approval.status()
        assert (status.state, status.plan_status) == ("Idle", "expired")
    assert set(contents(root)) >= set(FILES) - {"old.txt"}


async def test_a_host_may_pass_observers_that_count(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    metrics: Observer = Metrics(registry)
    async with project(planted(tmp_path), observers=[metrics]) as approval:
        labels = {
            "machine": "approval",
            "from_state": "Idle",
            "to_state": "ExtractingIntent",
            "event": "submit",
        }
        assert sampled(registry, "orchestrator_transitions_total", **labels) == 0
        await waiting(approval)
        assert sampled(registry, "orchestrator_transitions_total", **labels) == 1


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        (".git/hooks/pre-commit", 0o755),
        ("src/../.git/config", 0o755),
        (".ORCHESTRATOR/journal.db", 0o755),
        ("tool", 0o4755),
        ("tool", 0o2711),
    ],
)
async def test_a_store_that_tells_of_a_change_that_no_plan_could_make_puts_nothing_back(
    tmp_path: Path, path: str, mode: int
) -> None:
    root = planted(tmp_path / "cloned")
    (root / ".git/hooks").mkdir(parents=True)
    await crashed_in(root, "Executing")
    before = tree(root)
    content = b"#!/bin/sh\nowned\n"
    digest = hashlib.sha256(content).hexdigest()
    forged: dict[str, Any] = {"effect": "file", "key": "file-99", "step": "plan-1.1/1", "change": "delete"}
    forged |= {"path": path, "before": digest, "after": None, "mode": mode, "folders": []}
    async with SqliteJournal(root / ".orchestrator/journal.db") as journal:
        lease = await journal.claim("approval-0001", "somebody")
        queued = journal.append(lease, [Draft("intent", forged)], {digest: content})
        assert queued is not None
        await queued
        await journal.release(lease)
    async with project(root) as approval:
        status = await approval.status()
        assert (status.state, status.error["code"]) == ("Failed", "ST-002")
        assert "no plan" in status.error["message"]
        assert status.actions == ("acknowledge --discard",)
        assert tree(root) == before
        assert (await approval.acknowledge(discard=True)).state == "Idle"
    assert tree(root) == before


async def test_a_stored_plan_that_breaks_the_rules_is_not_begun_whoever_has_approved_it(
    tmp_path: Path,
) -> None:
    root = planted(tmp_path)
    before = tree(root)
    hidden = PlanStep(id="1", kind=StepKind.CREATE, files=(FileChange(path=".git/hooks/x", content="x\n"),))
    async with project(root) as approval:
        await waiting(approval)
        run = approval._session.run
        plan = ApprovalPlan.read(run.ctx.plan)
        made = fingerprint(".git/hooks/x", b"x\n")
        forged = plan.model_copy(
            update={
                "steps": (hidden,),
                "targets": (fingerprint(".git/hooks/x", None),),
                "outcomes": (StepOutcome(step="1", files=(made,)),),
            }
        )
        run.ctx.plan, run.ctx.previewed = forged.plain(), forged.digest
        refusal = await refused(approval.approve(), "plan", "SEC-004")
        assert ".git/hooks/x" in refusal.reason
        assert (await approval.status()).plan_status == "expired"
    assert tree(root) == before


async def test_what_a_crash_left_of_writes_is_removed_when_the_project_is_opened_and_nothing_else(
    tmp_path: Path,
) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
    own = root / ".orchestrator"
    left = [own / folder / temporary_for("state.json") for folder in (".", "plan", "rollback", "logs")]
    kept = [own / "notes.tmp", own / "plan" / ".hidden"]
    for path in (*left, *kept):
        path.write_text("half")
    async with project(root) as approval:
        assert (await approval.status()).state == "AwaitingApproval"
        assert [path for path in left if path.exists()] == []
    assert [path.read_text() for path in kept] == ["half"] * 2


async def test_a_project_whose_recovery_fails_is_given_back_and_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)

    async def fails(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.runtime.approval.approval.recover", fails)
        with pytest.raises(OSError, match="No space left"):
            async with project(root):
                pass
    async with project(root) as approval:
        assert (await approval.status()).state == "AwaitingApproval"
