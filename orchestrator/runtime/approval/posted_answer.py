"""Answers to the plan that another process posted through the journal: `Runs.approve`, `reject`, `request_changes`.

The journal keeps the first valid answer to a plan, so no command of the project may decide differently after it. A
process with the project's folder carries the answer out: `wait`.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.errors import Corrupt
from orchestrator.kernel.journal import Posted
from orchestrator.machines.approval.refusal import GateRefused
from orchestrator.runtime.approval.project_journal import ProjectJournal
from orchestrator.runtime.service.inbox import DECISIONS
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_guards import BlockedGate, Refusal, describe_answer, judge_answer


class PostedAnswers:
    """The posted answers to the plan that waits: each call reads only those that were posted since the last one."""

    def __init__(self, run: ApprovalRun, journal: ProjectJournal) -> None:
        self._run = run
        self._journal = journal
        self._since = 0

    async def next(self, now: float) -> Posted | None:
        """Return the answer that counts, or None. `now` is epoch seconds. Raises StoreDown."""
        posted = await _posted(self._run, self._journal, self._since)
        self._since = max((one.number for one in posted), default=self._since)
        unread = _unread(self._journal, posted)
        return next((one for one in unread if _counts(self._journal, one, now)), None)


async def refuse_late(run: ApprovalRun, journal: ProjectJournal) -> None:
    """Record that answers to a plan that does not wait any more are refused. Raises StoreDown."""
    for posted in _unread(journal, await _posted(run, journal)):
        if not _counts(journal, posted, 0.0):
            note_answer(run, posted, refused=f"the plan does not wait any more: {run.ctx.plan_status}")


async def _posted(run: ApprovalRun, journal: ProjectJournal, since: int = 0) -> list[Posted]:
    try:
        return await journal.inbox(run.run_id, since)
    except Corrupt:  # a missing message was reported when the project was opened: read those after it
        return await journal.inbox(run.run_id, max(since, run.control.inbox))


def _unread(journal: ProjectJournal, posted: Iterable[Posted]) -> list[Posted]:
    handled = journal.projection.stored.handled
    return [one for one in posted if one.kind in DECISIONS and one.id not in handled]


def _counts(journal: ProjectJournal, posted: Posted, now: float) -> bool:
    """Return whether an answer is about the plan that waits in the journal, as every other process reads it."""
    asked = journal.projection.stored.questions.values()
    return not isinstance(judge_answer(asked, {}, posted.body, now=now), Refusal)


def refuse_second(answer: Posted | None) -> None:
    """Raise GateRefused if another process has answered before."""
    if answer is not None:
        said = describe_answer({"by": answer.by, "decision": answer.kind, "at": answer.at})
        reason = f"{said}; the first answer counts"
        raise GateRefused(BlockedGate("state", reason, ("wait",), code="ST-001"))


def note_answer(run: ApprovalRun, answer: Posted, refused: str = "") -> None:
    """Record an answer with its actor and reason, and why it was not carried out."""
    body = {
        "key": str(answer.body.get("call", "")),
        "digest": str(answer.body.get("digest", "")),
        "by": answer.by,
        "why": str(answer.body.get("why") or ""),
        "at": answer.at,
        "id": answer.id,
        "number": answer.number,
    }
    if refused:
        run.note("control", {**body, "kind": answer.kind, "refused": refused})
    else:
        run.note("approval", {**body, "decision": answer.kind})
