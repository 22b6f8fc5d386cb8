"""What becomes of a stored run that nobody has: in words, and whether anybody has to do something first. Pure.

What people have posted counts as soon as it is posted, though the run has not read it yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.journal.ledger import EffectEntry
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Posted
from orchestrator.machines.llm_loop.model import LoopState
from orchestrator.runtime.service import program_recovery
from orchestrator.runtime.service.inbox import DECISIONS
from orchestrator_callbacks.llm_loop.tool_work import after_crash
from orchestrator_guards import DIGEST_VERSION, Refusal, judge_answer

_SHUTDOWN = "shutdown"
"""Who pauses runs where their process goes down: nobody has to lift that."""

_SAID = {"approve": "approved", "reject": "rejected", "respond": "answered for"}


def plan(stored: StoredRun, unread: Sequence[Posted], state: str, now: float) -> Iterator[str]:
    """Yield what `resume` would do with a run, in order. `now` is epoch seconds, `unread` what was posted for it."""
    if (first := _stands(stored, unread)) is not None:
        yield first
        return
    answers = _answers(stored, unread, now)
    moved = False
    for entry in stored.ledger.waiting:
        if (said := _settled(entry, answers.get(entry.key), now)) is None:
            yield f"waits for a person: {_question(entry)}"
            continue
        yield said
        moved = True
    if stored.state == LoopState.PROCESS_TOOLS and stored.next is None:
        yield from (_recovery(entry) for entry in _unclear(stored))
    elif stored.state == LoopState.AWAIT_LLM and stored.asks_the_model:
        yield "asks the model again; what the lost answer may have cost is charged"
    if not moved:
        yield from _programs(stored)
        yield f"goes on in {state}"


def _programs(stored: StoredRun) -> Iterator[str]:
    """Say what becomes of the programs of an owner that died."""
    for one in stored.programs.values():
        yield f"ends {one.get('name')} if it still runs on {one.get('host')}"


def _stands(stored: StoredRun, unread: Sequence[Posted]) -> str | None:
    """Say what keeps a run from going on at all: somebody cancelled it, or nobody answered its questions."""
    cancel = next((one for one in unread if one.kind == "cancel"), None)
    if cancel is not None:
        return f"ends: {cancel.by or 'somebody'} cancelled it"
    if _asks(stored) and not any(one.kind == "answer" for one in unread):
        return f"waits for a person: {_counted(stored)}"
    if (asked := program_recovery.question(stored)) and not program_recovery.is_answered(stored, unread):
        return f"waits for a person: {asked}"
    return None


def unattended(stored: StoredRun, unread: Sequence[Posted], now: float) -> bool:
    """Tell whether a run goes on, or comes to its question, without anybody doing something first.

    Not so where somebody paused it, or was asked and has not answered: it stands in the journal as it would in
    memory, and can be answered there.
    """
    kinds = {one.kind for one in unread}
    if "cancel" in kinds:
        return True
    if paused(stored):
        return "resume" in kinds
    if _asks(stored):
        return "answer" in kinds
    if program_recovery.question(stored):
        return program_recovery.is_answered(stored, unread)
    if stored.parked is None or not stored.ledger.waiting:
        return True
    late = any(_expired(entry, now) for entry in stored.ledger.waiting)
    return late or bool(_answers(stored, unread, now)) or bool(_unclear(stored))


def _asks(stored: StoredRun) -> bool:
    """Tell whether a run waits for answers to questions about its work; of a call the ledger has them."""
    return stored.parked is not None and stored.parked.get("reason") == "questions"


def _counted(stored: StoredRun) -> str:
    count = len((stored.parked or {}).get("questions") or ())
    return f"{count} question{'' if count == 1 else 's'}"


def paused(stored: StoredRun) -> bool:
    """Tell whether somebody paused a run, and nobody has lifted that."""
    return stored.held is not None and stored.held.get("by") != _SHUTDOWN


def expiry(stored: StoredRun) -> float:
    """Return when the first question of a run expires (epoch seconds); 0 where none does."""
    ends = [float((entry.asked or {}).get("expires_at") or 0.0) for entry in stored.ledger.waiting]
    return min(filter(None, ends), default=0.0)


def _answers(stored: StoredRun, unread: Sequence[Posted], now: float) -> dict[str, Posted]:
    """Return the answer to each question that has one which counts."""
    found: dict[str, Posted] = {}
    for one in unread:
        if one.kind in DECISIONS:
            judged = judge_answer(stored.questions.values(), stored.decided, one.body, now=now)
            if not isinstance(judged, Refusal):
                found.setdefault(judged.key, one)
    return found


def _unclear(stored: StoredRun) -> list[EffectEntry]:
    """Return the calls that were begun, have no result, and nobody is asked about."""
    turn = int(stored.context.get("iteration", 0))
    return [entry for entry in stored.ledger.of_turn(turn) if entry.open and not entry.asked]


def _expired(entry: EffectEntry, now: float) -> bool:
    ends = float((entry.asked or {}).get("expires_at") or 0.0)
    return bool(ends) and now >= ends


def _settled(entry: EffectEntry, answer: Posted | None, now: float) -> str | None:
    """Return what becomes of a call whose question has an answer or has expired; None while it waits."""
    if answer is not None and _outdated(entry):
        return f"asks a person again about {entry.tool} (call {entry.key}): its digest has an older version"
    if answer is not None:
        return f"goes on: {answer.by or 'somebody'} {_SAID[answer.kind]} {entry.tool} (call {entry.key})"
    if _expired(entry, now):
        return f"goes on: nobody answered about {entry.tool} in time (call {entry.key})"
    return None


def _outdated(entry: EffectEntry) -> bool:
    """Whether no answer counts any more: the digest of the question has another version than those of today."""
    return int((entry.asked or {}).get("version", 1)) != DIGEST_VERSION


def _question(entry: EffectEntry) -> str:
    why = (entry.asked or {}).get("why")
    if why == "approval":
        return f"may {entry.tool} run? (call {entry.key})"
    return f"did {entry.tool} happen? (call {entry.key}, {why})"


def _recovery(entry: EffectEntry) -> str:
    match after_crash(entry.effect):
        case "again" if entry.effect == "pure":
            return f"runs {entry.tool} again (pure)"
        case "again":
            return f"runs {entry.tool} again with the same key ({entry.effect})"
        case "undo":
            return f"takes {entry.tool} back and runs it again ({entry.effect})"
        case "ask":
            return f"asks a person about {entry.tool}: it may have happened (irreversible)"
