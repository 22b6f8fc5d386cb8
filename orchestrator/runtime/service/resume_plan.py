"""The effect of a resumption on a stored run, as text, and whether it needs a person first. Pure.

Posted messages count as soon as they are posted, even if the run has not read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orchestrator.journal.ledger import EffectEntry
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Posted
from orchestrator.machines.question import judge
from orchestrator.runtime.service import program
from orchestrator.runtime.service.answer import DECISIONS, answer_of
from orchestrator_guards import DIGEST_VERSION, Refusal

_SHUTDOWN = "shutdown"
"""Actor of a pause because of a process shutdown, which needs no person to resume."""

_MOVES = frozenset(("answer", "stop"))
"""Messages that let a run continue that asks questions about its work; it reads the others when it continues."""

_SAID = {"approve": "approved", "reject": "rejected", "respond": "answered for"}


def plan(
    stored: StoredRun,
    unread: Sequence[Posted],
    state: str,
    now: float,
    repeated: Iterable[str] = (),
) -> Iterator[str]:
    """Yield the effects of `resume` on a run in order.

    `now` is epoch seconds, `unread` are its unread messages, `repeated` says how its graph repeats interrupted work.
    """
    cancel = next((one for one in unread if one.kind == "cancel"), None)
    if cancel is not None:
        yield f"ends: {cancel.by or 'unknown'} cancelled it"
        return
    if _asks(stored) and not any(one.kind in _MOVES for one in unread):
        count = len((stored.parked or {}).get("questions") or ())
        yield f"waits for a person: {count} question{'' if count == 1 else 's'}"
        return
    if (asked := program.programs_question(stored)) and not program.programs_answered(stored, unread):
        yield f"waits for a person: {asked}"
        return
    answers = _answers(stored, unread, now)
    moved = False
    for entry in stored.ledger.waiting:
        if (said := _settled(entry, answers.get(entry.key), now)) is None:
            why = (entry.asked or {}).get("why")
            text = {"approval": f"may {entry.tool} run?", "input": f"input for {entry.tool}"}.get(str(why))
            about = (
                f"{text} (call {entry.key})"
                if text
                else f"did {entry.tool} happen? (call {entry.key}, {why})"
            )
            yield f"waits for a person: {about}"
            continue
        yield said
        moved = True
    yield from repeated
    if not moved:
        for started in stored.programs.values():  # their owner died
            yield f"ends {started.get('name')} if it still runs on {started.get('host')}"
        yield f"continues in {state}"


def unattended(stored: StoredRun, unread: Sequence[Posted], now: float) -> bool:
    """Return whether a run continues, or reaches its question, without any action of a person.

    A run that was paused, or whose question is unanswered, does not: it waits in the journal in the same way as in
    memory, and can be answered there.
    """
    kinds = {one.kind for one in unread}
    if "cancel" in kinds:
        return True
    if paused(stored):
        return "resume" in kinds
    if _asks(stored):
        return not kinds.isdisjoint(_MOVES)
    if program.programs_question(stored):
        return program.programs_answered(stored, unread)
    if stored.parked is None or not stored.ledger.waiting:
        return True
    late = any(_expired(entry, now) for entry in stored.ledger.waiting)
    return late or bool(_answers(stored, unread, now)) or bool(unclear(stored))


def _asks(stored: StoredRun) -> bool:
    """Return whether a run waits for answers to questions about its work; questions about calls are in the ledger."""
    return stored.parked is not None and stored.parked.get("reason") == "questions"


def paused(stored: StoredRun) -> bool:
    """Return whether a run was paused and not resumed since."""
    return stored.requested is not None and stored.requested.get("by") != _SHUTDOWN


def expiry(stored: StoredRun) -> float:
    """Return when the first question of a run expires (epoch seconds); 0 if none does."""
    ends = [float((entry.asked or {}).get("expires_at") or 0.0) for entry in stored.ledger.waiting]
    return min(filter(None, ends), default=0.0)


def _answers(stored: StoredRun, unread: Sequence[Posted], now: float) -> dict[str, Posted]:
    """Return the valid answer to each answered question."""
    found: dict[str, Posted] = {}
    for one in unread:
        if one.kind in DECISIONS:
            judged = judge(stored.questions.values(), stored.decided, answer_of(one), now=now)
            if not isinstance(judged, Refusal):
                found.setdefault(judged.key, one)
    return found


def unclear(stored: StoredRun) -> list[EffectEntry]:
    """Return the calls that started, have no result, and have no question."""
    turn = int(stored.context.get("iteration", 0))
    return [entry for entry in stored.ledger.of_turn(turn) if entry.open and not entry.asked]


def _expired(entry: EffectEntry, now: float) -> bool:
    ends = float((entry.asked or {}).get("expires_at") or 0.0)
    return bool(ends) and now >= ends


def _settled(entry: EffectEntry, answer: Posted | None, now: float) -> str | None:
    """Return the effect on a call whose question is answered or expired; None while it waits."""
    if answer is not None and int((entry.asked or {}).get("version", 1)) != DIGEST_VERSION:
        return f"asks a person again about {entry.tool} (call {entry.key}): its digest has an older version"
    if answer is not None:
        return f"continues: {answer.by or 'unknown'} {_SAID[answer.kind]} {entry.tool} (call {entry.key})"
    if _expired(entry, now):
        return f"continues: the question about {entry.tool} has expired (call {entry.key})"
    return None
