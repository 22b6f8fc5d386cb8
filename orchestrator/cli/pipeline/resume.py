"""`orchestrator pipeline resume`: resume a run as it was started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli import resumption
from orchestrator.cli.launch import in_folder
from orchestrator.cli.load import actor_name, params_from
from orchestrator.cli.pipeline.run import PipelineViewOptions, conducted
from orchestrator.cli.pipeline.spec import PipelineSpec
from orchestrator.cli.pipeline_group import PipelineResumeOptions
from orchestrator.cli.resumption import found
from orchestrator.cli.runs.store import at_journal, journal_file
from orchestrator.cli.trust.consent import refuse_untrusted_run
from orchestrator.errors import ConfigError
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.limits import PipelineLimits
from orchestrator.settings import build


def resume_run(command_options: PipelineResumeOptions) -> int:
    """Resume a run, or read the result of one that has ended; return the exit code of its outcome."""
    head, created, limits, waits = at_journal(
        command_options.journal, lambda store: found(store, command_options.run, PIPELINE.name)
    )
    changes = params_from(command_options.limits)
    view = PipelineViewOptions(
        run_id=head.run_id, address=journal_file(command_options.journal), **resumption.shown(command_options)
    )
    if head.owner is not None:
        return resumption.left_to_owner(command_options, head, changed=command_options.spec is not None)
    if waits and command_options.again and not (command_options.limits or command_options.spec):
        return resumption.posted(command_options, head)
    launch = created.get("launch") or {}
    refuse_untrusted_run(launch, f"run {head.run_id}", journal_file(command_options.journal))
    spec = _spec(head.run_id, launch, command_options.spec)
    most = build(PipelineLimits, {**limits, **changes}, "limits")
    options: dict[str, Any] = {
        "limits": most if changes else None,
        "by": actor_name(command_options.by),
        "again": command_options.again,
    }
    with in_folder(launch.get("cwd")):
        return conducted(view, spec, launch, most, lambda pipeline: pipeline.resume(head.run_id, **options))


def _spec(run_id: str, launch: Mapping[str, Any], instead: Path | None) -> PipelineSpec:
    """Return the spec that a run was started with, or another one: its stages, with the run's own requirements."""
    if instead is not None:
        return PipelineSpec.read(instead)
    kept = launch.get("pipeline")
    if not isinstance(kept, Mapping):
        raise ConfigError(
            f"run {run_id} was not started by the command line, so its stages are not known: give --spec SPEC.toml"
        )
    return PipelineSpec.of(_without_empty(kept), f"run {run_id}")


def _without_empty(kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kept.items() if value is not None}
