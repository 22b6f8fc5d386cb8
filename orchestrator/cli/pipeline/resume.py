"""`orchestrator pipeline resume`: go on with a run where it stands, as it was started."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.address import Address
from orchestrator.cli.load import params_from
from orchestrator.cli.output import shown
from orchestrator.cli.pipeline.run import View, check_output, conducted
from orchestrator.cli.pipeline.spec import Spec
from orchestrator.cli.runs.carrier import refuse_other
from orchestrator.cli.runs.request import Wanted as Request
from orchestrator.cli.runs.request import post
from orchestrator.cli.runs.store import Store, at_journal, journal_file
from orchestrator.cli.who import who
from orchestrator.errors import ConfigError
from orchestrator.journal.stored import StoredRun
from orchestrator.kernel.journal import RunHead
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.limits import PipelineLimits
from orchestrator.settings import build


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The command line of `pipeline resume`."""

    run: str
    spec: Path | None = None
    limits: tuple[str, ...] = ()
    again: bool = False
    by: str | None = None
    output: Path | None = None
    log: Path | None = None
    json: bool = False
    journal: Address | None = None


def resume_run(wanted: Wanted) -> int:
    """Go on with a run and return the exit code of its outcome; one that has ended is only told."""
    head, created, limits = at_journal(wanted.journal, lambda store: _found(store, wanted.run))
    changes = params_from(wanted.limits)
    check_output(_absolute(wanted.output))
    if head.owner is not None:
        return _held(wanted, head)
    launch = created.get("launch") or {}
    spec = _spec(head.run_id, launch, wanted.spec)
    most = build(PipelineLimits, {**limits, **changes}, "limits")
    view = View(
        run_id=head.run_id,
        place=journal_file(wanted.journal),
        journal=wanted.journal.absolute() if isinstance(wanted.journal, Path) else wanted.journal,
        log=_absolute(wanted.log),
        json=wanted.json,
        output=_absolute(wanted.output),
    )
    options: dict[str, Any] = {
        "limits": most if changes else None,
        "by": who(wanted.by),
        "again": wanted.again,
    }
    with at_home(launch):
        return conducted(view, spec, launch, most, lambda pipeline: pipeline.resume(head.run_id, **options))


async def _found(store: Store, name: str) -> tuple[RunHead, Mapping[str, Any], Mapping[str, Any]]:
    """Return a run of the pipeline, its first record and its limits. Raises ConfigError for any other run."""
    head = await store.run(name)
    refuse_other(store, head, PIPELINE.name)
    stored = StoredRun.of(head.run_id, await store.journal.load(head.run_id))
    return head, stored.created, stored.context.get("limits") or {}


def _held(wanted: Wanted, head: RunHead) -> int:
    """Let a run that another process holds go on there, if somebody paused it. Raises ConfigError otherwise."""
    if (head.status, head.reason) != ("parked", "paused") or wanted.limits or wanted.spec:
        raise ConfigError(f"run {head.run_id} is held by {shown(str(head.owner))}: it goes on there")
    return post(
        Request(
            kind="resume", run=head.run_id, by=wanted.by, why=None, json=wanted.json, journal=wanted.journal
        )
    )


def _spec(run_id: str, launch: Mapping[str, Any], instead: Path | None) -> Spec:
    """Return the spec that a run was started with, or another one: the stages of that, with the run's own wishes."""
    if instead is not None:
        return Spec.read(instead)
    kept = launch.get("pipeline")
    if not isinstance(kept, Mapping):
        raise ConfigError(
            f"run {run_id} was not started by the command line, so nobody knows its stages: give --spec SPEC.toml"
        )
    return Spec.of(_without_empty(kept), f"run {run_id}")


def _without_empty(kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kept.items() if value is not None}


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def at_home(launch: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Be in the folder that the run was started in. Raises ConfigError when it is gone."""
    folder = launch.get("cwd")
    if not folder:
        return contextlib.nullcontext()
    if not Path(folder).is_dir():
        raise ConfigError(f"the folder {folder} that the run was started in is gone: make it again")
    return contextlib.chdir(folder)
