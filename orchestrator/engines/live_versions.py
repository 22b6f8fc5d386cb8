"""The versions of agents that live engines have, by the engines' own records in the journal.

While two versions of an agent are live, a run continues on a process with the version of its graph. Only when no live
engine has it, another one may migrate the run, or park it as `other_graph` until a migration is registered.
"""

from __future__ import annotations

from typing import Final

from orchestrator.engines.engine_directory import EngineInfo, engines
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.llm.port import Clock
from orchestrator.runtime.service.hosting import Hosting
from orchestrator.runtime.service.recovery import OpenRun

_REREAD: Final = 1.0
"""Seconds for which the engines of a journal are not read again."""


class LiveVersions:
    """Answers whether a live engine of a journal resumes runs with a version of a graph."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._read_at = float("-inf")
        self._found: list[EngineInfo] = []

    async def has(self, head: RunHead, fingerprint: str, *, but: str = "") -> bool:
        """Return whether a live engine, other than the engine `but`, has this agent with this version of its graph."""
        if self._clock.monotonic() - self._read_at >= _REREAD:
            self._found = await engines(self._journal)
            self._read_at = self._clock.monotonic()
        return any(one.run_id != but and one.fits(head, fingerprint) for one in self._found)

    async def fits(self, host: Hosting, head: RunHead) -> bool:
        """Return whether an agent may continue a run of its name: it has the graph, or it is to migrate the run."""
        if host.fingerprint == head.fingerprint:
            return True
        run: OpenRun = await host.described(head)
        if (
            run.fingerprint == host.fingerprint
        ):  # a row of an older format keeps the version before a migration
            return True
        return run.migrates and not await self.has(head, run.fingerprint)
