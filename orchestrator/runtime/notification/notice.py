"""The open questions of a run, as notices for people, and the marks of delivered ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

from orchestrator.kernel.journal import NOTIFIED, Journal, RunHead
from orchestrator.machines.question import Question
from orchestrator.runtime.service.answer import OpenQuestions, replies


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One question of a run to a person. It has no prompts, arguments or results."""

    id: str
    """Identifies the question: the same for each attempt, channel and process. Receivers drop repeated ids."""
    run_id: str
    agent: str = ""
    machine: str = ""
    state: str = ""
    reason: str = ""
    """Why the run waits: `approval`, `unknown_effect`, `undo_failed`, `input` or `questions`."""
    question: str = ""
    """Key of the call (`pending`), or id of the question."""
    tool: str = ""
    """Tool whose call waits; empty for other questions."""
    digest: str = ""
    """Digest of the call, for the answer."""
    expires_at: float = 0.0
    """Epoch seconds after which no answer counts; 0 means never."""
    tags: Mapping[str, str] = field(default_factory=dict)
    link: str = ""
    """Address where a person answers."""

    @property
    def text(self) -> str:
        """The notice as a sentence for a person."""
        owner = f" of {self.agent}" if self.agent else ""
        what = f"{self.tool} ({self.reason})" if self.tool else f"question {self.question}"
        answer = self.link or f"orchestrator runs show {self.run_id}"
        return f"Run {self.run_id}{owner} waits for a person: {what}. Answer: {answer}"

    def body(self) -> dict[str, Any]:
        """Return the notice as plain data."""
        return asdict(self) | {"tags": dict(self.tags), "text": self.text}


@dataclass(frozen=True, slots=True)
class OpenNotices:
    """The unanswered questions of one run."""

    notices: tuple[Notice, ...]
    delivered: frozenset[str]
    """Ids of the marks (`mark_id`) of the run."""

    @classmethod
    async def read(cls, journal: Journal, head: RunHead, link: str, now: float) -> OpenNotices:
        """Read the questions of a run without an answer in the journal. Raises RunUnknown, Corrupt, StoreDown."""
        found = await OpenQuestions.read(journal, head.run_id, now)
        posted = await journal.inbox(head.run_id)
        marks = frozenset(one.id for one in posted if one.kind == NOTIFIED)
        stored = found.stored
        if stored.ended is not None or any(
            one.kind == "cancel" and one.id not in stored.handled for one in posted
        ):
            return cls((), marks)
        notices = [_of_call(head, one) for one in found.waiting.values() if not 0 < one.expires_at <= now]
        if asked := (stored.parked or {}).get("questions"):
            answered = await replies(journal, stored)
            notices += [_of_question(head, str(one), stored.seq) for one in asked if str(one) not in answered]
        return cls(tuple(_linked(one, link) for one in notices), marks)


def mark_id(notice: Notice, channel: str) -> str:
    """Return the id of the request that marks a notice as delivered by a channel."""
    return f"notified {channel} {notice.id}"


def _of_call(head: RunHead, question: Question) -> Notice:
    return Notice(
        id=_id(head.run_id, question.key, question.digest),
        reason=question.why,
        question=question.key,
        tool=question.tool,
        digest=question.digest,
        expires_at=question.expires_at,
        **_run(head),
    )


def _of_question(head: RunHead, question: str, seq: int) -> Notice:
    """Return the notice about a question about a run's work; it may be asked again in a later state."""
    return Notice(
        id=_id(head.run_id, question, str(seq)), reason=head.reason, question=question, **_run(head)
    )


def _run(head: RunHead) -> dict[str, Any]:
    return {
        "run_id": head.run_id,
        "agent": head.agent,
        "machine": head.graph,
        "state": head.state,
        "tags": head.tags,
    }


def _id(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _linked(notice: Notice, link: str) -> Notice:
    values = {name: quote(getattr(notice, name), safe="") for name in LINK_FIELDS}
    return replace(notice, link=link.format(**values)) if link else notice


LINK_FIELDS = ("id", "run_id", "agent", "question", "digest")
"""Names that a link may contain, in braces."""
