"""Answers to a plan through the journal: another process answers, a process with the folder carries the answer out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Runs, SqliteJournal
from orchestrator.errors import AnswerRefused
from orchestrator.journal.stored_run import plan_question
from orchestrator.kernel.journal import Posted
from orchestrator.llm.port import SystemClock
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.plan import FileChange, PlanDraft, PlanStep, StepKind
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.plan_file import PlanReview
from orchestrator.runtime.approval.project_journal import ProjectJournal
from tests.runtime.approval.stand import DONE, DRAFT, FILES, Script, contents, planted, project, refused

NOTE = PlanDraft(
    goal="A note",
    steps=(
        PlanStep(id="1", kind=StepKind.CREATE, files=(FileChange(path="note.txt", content="Be kind.\n"),)),
        PlanStep(id="2", kind=StepKind.RUN, argv=("ls", "a b"), depends_on=("1",)),
    ),
)
RUN = "approval-0001"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return planted(tmp_path)


@asynccontextmanager
async def elsewhere(root: Path) -> AsyncIterator[Runs]:
    """Open the journal as another process does, without the project's lock."""
    async with SqliteJournal(root / ".orchestrator" / "journal.db") as journal:
        yield Runs(journal)


def opened(root: Path, planner: Any = None, **options: Any) -> Any:
    return project(root, planner, clock=SystemClock(), **options)


async def submitted(root: Path, *drafts: PlanDraft) -> None:
    async with opened(root, Script(drafts)) as approval:
        assert (await approval.run("Please tidy up.")).state == "AwaitingApproval"


async def test_a_plan_that_waits_is_a_question_whose_digest_covers_the_whole_plan(root: Path) -> None:
    await submitted(root, DRAFT)
    async with elsewhere(root) as runs:
        [head] = await runs.list(waiting=True)
        [question] = await runs.pending(RUN)
        details = await runs.get(RUN)
    plan = (await Approval.look(root)).plan
    assert (head.run_id, head.waiting, head.state) == (RUN, "plan", "AwaitingApproval")
    assert plan is not None
    assert (question.key, question.why, question.digest) == ("plan-1.1", "plan", plan.digest)
    assert question.effect == "compensable"
    [stored] = details.questions
    assert asdict(question) == asdict(stored) | {"run_id": RUN, "agents": ("approval",)}
    changed = {**details.story.context, "plan": {**details.story.context["plan"], "goal": "Something else"}}
    other = plan_question("AwaitingApproval", changed)
    assert other is not None
    assert other.digest != question.digest


async def test_an_approval_of_another_process_is_carried_out_with_its_actor_and_reason(root: Path) -> None:
    await submitted(root, DRAFT)
    async with opened(root) as approval:
        waiting = asyncio.create_task(approval.wait())
        async with elsewhere(root) as runs:
            [question] = await runs.pending(RUN)
            await runs.approve(RUN, question.key, digest=question.digest, by="bob", why="looks right")
            status = await waiting
            story = (await runs.get(RUN)).story
    assert (status.state, status.plan_status) == ("Idle", "completed")
    assert contents(root) == DONE
    [(kind, body)] = story.decisions
    assert (kind, body["decision"], body["by"], body["why"]) == ("approval", "approve", "bob", "looks right")
    assert body["digest"] == question.digest
    assert story.context["consent"]["by"] == "bob"


async def test_an_answer_waits_in_the_journal_for_the_next_process_with_the_folder(root: Path) -> None:
    await submitted(root, DRAFT)
    async with elsewhere(root) as runs:
        await runs.reject(RUN, by="bob", why="not now")
        assert await runs.pending(RUN) == []
    assert contents(root) == FILES
    async with opened(root) as approval:
        status = await approval.wait()
        assert (status.state, status.plan_status) == ("Idle", "rejected")
        await refused(approval.wait(), "state")
    async with elsewhere(root) as runs:
        assert (await runs.get(RUN)).unread == []
        assert (await runs.head(RUN)).waiting == ""
    assert contents(root) == FILES


async def test_requested_changes_make_a_version_that_is_reviewed_against_the_one_before(root: Path) -> None:
    await submitted(root, DRAFT)
    planner = Script((NOTE,))
    async with opened(root, planner) as approval:
        waiting = asyncio.create_task(approval.wait())
        async with elsewhere(root) as runs:
            await runs.request_changes(RUN, "Only a note, please.", "plan-1.1", by="bob")
            while not (pending := await runs.pending(RUN)):  # noqa: ASYNC110 - another process would poll too
                await asyncio.sleep(0.02)
            assert [question.key for question in pending] == ["plan-1.2"]
            assert pending[0].effect == "irreversible", "a command cannot be undone"
            review = PlanReview.of((await runs.get(RUN)).story.context)
            await runs.reject(RUN, by="bob")
            assert (await waiting).plan_status == "rejected"
    assert planner.requests[0].changes == "Only a note, please."
    assert (review.label, review.previous) == ("plan-1 version 2", "plan-1 version 1")
    assert "-goal: Tidy up\n+goal: A note\n" in review.difference
    assert "+$ ls 'a b'\n" in review.difference
    assert review.steps[0].files[0].text.endswith("+Be kind.\n")
    assert review.steps[1].facts == ("at most 300 s", "a command cannot be undone", "after step 1")


