"""What people and other processes may ask of a run: at once where it lives here, through the journal elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Mapping
from typing import Any

from orchestrator.errors import AnswerRefused, ConfigError, JournalError, RunUnknown
from orchestrator.journal.stored import StoredRun
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.kernel.run import Kind, Signal
from orchestrator.machines.llm_loop.model import Question
from orchestrator.ports import Clock
from orchestrator.runtime.conversation import LiveRuns
from orchestrator_callbacks.llm_loop import people
from orchestrator_guards import stale_approval

POLL = 0.15
"""Seconds between two looks at what other processes posted."""

_DECISIONS = ("approve", "reject", "respond")
_KINDS: Mapping[str, Kind] = {
    "cancel": "cancel",
    "pause": "pause",
    "resume": "resume",
    **dict.fromkeys(_DECISIONS, "decision"),
}


class _Done:
    """What an act that was carried out at once returns: may be awaited, need not be."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class Control:
    """The requests to the runs of one agent."""

    def __init__(self, live: LiveRuns, journal: Journal, clock: Clock) -> None:
        self._live = live
        self._journal = journal
        self._clock = clock
        self._listening: asyncio.Task[None] | None = None

    # ---- asking ----

    def stop(self, run_id: str, reason: str, by: str, why: str) -> Awaitable[None]:
        """Ask a run to stop. Raises ConfigError for an unknown reason."""
        if reason not in REASONS[Outcome.CANCELLED]:
            raise ConfigError(
                f"unknown reason {reason!r}; known: {', '.join(sorted(REASONS[Outcome.CANCELLED]))}"
            )
        return self._send(run_id, "cancel", "shutdown" if reason == "shutdown" else by, why)

    def hold(self, run_id: str, by: str, why: str) -> Awaitable[None]:
        """Ask a run to park before its next step."""
        return self._send(run_id, "pause", by, why)

    def go_on(self, run_id: str, by: str) -> None:
        """Let a run that lives here and was paused go on."""
        self._live.get(run_id).mailbox.post(Signal(kind="resume", id=_new_id(), by=by))

    def answer(self, run_id: str, decision: str, by: str, why: str, **members: Any) -> Awaitable[None]:
        """Answer a question about a call. Raises AnswerRefused for one that would not count, at once."""
        answer = {name: value for name, value in members.items() if value is not None} | {
            "decision": decision
        }
        _check_arguments(run_id, answer.get("arguments"))
        run = self._live.find(run_id)
        if run is None:
            return self._post(run_id, decision, by, why, answer)
        refused = people.refusal(run, answer) or _taken(run.mailbox.decided, answer)
        if refused is not None:
            raise AnswerRefused(run_id, refused)
        run.mailbox.post(Signal(kind="decision", id=_new_id(), by=by or _somebody(), why=why, payload=answer))
        return _Done()

    async def pending(self, run_id: str) -> list[Question]:
        """Return what a person is asked about a run now. Raises RunUnknown."""
        run = self._live.find(run_id)
        if run is not None:
            return [question for _, question in sorted(run.ctx.ledger.asked.items())]
        return _questions(StoredRun.of(run_id, await self._journal.load(run_id)))

    def _send(self, run_id: str, kind: Kind, by: str, why: str) -> Awaitable[None]:
        run = self._live.find(run_id)
        if run is None:
            if not self._journal.shared:
                raise RunUnknown(run_id)
            return self._post(run_id, kind, by, why, {})
        run.mailbox.post(Signal(kind=kind, id=_new_id(), by=by or _somebody(), why=why))
        return _Done()

    async def _post(self, run_id: str, kind: str, by: str, why: str, body: Mapping[str, Any]) -> None:
        stored = StoredRun.of(run_id, await self._journal.load(run_id))
        if stored.ended is not None:
            raise AnswerRefused(run_id, f"it has ended as {stored.ended.get('outcome')}")
        if (
            kind in _DECISIONS
        ):  # bound to what is asked now: the run may ask something else when it reads this
            asked = _check_answer(stored, body, self._clock.time())
            body = {"call": asked["key"], "digest": asked["digest"], **body}
        await self._journal.post(run_id, Posted(_new_id(), kind, {**body, "why": why}, by or _somebody()))

    # ---- listening ----

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Within the block, what other processes post to runs that live here reaches them."""
        if self._journal.shared and (self._listening is None or self._listening.done()):
            self._listening = asyncio.create_task(self._listen(), name="orchestrator inbox")
        try:
            yield
        finally:
            task = self._listening
            if task is not None and not len(self._live):
                self._listening = None
                task.cancel()
                await asyncio.wait((task,))

    async def _listen(self) -> None:
        """Look for news until cancelled; a journal that is down is somebody else's news."""
        since = -1
        while True:
            with contextlib.suppress(JournalError):
                since, news = await self._journal.news(since)
                for run_id in news or tuple(self._live):  # at first nobody knows what came before
                    await self.deliver(run_id)
                while True:
                    await asyncio.sleep(POLL)
                    since, news = await self._journal.news(since)
                    for run_id in news:
                        await self.deliver(run_id)
            await asyncio.sleep(POLL)

    async def deliver(self, run_id: str) -> None:
        """Hand a run that lives here what was posted to it since it was last looked at."""
        run = self._live.find(run_id)
        if run is None or run.lease is None:
            return
        with contextlib.suppress(RunUnknown):
            for posted in await self._journal.inbox(run_id, run.inbox):
                run.inbox = max(run.inbox, posted.number)
                signal = signal_of(posted)
                if signal is not None:
                    run.mailbox.post(signal)


