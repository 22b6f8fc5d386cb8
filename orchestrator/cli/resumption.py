"""What the commands that go on with a run of one graph have in common: their options, and how they find the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.cli.pipeline.run import check_output
from orchestrator.cli.runs.position import owned_elsewhere
from orchestrator.cli.runs.request import RequestOptions as Request
from orchestrator.cli.runs.request import post
from orchestrator.cli.runs.run_service import engine_of, refuse_other
from orchestrator.cli.runs.store import OpenStore
from orchestrator.journal.address import Address
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.service import program_recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeOptions:
    """The command line of `resume`, without what only one graph has."""

    run: str
    limits: tuple[str, ...] = ()
    again: bool = False
    by: str | None = None
    output: Path | None = None
    log: Path | None = None
    json: bool = False
    journal: Address | None = None

    def shown(self) -> dict[str, Any]:
        """Return what a View of the run takes of it, from wherever it is looked at. Raises ConfigError."""
        output = _absolute(self.output)
        check_output(output)
        journal = self.journal.absolute() if isinstance(self.journal, Path) else self.journal
        return {"journal": journal, "log": _absolute(self.log), "json": self.json, "output": output}

    def left_to_owner(self, head: RunHead, *, changed: bool) -> int:
        """Let a run that another process holds go on there, if somebody paused it; return the exit code.

        Raises ConfigError otherwise, and where it is to be `changed`, or have other limits, which cannot be done there.
        """
        paused = (head.status, head.reason) == ("parked", "paused")
        if not paused or head.lease_expires_in is not None or self.limits or changed:
            raise owned_elsewhere(head)
        return self.posted(head)

    def posted(self, head: RunHead) -> int:
        """Leave the request for whichever process carries the run; return the exit code."""
        return post(
            Request(
                kind="resume", run=head.run_id, by=self.by, why=None, json=self.json, journal=self.journal
            )
        )


class ResumableRun(NamedTuple):
    """A run that is to be resumed."""

    head: RunHead
    created: Mapping[str, Any]
    """Its first record."""
    limits: Mapping[str, Any]
    waits_for_word: bool
    """An engine resumes it as soon as a person says that its programs on other hosts have ended."""


async def found(store: OpenStore, name: str, *graphs: str) -> ResumableRun:
    """Return a run of one of these graphs. Raises ConfigError for one of another."""
    head = await store.run(name)
    refuse_other(store, head, *graphs)
    stored = StoredRun.of(head.run_id, await store.journal.load(head.run_id))
    waits = bool(program_recovery.question(stored)) and await engine_of(store, head, stored) is not None
    return ResumableRun(head, stored.created, stored.context.get("limits") or {}, waits)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