async def test_the_first_answer_counts_in_each_process(root: Path) -> None:
    await submitted(root, DRAFT)
    async with elsewhere(root) as runs, opened(root) as approval:
        await approval.show()
        await runs.reject(RUN, by="bob")
        assert (await runs.reject(RUN, by="bob")).repeated
        with pytest.raises(AnswerRefused, match="bob answered before"):
            await runs.approve(RUN, by="eve")
        for second in (approval.approve(), approval.changes("More."), approval.reject(), approval.cancel()):
            blocked = await refused(second, "state")
            assert "bob answered before (reject" in blocked.reason
        assert (await approval.wait()).plan_status == "rejected"
    assert contents(root) == FILES


async def test_a_wait_reads_each_posted_answer_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await submitted(root, DRAFT)
    async with elsewhere(root) as runs:
        await runs.request_changes(RUN, "Less.", by="bob")
    reads: list[list[str]] = []
    inbox = ProjectJournal.inbox

    async def noted(journal: ProjectJournal, run_id: str, since: int = 0) -> list[Posted]:
        found = await inbox(journal, run_id, since)
        reads.append([one.kind for one in found])
        return found

    monkeypatch.setattr(ProjectJournal, "inbox", noted)
    async with opened(root, Script((NOTE,))) as approval:
        waiting = asyncio.create_task(approval.wait())
        while (await Approval.look(root)).versions[-1] != ("plan-1", 2):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)
        reads.clear()
        while len(reads) < 40 and not (len(reads) >= 5 and not any(reads[-5:])):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)
        approval.ask_cancel()
        await waiting
    assert not any(reads[-5:]), "a wait reads the answers that were posted before it again and again"


async def test_an_answer_that_does_not_fit_a_plan_is_refused_before_it_is_posted(root: Path) -> None:
    await submitted(root, DRAFT)
    async with elsewhere(root) as runs:
        for answer, why in (
            (runs.respond(RUN, "done", by="bob"), "a plan has no result"),
            (runs.approve(RUN, arguments="{}", by="bob"), "approved as it is"),
            (runs.approve(RUN, digest="0" * 64, by="bob"), "it is about other arguments"),
            (runs.reject(RUN, end=True, by="bob"), "leave `end` out"),
            (runs.request_changes(RUN, " ", by="bob"), "the changes are empty"),
            (runs.approve(RUN, "plan-1.2", by="bob"), "no question is open"),
        ):
            with pytest.raises(AnswerRefused, match=why):
                await answer
        assert await runs.journal.inbox(RUN) == []


async def test_the_wait_ends_when_it_is_stopped_or_takes_too_long_and_the_plan_still_waits(
    root: Path,
) -> None:
    await submitted(root, DRAFT)
    async with opened(root) as approval:
        with pytest.raises(TimeoutError):
            await approval.wait(seconds=0.01)
        waiting = asyncio.create_task(approval.wait())
        await asyncio.sleep(0)
        approval.ask_pause()
        assert (await waiting).state == "AwaitingApproval"
        await approval.show()
        await approval.approve(start=False)
        await refused(approval.wait(), "plan")


async def test_an_approval_that_comes_after_the_project_changed_is_refused_in_the_journal_too(
    root: Path,
) -> None:
    await submitted(root, DRAFT)
    async with elsewhere(root) as runs:
        await runs.approve(RUN, by="bob")
    (root / "old.txt").write_text("another text\n")
    async with opened(root) as approval:
        assert approval.recovered is not None
        await refused(approval.wait(), "state")
    async with elsewhere(root) as runs:
        details = await runs.get(RUN)
    assert details.unread == []
    assert [*details.story.refused.values()] == ["the plan does not wait any more: expired"]
    assert (root / "old.txt").read_text() == "another text\n"


async def test_requested_changes_need_a_planner_and_a_plan_that_expires_ends_the_wait(root: Path) -> None:
    await submitted(root, DRAFT)
    async with elsewhere(root) as runs:
        await runs.request_changes(RUN, "Less.", by="bob")
    async with Approval(root, observers=()) as approval:
        blocked = await refused(approval.wait(), "state")
        assert "no planner" in blocked.reason
    async with opened(root, Script((NOTE,))) as approval:
        waiting = asyncio.create_task(approval.wait())
        while (await Approval.look(root)).versions[-1] != ("plan-1", 2):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)
        approval.ask_cancel()
        assert (await waiting).state == "AwaitingApproval"
    limits = replace(ApprovalLimits(), expiry_seconds=0.2)
    async with opened(root, limits=limits) as approval:
        await approval.reject()
        await approval.run("Please tidy up.")
        await refused(approval.wait(), "plan", "ST-004")
