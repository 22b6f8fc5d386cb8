"""The common parts of the commands that resume a run of one graph: find the run, or ask its owner to resume it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.cli.option import ResumeOptions
from orchestrator.cli.pipeline.run import check_output
from orchestrator.cli.runs.position import owned_elsewhere
from orchestrator.cli.runs.request import post_resume
from orchestrator.cli.runs.run_service import engine_of, refuse_other
from orchestrator.cli.runs.store import OpenStore
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.service import program


def shown(options: ResumeOptions) -> dict[str, Any]:
    """Return the view options of a resumed run, with absolute paths. Raises ConfigError."""
    output = _absolute(options.output)
    check_output(output)
    journal = options.journal.absolute() if isinstance(options.journal, Path) else options.journal
    return {"journal": journal, "log": _absolute(options.log), "json": options.json, "output": output}


def left_to_owner(options: ResumeOptions, head: RunHead, *, changed: bool) -> int:
    """Ask the process that owns a paused run to resume it; return the exit code.

    Raises ConfigError if the run is not paused, or if it should be `changed` or get other limits: the owner cannot do
    that.
    """
    paused = (head.status, head.reason) == ("parked", "paused")
    if not paused or head.lease_expires_in is not None or options.limits or changed:
        raise owned_elsewhere(head)
    return posted(options, head)


def posted(options: ResumeOptions, head: RunHead) -> int:
    """Post the request for the process that owns the run; return the exit code."""
    return post_resume(head.run_id, options.by, options)


class ResumableRun(NamedTuple):
    """A run that is to be resumed."""

    head: RunHead
    created: Mapping[str, Any]
    """Its first record."""
    limits: Mapping[str, Any]
    waits_for_word: bool
    """An engine resumes it as soon as a person confirms that its programs on other hosts have ended."""


async def found(store: OpenStore, name: str, *graphs: str) -> ResumableRun:
    """Return a run of one of these graphs. Raises ConfigError for a run of another graph."""
    head = await store.run(name)
    refuse_other(store, head, *graphs)
    stored = StoredRun.of(head.run_id, await store.journal.load(head.run_id))
    waits = bool(program.programs_question(stored)) and await engine_of(store, head, stored) is not None
    return ResumableRun(head, stored.created, stored.context.get("limits") or {}, waits)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
