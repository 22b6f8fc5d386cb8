"""An evaluation as its own run in the journal: graph `evaluation`, owned while a process works on it.

So it uses the mechanisms of runs: two processes never work on one evaluation, the records of an interrupted one have
every result that was reached, and listings show it. It has no machine: nothing but this module resumes it.

    created     {…, agent, agent_version, tags: {evaluation: name}, evaluation: {selection, agent}}
    result      {at, unit, checked, result}         of one repetition of a case; the last one of a unit counts
    ended       {outcome: "completed", reason: "none", at, units}
                {outcome: "cancelled", reason: "caller", at}        by request, or another one was started in its place

An evaluation that a budget stopped, or whose process ended, is left open; the next call continues it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

from orchestrator.errors import ConfigError, Held
from orchestrator.kernel.journal import (
    RECORD_SCHEMA,
    Draft,
    Journal,
    Lease,
    Record,
    RunHead,
    let_go,
    owner_name,
    write_records,
)
from orchestrator.runtime.evaluation.report import CaseResult, EvaluationReport
from orchestrator.runtime.service.option import new_id

GRAPH: Final = "evaluation"
"""Graph of the runs that represent evaluations."""
TAG: Final = "evaluation"
"""Tag of an evaluation and of the runs of its cases: the name of the evaluation."""
_SEARCHED: Final = 50


@dataclass(frozen=True, slots=True)
class EvaluationIdentity:
    """What makes a call continue an evaluation: the same name, agent and selection of cases."""

    name: str
    agent: str
    agent_version: str
    selection: Mapping[str, Any]

    def conditions(self) -> dict[str, Any]:
        """Return the conditions of a listing of its evaluations, the last one first."""
        return {"graph": GRAPH, "agent": self.agent, "tags": {TAG: self.name}, "descending": True}


@dataclass(slots=True)
class EvaluationLedger:
    """The records of an evaluation that this process owns."""

    run_id: str
    journal: Journal
    now: Callable[[], float]
    """Return the time in epoch seconds."""
    lease: Lease
    known: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Unit -> body of its last result."""

    def earlier(self, unit: str) -> CaseResult | None:
        """Return the recorded result of a unit; None without one."""
        body = self.known.get(unit)
        return None if body is None else CaseResult.from_json(body["result"], earlier=True)

    def checked(self, unit: str) -> str:
        """Return the digest of the expectations that the recorded result was checked with."""
        return str(self.known.get(unit, {}).get("checked", ""))

    async def record(self, unit: str, checked: str, result: CaseResult) -> None:
        """Make a result durable. Raises the errors of the journal."""
        await self._write("result", {"unit": unit, "checked": checked, "result": result.as_json()})

    async def end(self, units: Sequence[str]) -> None:
        """Record that each of these units has a result."""
        await self._write("ended", {"outcome": "completed", "reason": "none", "units": list(units)})

    async def cancel(self) -> None:
        """Record that it ends without a result of each case."""
        await self._write("ended", {"outcome": "cancelled", "reason": "caller"})

    async def is_cancelled(self) -> bool:
        """Return whether a person has asked to cancel it (`orchestrator runs cancel`)."""
        return any(request.kind == "cancel" for request in await self.journal.inbox(self.run_id))

    async def _write(self, kind: str, body: Mapping[str, Any]) -> None:
        await write_records(self.journal, self.lease, Draft(kind, {"at": self.now(), **body}))

    @classmethod
    async def claim(cls, run_id: str, journal: Journal, now: Callable[[], float]) -> Self:
        """Own an open evaluation. Raises ConfigError if another process owns it."""
        try:
            lease = await journal.claim(run_id, owner_name())
        except Held as error:
            raise ConfigError(
                f"another process works on evaluation {run_id!r}: wait for its end, or give this one another name"
            ) from error
        return cls(run_id, journal, now, lease, _results(await journal.load(run_id)))

    @classmethod
    async def create(cls, identity: EvaluationIdentity, journal: Journal, now: Callable[[], float]) -> Self:
        """Start a new evaluation and own it."""
        run_id = f"eval-{new_id()[:12]}"
        body = {
            "schema": RECORD_SCHEMA,
            "graph": GRAPH,
            "fingerprint": "",
            "at": now(),
            "parent_run_id": None,
            "conversation_id": None,
            "agent": identity.agent,
            "agent_version": identity.agent_version,
            "tags": {TAG: identity.name},
            GRAPH: {"selection": identity.selection},
        }
        return cls(run_id, journal, now, await journal.create(run_id, owner_name(), body))


@asynccontextmanager
async def opened(
    identity: EvaluationIdentity, journal: Journal, now: Callable[[], float], *, new: bool
) -> AsyncIterator[EvaluationLedger]:
    """Own the open evaluation of this identity inside the block, or a new one.

    With `new`, or after a request to cancel it, the open one is ended as cancelled. Raises ConfigError if another
    process owns it.
    """
    found = await _open_one(identity, journal)
    ledger = None if found is None else await EvaluationLedger.claim(found, journal, now)
    if ledger is not None and (new or await ledger.is_cancelled()):
        try:
            await ledger.cancel()
        finally:
            await let_go(journal, ledger.lease)
        ledger = None
    ledger = ledger or await EvaluationLedger.create(identity, journal, now)
    try:
        yield ledger
    finally:
        await let_go(journal, ledger.lease)


async def _open_one(identity: EvaluationIdentity, journal: Journal) -> str | None:
    async for head in journal.runs(**identity.conditions(), status="open", limit=_SEARCHED):
        created = (await journal.load(head.run_id))[0].body
        if created[GRAPH]["selection"] == identity.selection:
            return head.run_id
    return None


async def previous(identity: EvaluationIdentity, journal: Journal) -> EvaluationReport | None:
    """Return the last complete evaluation of this name and agent, with any selection; None without one."""
    async for head in journal.runs(**identity.conditions(), outcome="completed", limit=1):
        return await stored_report(head, journal)
    return None


async def stored_report(head: RunHead, journal: Journal) -> EvaluationReport:
    """Return the report of an evaluation of the journal. Raises ConfigError if the run is none."""
    if head.graph != GRAPH:
        raise ConfigError(f"run {head.run_id!r} is no evaluation but a run of {head.graph!r}")
    records = await journal.load(head.run_id)
    ended: Mapping[str, Any] = records[-1].body if records[-1].kind == "ended" else {}
    known = _results(records)
    units = ended.get("units", known)
    return EvaluationReport(
        evaluation_id=head.run_id,
        name=head.tags.get(TAG, ""),
        agent=head.agent,
        agent_version=head.agent_version,
        results=tuple(CaseResult.from_json(body["result"]) for unit, body in known.items() if unit in units),
    )


def _results(records: list[Record]) -> dict[str, Mapping[str, Any]]:
    return {str(record.body["unit"]): record.body for record in records if record.kind == "result"}
