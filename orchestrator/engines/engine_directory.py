"""Engines seen from other processes through their shared journal: liveness, description and operator requests."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.engines.registration import STATUS
from orchestrator.errors import ConfigError
from orchestrator.journal.difference import heads
from orchestrator.kernel.journal import ENGINE, Journal, Posted, RunHead

ANSWERS_WITHIN = 2.0
"""Seconds to wait for an answer: ten times the time that a live, unblocked engine needs."""

_POLL = 0.03
ALL = "all"
"""Name that stands for every live engine."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine that has not stopped according to its records."""

    run_id: str
    name: str
    owner: str | None
    """Process that holds its run; None if the process died or lost its journal."""
    about: Mapping[str, Any]
    """Its start parameters: host, pid, slots, queue, grace, agents."""
    began: float
    last: int
    """Number of its last record."""

    @property
    def alive(self) -> bool:
        """Whether a process holds its run."""
        return self.owner is not None

    @property
    def left(self) -> str:
        """How its runs continue after its process has died, as the end of a sentence."""
        return (
            "are resumed by another worker"
            if self.about.get("placed")
            else "wait for `orchestrator runs resume`"
        )

    def takes(self, head: RunHead) -> bool:
        """Return whether the engine resumes this orphaned run when a posted message allows it to continue."""
        return head.reason != "poison" and self.fits(head, head.fingerprint)

    def fits(self, head: RunHead, fingerprint: str) -> bool:
        """Return whether the engine lives, resumes runs, and has the agent of a run with this version of its graph."""
        if not self.alive or self.about.get("recover") != "resume":
            return False
        agents: Mapping[str, Mapping[str, Any]] = self.about.get("agents") or {}
        have = [(one.get("graph"), one.get("agent", ""), one.get("fingerprint")) for one in agents.values()]
        return (head.graph, head.agent, fingerprint) in have


async def engines(journal: Journal) -> list[EngineInfo]:
    """Return the engines that have not stopped, oldest first. Engines with damaged records are left out."""
    begun, _ = await heads(journal, graph=ENGINE, status="open")  # other commands report damage
    found = []
    for head in begun:
        about = (await journal.load(head.run_id))[0].body.get(ENGINE) or {}
        name = str(about.get("name", ""))
        found.append(EngineInfo(head.run_id, name, head.owner, about, head.created_at, head.seq))
    return found


def meant(found: list[EngineInfo], name: str | None) -> list[EngineInfo]:
    """Return the engines that a command is for: by name, by run id, all, or the only live one.

    Raises ConfigError if the choice is ambiguous, the name is unknown, or no engine lives.
    """
    living = [one for one in found if one.alive]
    if not living:
        left = {one.left for one in found}
        dead = (
            f"; {len(found)} died without stopping, their runs {' or '.join(sorted(left))}" if found else ""
        )
        raise ConfigError(f"no engine runs on this journal{dead}")
    if name == ALL or (name is None and len(living) == 1):
        return living
    known = ", ".join(f"{one.name} ({one.run_id})" for one in living)
    if name is None:
        raise ConfigError(
            f"{len(living)} engines run on this journal; choose with --engine, or `all`: {known}"
        )
    chosen = [one for one in living if name in (one.name, one.run_id)]
    if not chosen:
        raise ConfigError(f"no engine {name!r} runs on this journal; running engines: {known}")
    return chosen


async def ask(
    journal: Journal, engine: EngineInfo, kind: str, body: Mapping[str, Any], by: str
) -> Mapping[str, Any] | None:
    """Post a request to an engine and return the record that answers it; None if no answer arrives in time.

    An unanswered request stays posted: an engine that was only blocked carries it out later.
    """
    request = Posted(secrets.token_hex(8), kind, dict(body), by, time.time())
    await journal.post(engine.run_id, request)
    until, since = time.monotonic() + ANSWERS_WITHIN, engine.last + 1
    while time.monotonic() < until:
        news = (await journal.head(engine.run_id)).seq >= since
        for record in await journal.load(engine.run_id, since) if news else ():  # verifies all
            since = record.seq + 1
            if record.kind in {"control", STATUS} and record.body.get("id") == request.id:
                return record.body
        await asyncio.sleep(_POLL)
    return None
