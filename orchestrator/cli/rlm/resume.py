"""`orchestrator rlm resume`: go on with a run where it stands, as it was started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.address import Address
from orchestrator.cli.output import shown
from orchestrator.cli.pipeline.run import check_output
from orchestrator.cli.rlm.made import Made
from orchestrator.cli.rlm.run import View, conducted
from orchestrator.cli.runs.carrier import refuse_other
from orchestrator.cli.runs.request import Wanted as Request
from orchestrator.cli.runs.request import post
from orchestrator.cli.runs.store import Store, at_journal
from orchestrator.cli.who import who
from orchestrator.errors import ConfigError
from orchestrator.journal.stored import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.machines.code_mode.graph import CODE_MODE
from orchestrator.machines.tools_mode.graph import TOOLS_MODE

GRAPHS = (CODE_MODE.name, TOOLS_MODE.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The command line of `rlm resume`."""

    run: str
    model: str | None = None
    limits: tuple[str, ...] = ()
    again: bool = False
    by: str | None = None
    output: Path | None = None
    log: Path | None = None
    json: bool = False
    journal: Address | None = None


def resume_run(wanted: Wanted) -> int:
    """Go on with a run and return the exit code of its outcome; one that has ended is only told."""
    head, created, stored = at_journal(wanted.journal, lambda store: _found(store, wanted.run))
    output = None if wanted.output is None else wanted.output.absolute()
    check_output(output)
    if head.owner is not None:
        return _held(wanted, head)
    made = _made(head.run_id, created, wanted.model)
    limits = made.limits(wanted.limits, stored)
    view = View(
        run_id=head.run_id,
        journal=wanted.journal.absolute() if isinstance(wanted.journal, Path) else wanted.journal,
        log=None if wanted.log is None else wanted.log.absolute(),
        json=wanted.json,
        output=output,
    )
    options: dict[str, Any] = {
        "limits": limits if wanted.limits else None,
        "by": who(wanted.by),
        "again": wanted.again,
    }
    with made.launch.at_home():
        return conducted(view, made, limits, lambda rlm: rlm.resume(head.run_id, **options))


async def _found(store: Store, name: str) -> tuple[RunHead, Mapping[str, Any], Mapping[str, Any]]:
    """Return a run of a mode, its first record and its limits. Raises ConfigError for any other run."""
    head = await store.run(name)
    refuse_other(store, head, *GRAPHS)
    stored = StoredRun.of(head.run_id, await store.journal.load(head.run_id))
    return head, stored.created, stored.context.get("limits") or {}


def _held(wanted: Wanted, head: RunHead) -> int:
    """Let a run that another process holds go on there, if somebody paused it. Raises ConfigError otherwise."""
    if (head.status, head.reason) != ("parked", "paused") or wanted.limits or wanted.model:
        raise ConfigError(f"run {head.run_id} is held by {shown(str(head.owner))}: it goes on there")
    return post(
        Request(
            kind="resume", run=head.run_id, by=wanted.by, why=None, json=wanted.json, journal=wanted.journal
        )
    )


def _made(run_id: str, created: Mapping[str, Any], model: str | None) -> Made:
    try:
        return Made.of(created, model)
    except ConfigError as error:
        raise ConfigError(f"run {run_id} cannot be resumed like that: {error}") from error
