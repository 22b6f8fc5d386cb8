"""Approval from a request to a changed project and back, on real folders, each command a process of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.plan import PlanDraft, PlanStep, StepKind
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import StepFact
from orchestrator.runtime.service.runtime import Runtime
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
    refused,
    tree,
    waiting,
)


async def test_a_request_is_planned_shown_approved_and_carried_out(tmp_path: Path) -> None:
    root = planted(tmp_path)
    before = tree(root)
    async with project(root) as approval:
        status = await approval.run("Please tidy up.")
        assert (status.state, status.plan_status, len(status.plan.steps)) == (
            "AwaitingApproval",
            "pending",
            5,
        )
        assert tree(root) == before
    async with project(root) as approval:
        assert approval.recovered is None
        status = await approval.show()
        assert [step.status for step in status.steps] == ["pending"] * 5
        status = await approval.approve(start=False)
        assert (status.state, status.plan_status) == ("AwaitingApproval", "approved")
        assert tree(root) == before
    async with project(root) as approval:
        status = await approval.execute()
        assert (status.state, status.plan_status) == ("Idle", "completed")
        assert [step.status for step in status.steps] == ["done"] * 5
    assert contents(root) == DONE


async def test_nothing_is_carried_out_that_was_not_shown_or_not_approved(tmp_path: Path) -> None:
    root = planted(tmp_path)
    before = tree(root)
    async with project(root) as approval:
        await approval.run("Please tidy up.")
        await refused(approval.approve(), "preview_acknowledged")
        await refused(approval.execute(), "plan", "ST-003")
        await approval.show()
        await refused(approval.execute(), "plan", "ST-003")
        await refused(approval.approve(digest="0" * 64), "plan", "ST-003")
    assert tree(root) == before


@pytest.mark.parametrize(
    ("confidence", "state", "kept"),
    [
        (1.0, "AwaitingApproval", False),
        (0.85, "AwaitingApproval", False),
        (0.8499, "Idle", True),
        (0.60, "Idle", True),
        (0.5999, "Idle", False),
        (0.0, "Idle", False),
    ],
)
async def test_the_confidence_of_an_intent_decides_who_goes_on(
    tmp_path: Path, confidence: float, state: str, kept: bool
) -> None:
    planner = Script(intents=[[intent(confidence)]])
    async with project(planted(tmp_path), planner) as approval:
        status = await approval.run("Please tidy up.")
        assert status.state == state
        assert ("confirm" in status.actions) == kept
        assert (status.question is not None) == (state == "Idle")
        if not kept and state == "Idle":
            await refused(approval.confirm(), "state")


async def test_an_intent_in_doubt_is_planned_for_once_the_person_confirms_it(tmp_path: Path) -> None:
    root = planted(tmp_path)
    planner = Script(intents=[[intent(0.7, question="Really all of it?")]])
    async with project(root, planner) as approval:
        status = await approval.run("Please tidy up.")
        assert status.question.text == "Really all of it?"
        assert status.question.confidence == 0.7
    async with project(root, planner) as approval:
        status = await approval.confirm()
        assert status.state == "AwaitingApproval"
        assert planner.requests[0].intent.summary == "Tidy up"


async def test_each_part_of_a_composite_request_gets_a_plan_of_its_own_one_after_the_other(
    tmp_path: Path,
) -> None:
    root = planted(tmp_path)
    drafts = [
        DRAFT.model_copy(update={"steps": DRAFT.steps[:1]}),
        DRAFT.model_copy(update={"steps": DRAFT.steps[1:2]}),
    ]
    planner = Script(drafts, intents=[[intent(), intent(summary="Part two")]])
    async with project(root, planner) as approval:
        await waiting(approval)
        status = await approval.approve()
        assert (status.state, status.plan_status) == ("Idle", "completed")
        assert "Part two" in status.question.text
        status = await approval.confirm()
        assert (status.plan.id, status.intent["summary"]) == ("plan-1-2", "Part two")
        await approval.show()
        status = await approval.approve()
        assert status.question is None
    assert contents(root)["src/main.py"] == b"import util\n\nprint(2)\n"


async def test_changes_lead_to_another_version_and_the_first_stays_as_it_was(tmp_path: Path) -> None:
    root = planted(tmp_path)
    planner = Script([DRAFT, DRAFT.model_copy(update={"steps": DRAFT.steps[:2]})])
    async with project(root, planner) as approval:
        first = await waiting(approval)
        kept = (root / ".orchestrator/plan/plan-1.v1.json").read_bytes()
        status = await approval.changes("Only the first two.")
        assert (status.plan.version, len(status.plan.steps)) == (2, 2)
        assert planner.requests[1].changes == "Only the first two."
        assert planner.requests[1].previous == first.plan
        assert (root / ".orchestrator/plan/plan-1.v1.json").read_bytes() == kept
        assert (await approval.show(1)).plan == first.plan
        await refused(approval.approve(), "preview_acknowledged")
        await refused(approval.approve(digest=first.plan.digest), "plan", "ST-003")
        with pytest.raises(ApprovalError, match="VAL-001"):
            await approval.changes("  ")
        await refused(approval.show(7), "plan")


async def test_a_part_of_a_plan_is_a_plan_of_its_own_with_what_it_depends_on(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        whole = await waiting(approval)
        status = await approval.approve(steps=["5"])
        assert (status.state, status.plan_status) == ("AwaitingApproval", "pending")
        await refused(approval.approve(), "preview_acknowledged")  # step 2 was not named
        await approval.show()
        status = await approval.approve(start=False)
        assert (status.plan.id, status.plan.version) == ("plan-1-2", 1)
        assert [step.id for step in status.plan.steps] == ["2", "5"]
        assert status.plan.derived_from == whole.plan.digest
        status = await approval.execute()
        assert status.state == "Idle"
    changed = {name: DONE[name] for name in ("src/main.py", "README.md")}
    assert contents(root) == FILES | changed


async def test_chosen_steps_that_need_no_others_are_approved_at_once(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
        status = await approval.approve(steps=[1, 3])
        assert (status.state, status.plan_status) == ("Idle", "completed")
    now = {name: content for name, content in FILES.items() if name != "old.txt"}
    assert contents(root) == now | {"docs/guide/new.md": b"# New\n"}


async def test_a_chosen_step_that_is_not_there_refuses_the_approval(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
        with pytest.raises(ApprovalError, match="VAL-019"):
            await approval.approve(steps=["9"])
        assert (await approval.status()).plan_status == "pending"


@pytest.mark.parametrize("action", ["reject", "cancel"])
async def test_a_plan_that_is_not_wanted_is_discarded_without_a_rollback(tmp_path: Path, action: str) -> None:
    root = planted(tmp_path)
    before = tree(root)
    async with project(root) as approval:
        await waiting(approval)
        status = await getattr(approval, action)(why="not this")
        assert (status.state, status.plan_status) == ("Idle", "rejected")
        await refused(approval.execute(), "state", "ST-001")
    assert tree(root) == before


# ---- failures ----


async def test_a_step_that_fails_keeps_what_is_done_and_is_itself_undone(tmp_path: Path) -> None:
    root = planted(tmp_path)

    def on_step(fact: StepFact) -> None:
        if (fact.index, fact.phase) == (5, "begins"):
            (root / "src/main.py").write_bytes(b"from outside")

    async with project(root, on_step=on_step) as approval:
        await waiting(approval)
        status = await approval.approve()
        assert (status.state, status.plan_status) == ("Failed", "failed")
        assert status.error["path"] == "src/main.py" or "src/main.py" in status.error["message"]
        assert contents(root)["README.md"] == FILES["README.md"]
        assert contents(root)["src/util.py"] == DONE["src/util.py"]
        assert (root / "src/main.py").read_bytes() == b"from outside"
        await refused(approval.acknowledge(), "state", "ST-001")
        status = await approval.rollback()
        assert status.state == "Failed"
        assert [one["path"] for one in status.conflicts] == ["src/main.py"]
    assert contents(root) == FILES | {"src/main.py": b"from outside"}
    async with project(root) as approval:
        await approval.shown()
        assert (await approval.acknowledge()).state == "Idle"


async def test_a_rollback_takes_back_every_plan_of_the_request_that_failed_and_none_that_was_completed(
    tmp_path: Path,
) -> None:
    root = planted(tmp_path)
    create, edit = DRAFT.steps[0], DRAFT.steps[1]
    fails = PlanStep(id="9", kind=StepKind.RUN, argv=("false",))
    drafts = [
        PlanDraft(goal="g", steps=steps) for steps in ((create,), (edit, fails), (DRAFT.steps[2], fails))
    ]
    async with project(root, Script(drafts, intents=[[intent(), intent(summary="Part two")]])) as approval:
        await waiting(approval)
        assert (await approval.approve()).plan_status == "completed"
        await approval.confirm()
        await approval.show()
        assert (await approval.approve()).state == "Failed"
        await approval.retry()
        await approval.show()
        assert (await approval.approve()).state == "Failed"
        assert contents(root)["src/main.py"] != FILES["src/main.py"]
        assert "old.txt" not in contents(root)
        status = await approval.rollback()
        assert set(status.undone) == {"src/main.py", "old.txt"}
        assert "rollback" not in status.actions
        await refused(approval.rollback(), "plan")
    assert contents(root) == FILES | {"docs/guide/new.md": b"# New\n"}


async def test_a_plan_that_is_approved_needs_no_provider(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
    async with project(root, Script(reachable=lambda: Fault("AI-002", "nobody there"))) as approval:
        assert (await approval.approve()).plan_status == "completed"


async def test_a_planner_that_fails_leads_to_failed_and_a_retry_makes_a_new_plan(tmp_path: Path) -> None:
    root = planted(tmp_path)
    bad = ApprovalError(Fault("AI-006", "no"))
    async with project(root, Script([bad])) as approval:
        status = await approval.run("Please tidy up.")
        assert (status.state, status.error["code"]) == ("Failed", "AI-006")
        assert json.loads((root / ".orchestrator/error.json").read_text())["error"]["code"] == "AI-006"
    async with project(root, Script([DRAFT])) as approval:
        assert "no" in str(approval._session.run.error)
        status = await approval.retry()
        assert (status.state, status.plan.id, status.error) == ("AwaitingApproval", "plan-1", None)
    async with project(root) as approval:
        assert approval._session.run.error is None


async def test_a_failure_before_there_is_an_intent_can_only_be_acknowledged(tmp_path: Path) -> None:
    planner = Script(intents=[ApprovalError(Fault("AI-006", "no")), [intent()]])
    async with project(planted(tmp_path), planner) as approval:
        status = await approval.run("Please tidy up.")
        assert (status.state, status.actions[0]) == ("Failed", "acknowledge")
        await refused(approval.retry(), "state")
        await refused(approval.acknowledge(), "state")
        await approval.shown()
        assert (await approval.acknowledge()).state == "Idle"
        assert (await approval.run("Once more.")).state == "AwaitingApproval"


async def test_without_a_planner_a_submission_fails_and_says_what_to_configure(tmp_path: Path) -> None:
    async with Approval(planted(tmp_path), runtime=Runtime(clock=clock(), observers=())) as approval:
        status: Any = await approval.run("Please tidy up.")
        assert (status.state, status.error["code"]) == ("Failed", "CFG-001")


async def test_what_cannot_be_written_down_is_refused_whoever_says_it_and_changes_nothing(
    tmp_path: Path,
) -> None:
    half = "half a \ud83d"
    with pytest.raises(ApprovalError, match="VAL-001: the name of who asks is not valid UTF-8 text"):
        Approval(tmp_path, observers=(), by=half)
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    with pytest.raises(
        ApprovalError, match=r"CFG-003: the project .* has a name that is not UTF-8; rename it"
    ):
        Approval(folder, observers=())
    folder.rmdir()
    async with project(planted(tmp_path)) as approval:
        with pytest.raises(ApprovalError, match="VAL-001: the request is not valid UTF-8 text"):
            await approval.run(half)
        assert (await waiting(approval)).plan_status == "pending"
        for refused_one in (approval.changes(half), approval.reject(why=half), approval.cancel(why=half)):
            with pytest.raises(ApprovalError, match=r"VAL-001: .* is not valid UTF-8 text"):
                await refused_one
        with pytest.raises(ApprovalError, match="VAL-001: the reason is not valid UTF-8 text"):
            await Approval.ask(tmp_path, "cancel", why=half)
        assert (await approval.approve()).plan_status == "completed"


async def test_where_there_is_no_plan_there_is_none_to_show(tmp_path: Path) -> None:
    async with project(planted(tmp_path), Script(intents=((intent(0.1),),))) as approval:
        await approval.run("Hm.")
        assert (await refused(approval.show(), "plan")).reason == "there is no plan"
        assert (await refused(approval.show(2), "plan")).reason == "there is no plan"


async def test_an_empty_request_and_a_command_out_of_place_change_nothing(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        with pytest.raises(ApprovalError, match="VAL-001"):
            await approval.run(" \n")
        for action in (
            "approve",
            "execute",
            "reject",
            "pause",
            "resume",
            "cancel",
            "acknowledge",
            "retry",
            "rollback",
        ):
            await refused(getattr(approval, action)(), "state", "ST-001")
        await refused(approval.changes("x"), "state")
        assert (await approval.status()).run_id == ""
        await waiting(approval)
        await refused(approval.run("Another one."), "state")


# ---- what is kept ----


async def test_only_the_last_requests_are_kept_and_no_run_of_another_graph_is_removed(tmp_path: Path) -> None:
    root = planted(tmp_path)
    (root / ".orchestrator").mkdir()
    async with SqliteJournal(root / ".orchestrator/journal.db") as journal:
        lease = await journal.create("other", "me", {"graph": "llm_loop", "fingerprint": "f", "at": 0.0})
        if waits := journal.append(lease, [Draft("ended", {"outcome": "completed", "reason": "none"})]):
            await waits
        await journal.release(lease)
    async with project(root, limits=ApprovalLimits(keep_plans=3)) as approval:
        for _ in range(6):
            await waiting(approval)
            await approval.reject()
        runs = [head.run_id async for head in approval._session.journal.runs(graph="approval")]
    assert runs == ["approval-0004", "approval-0005", "approval-0006"]
    async with SqliteJournal(root / ".orchestrator/journal.db") as journal:
        assert (await journal.head("other")).status == "ended"
    kept = sorted(file.name for file in (root / ".orchestrator/plan").iterdir())
    assert kept == ["plan-4.v1.json", "plan-5.v1.json", "plan-6.v1.json"]
