"""The common parts of the commands that resume a run of one graph: find the run, or ask its owner to resume it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.cli import option as given
from orchestrator.cli.runs.request import post_resume
from orchestrator.cli.runs.run_service import engine_of, refuse_other
from orchestrator.cli.runs.store import OpenStore, owned_elsewhere
from orchestrator.errors import ConfigError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.service import program


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(given.DisplayOptions):
    """How a run of one graph is resumed."""

    run: given.RunId
    limits: given.Limits = ()
    again: bool = False
    take_over: given.TakeOver = False
    by: given.By = None
    output: given.Output = None


def check_output(file: Path | None) -> None:
    """Raise ConfigError for a file that could not be written at the end of the run."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise ConfigError(f"--output {file}: there is no folder {file.parent}")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"--output {file} cannot be written")


def shown(options: ResumeOptions) -> dict[str, Any]:
    """Return the view options of a resumed run, with absolute paths. Raises ConfigError."""
    paths = {"journal": options.journal, "log": options.log, "output": options.output}
    view: dict[str, Any] = {
        name: path.absolute() if isinstance(path, Path) else path for name, path in paths.items()
    }
    check_output(view["output"])
    return {**view, "json": options.json}


def left_to_owner(options: ResumeOptions, head: RunHead, *, changed: bool) -> int:
    """Ask the process that owns a paused run to resume it; return the exit code.

    Raises ConfigError if the run is not paused, or if it should be `changed` or get other limits: the owner cannot do
    that.
    """
    paused = (head.status, head.reason) == ("parked", "paused")
    if not paused or head.lease_expires_in is not None or options.limits or changed:
        raise owned_elsewhere(head)
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