def signal_of(posted: Posted) -> Signal | None:
    """Return a request of another process as the run's driver reads it; None for a kind that nobody knows here."""
    why = str(posted.body.get("why") or "")
    payload = {**posted.body, "decision": posted.kind} if posted.kind in _DECISIONS else {}
    kind = _KINDS.get(posted.kind)
    if kind is None:
        return None
    return Signal(kind=kind, id=posted.id, by=posted.by, why=why, payload=payload, number=posted.number)


def _taken(read_soon: Iterable[Signal], answer: Mapping[str, Any]) -> str | None:
    """Say who gave an answer that the run is about to read, if that is about the same call."""
    for signal in read_soon:
        about = {signal.payload.get("call"), answer.get("call")}
        if signal.payload and (len(about) == 1 or None in about):
            return f"{signal.by} answered before ({signal.payload['decision']})"
    return None


def _questions(stored: StoredRun) -> list[Question]:
    calls: list[Any] = next(
        (item["tool_calls"] for item in reversed(stored.messages) if item.get("tool_calls")), []
    )
    found = []
    for entry in stored.ledger.waiting:
        asked = entry.asked or {}
        arguments = asked.get("arguments") or calls[entry.position]["function"]["arguments"]
        found.append(
            Question(
                entry.key, entry.tool, arguments, asked["digest"], asked["why"], asked.get("expires_at", 0.0)
            )
        )
    return found


def _check_answer(stored: StoredRun, answer: Mapping[str, Any], now: float) -> Mapping[str, Any]:
    """Return the question that is answered. Raises AnswerRefused for an answer that would not count."""
    key = answer.get("call")
    asked = [entry.asked or {} for entry in stored.ledger.waiting if key in (None, entry.key)]
    if not asked:
        answered = [one for one in stored.ledger.entries.values() if one.answer and key in (None, one.key)]
        first = answered[-1] if answered else None
        if first is not None and first.answer is not None:
            raise AnswerRefused(
                stored.run_id, f"{first.answer['by']} answered before ({first.answer['decision']})"
            )
        raise AnswerRefused(
            stored.run_id, f"nothing is asked about call {key!r}" if key else "it asks nothing"
        )
    if len(asked) > 1:
        keys = ", ".join(str(one["key"]) for one in asked)
        raise AnswerRefused(stored.run_id, f"several calls wait, name one: {keys}")
    why = stale_approval(
        asked[0]["digest"], answer.get("digest"), now=now, expires_at=asked[0].get("expires_at", 0.0)
    )
    if why is not None:
        raise AnswerRefused(stored.run_id, why)
    return asked[0]


def _check_arguments(run_id: str, arguments: object) -> None:
    if arguments is None:
        return
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else None
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise AnswerRefused(run_id, "edited arguments must be the text of one JSON object")


def _new_id() -> str:
    return secrets.token_hex(8)


def _somebody() -> str:
    """Name whoever runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"
