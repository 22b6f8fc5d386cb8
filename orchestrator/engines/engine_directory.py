"""Engines seen from other processes, through the journal they share: who lives, how they are, what they are asked."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.engines.registration import ENGINE, STATUS
from orchestrator.errors import ConfigError
from orchestrator.journal.heads import heads
from orchestrator.kernel.journal import Journal, Posted, RunHead

ANSWERS_WITHIN = 2.0
"""Seconds an engine gets to answer: ten times what one that lives and is not blocked needs."""

_POLL = 0.03
ALL = "all"
"""In place of a name: every engine that lives."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine that has not stopped, as far as its records tell."""

    run_id: str
    name: str
    owner: str | None
    """Who it is; None where its process died, or lost its journal."""
    about: Mapping[str, Any]
    """As it was started: host, pid, slots, queue, grace, agents."""
    began: float
    last: int
    """Number of its last record."""

    @property
    def alive(self) -> bool:
        """Its process holds it."""
        return self.owner is not None

    @property
    def left(self) -> str:
        """What its runs wait for, where its process is gone."""
        return (
            "go on with another worker" if self.about.get("placed") else "wait for `orchestrator runs resume`"
        )

    def takes(self, head: RunHead) -> bool:
        """Tell whether it takes up a run that nobody has, once something was posted that lets it go on."""
        if not self.alive or self.about.get("recover") != "resume" or head.reason == "poison":
            return False
        agents = [one for one in (self.about.get("agents") or {}).values() if one.get("graph") == head.graph]
        return len(agents) == 1 and agents[0].get("fingerprint") == head.fingerprint


async def engines(journal: Journal) -> list[EngineInfo]:
    """Return the engines of a journal that have not stopped, oldest first. Those with damaged records are left out."""
    begun, _ = await heads(journal, graph=ENGINE, status="open")  # other commands look for damage
    found = []
    for head in begun:
        about = (await journal.load(head.run_id))[0].body.get(ENGINE) or {}
        name = str(about.get("name", ""))
        found.append(EngineInfo(head.run_id, name, head.owner, about, head.created_at, head.seq))
    return found


def meant(found: list[EngineInfo], name: str | None) -> list[EngineInfo]:
    """Return the engines that an order is for: those of a name, one by its run id, all, or the only one that lives.

    Raises ConfigError where it is not clear, or none lives.
    """
    living = [one for one in found if one.alive]
    if not living:
        left = {one.left for one in found}
        dead = (
            f"; {len(found)} died without stopping, their runs {' or '.join(sorted(left))}" if found else ""
        )
        raise ConfigError(f"no engine lives on this journal{dead}")
    if name == ALL or (name is None and len(living) == 1):
        return living
    known = ", ".join(f"{one.name} ({one.run_id})" for one in living)
    if name is None:
        raise ConfigError(
            f"{len(living)} engines live on this journal; choose with --engine, or `all`: {known}"
        )
    chosen = [one for one in living if name in (one.name, one.run_id)]
    if not chosen:
        raise ConfigError(f"no engine {name!r} lives on this journal; those that do: {known}")
    return chosen


async def ask(
    journal: Journal, engine: EngineInfo, kind: str, body: Mapping[str, Any], by: str
) -> Mapping[str, Any] | None:
    """Post a request to an engine and return the record that answers it; None when none came in time.

    The request stays posted then: an engine that was only blocked carries it out later.
    """
    request = Posted(secrets.token_hex(8), kind, dict(body), by, time.time())
    await journal.post(engine.run_id, request)
    until, since = time.monotonic() + ANSWERS_WITHIN, engine.last + 1
    while time.monotonic() < until:
        news = (await journal.head(engine.run_id)).seq >= since
        for record in await journal.load(engine.run_id, since) if news else ():  # it proves the whole chain
            since = record.seq + 1
            if record.kind in {"control", STATUS} and record.body.get("id") == request.id:
                return record.body
        await asyncio.sleep(_POLL)
    return None
