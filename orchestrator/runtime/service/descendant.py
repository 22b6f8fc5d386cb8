"""The tree of a run: the open questions of its descendants, and the one that an answer to a run above is about.

A question is addressed by the id of the run that asks and the key of its call. Keys such as `1:0` repeat between the
runs of a tree, so an answer through a run above needs the whole digest of the question, which covers run and call.
Every other answer is refused with the names of the runs that wait. The alternative, to take the key if only one run
waits, would give a late answer to the next question of another run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, fields

from orchestrator.errors import AnswerRefused, RunUnknown
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal, Posted, RunHead
from orchestrator.machines.question import Question
from orchestrator.runtime.service.answer import OpenQuestions

_ABOUT_OTHERS = frozenset(("unasked", "several", "stale", "answered", "over"))
"""Kinds of refusals of a run whose answer may be about a descendant."""
_WHOLE = 64
"""Characters of a whole digest."""
_NAMED = 3
"""Most waiting runs that a refusal names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion(Question):
    """An unanswered question of a run or of one of its descendants, as `pending` returns it.

    `run_id` and `key` address it. An answer through a run above needs the whole `digest`, because keys repeat there.
    """

    run_id: str
    """The run that asks."""
    agents: tuple[str, ...] = ()
    """Agents from the run that was read to the run that asks; a run without a named agent has its machine's name."""


async def descendants(
    journal: Journal, root: RunHead, *, ended: bool = False
) -> AsyncIterator[tuple[RunHead, tuple[str, ...]]]:
    """Yield the descendants of a run, each with the agents from the run to it; level by level, oldest first.

    Args:
        journal: The journal of the tree.
        root: The run.
        ended: Whether runs that have ended are yielded, too. Without, nothing below an ended run is read.
    """
    level: list[tuple[RunHead, tuple[str, ...]]] = [(root, (name_of(root),))]
    seen = {root.run_id}
    while level:
        below: list[tuple[RunHead, tuple[str, ...]]] = []
        for parent, agents in level:
            async for head in journal.runs(parent_run_id=parent.run_id):
                if head.run_id not in seen and (ended or head.status != "ended"):
                    seen.add(head.run_id)
                    below.append((head, (*agents, name_of(head))))
                    yield below[-1]
        level = below


async def open_ancestors(journal: Journal, head: RunHead) -> list[RunHead]:
    """Return the runs above a run, its root first.

    There are none if one of them has ended, if the journal does not have it, or if the parents are in a circle, as
    only a damaged journal has them.
    """
    above: list[RunHead] = []
    seen = {head.run_id}
    while head.parent_run_id is not None:
        try:
            head = await journal.head(head.parent_run_id)
        except RunUnknown:
            return []
        if head.status == "ended" or head.run_id in seen:
            return []
        seen.add(head.run_id)
        above.insert(0, head)
    return above


def name_of(head: RunHead) -> str:
    """Return the name of a run's agent; that of its machine if it has no agent with a name."""
    return head.agent or head.graph


async def is_cancelled_with_ancestor(journal: Journal, head: RunHead) -> bool:
    """Return whether a run above has ended or was cancelled, so that no answer to this run has an effect."""
    if head.parent_run_id is None:
        return False
    above = await open_ancestors(journal, head)
    return not above or any([await _is_cancelled(journal, one) for one in above])


async def _is_cancelled(journal: Journal, head: RunHead) -> bool:
    """Return whether an open run has an unread request to stop. Its records are read only if it may have one."""
    if all(one.kind != "cancel" for one in await journal.inbox(head.run_id)):
        return False
    stored = StoredRun.of(head.run_id, await journal.load(head.run_id))
    return any(one.kind == "cancel" for one in await stored.unread(journal))


async def pending_questions(journal: Journal, run_id: str, now: float) -> list[PendingQuestion]:
    """Return the unanswered questions of a run, then those of its descendants.

    A run that has ended or was cancelled has none, and no run below it.

    Raises RunUnknown, Corrupt, StoreDown.
    """
    head = await journal.head(run_id)
    found = await OpenQuestions.read(journal, run_id, now)
    if found.cancelled or await is_cancelled_with_ancestor(journal, head):
        return []
    questions = [_pending(one, run_id, (name_of(head),)) for one in found.waiting.values()]
    cancelled: set[str | None] = set()
    async for below, agents in descendants(journal, head):
        try:
            found = await OpenQuestions.read(journal, below.run_id, now)
        except RunUnknown:  # removed meanwhile
            continue
        if found.cancelled or below.parent_run_id in cancelled:
            cancelled.add(below.run_id)
        else:
            questions += [_pending(one, below.run_id, agents) for one in found.waiting.values()]
    return questions


def _pending(question: Question, run_id: str, agents: tuple[str, ...]) -> PendingQuestion:
    values = {one.name: getattr(question, one.name) for one in fields(Question)}
    return PendingQuestion(run_id=run_id, agents=agents, **values)


async def asking_descendant(
    journal: Journal, run_id: str, answer: Posted, refused: AnswerRefused, now: float
) -> str | None:
    """Return the descendant that an answer which `run_id` has refused is about; None if no descendant waits.

    Raises AnswerRefused, with the runs that wait, for an answer that addresses none of them.
    """
    if refused.kind not in _ABOUT_OTHERS:
        return None
    waiting = [one for one in await pending_questions(journal, run_id, now) if one.run_id != run_id]
    call, digest = answer.body.get("call"), str(answer.body.get("digest") or "").lower()
    for one in waiting:
        if one.digest == digest and call in (None, one.key):
            return one.run_id
    if len(digest) == _WHOLE and (answered := await _answered_descendant(journal, run_id, call, digest, now)):
        return answered
    if not waiting:
        return None
    why = f"{refused.why}; {_named(waiting)}: answer that run, or give the whole digest"
    raise AnswerRefused(run_id, why, kind=refused.kind, earlier=refused.earlier)


async def _answered_descendant(
    journal: Journal, run_id: str, call: str | None, digest: str, now: float
) -> str | None:
    """Return the descendant that has an answer to this question: it decides whether the new one repeats it."""
    async for head, _ in descendants(journal, await journal.head(run_id), ended=True):
        answered = (await OpenQuestions.read(journal, head.run_id, now)).answered
        if any(one.get("digest") == digest and call in (None, key) for key, one in answered.items()):
            return head.run_id
    return None


def _named(questions: list[PendingQuestion]) -> str:
    shown = [
        f"run {one.run_id!r} ({' > '.join(one.agents)}) waits about call {one.key} ({one.tool})"
        for one in questions[:_NAMED]
    ]
    more = len(questions) - _NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
