"""`orchestrator rlm resume`: resume a run as it was started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.cli import resumption
from orchestrator.cli.launch import in_folder
from orchestrator.cli.load import actor_name
from orchestrator.cli.resumption import found
from orchestrator.cli.rlm.agent_spec import RlmSpec
from orchestrator.cli.rlm.run import RlmViewOptions, conducted
from orchestrator.cli.rlm_group import RlmResumeOptions
from orchestrator.cli.runs.store import at_journal, journal_file
from orchestrator.cli.trust.consent import refuse_untrusted_run
from orchestrator.errors import ConfigError
from orchestrator.machines.code_mode.graph import CODE_MODE
from orchestrator.machines.tools_mode.graph import TOOLS_MODE

GRAPHS = (CODE_MODE.name, TOOLS_MODE.name)


def resume_run(command_options: RlmResumeOptions) -> int:
    """Resume a run, or read the result of one that has ended; return the exit code of its outcome."""
    head, created, stored, _ = at_journal(
        command_options.journal, lambda store: found(store, command_options.run, *GRAPHS)
    )
    view = RlmViewOptions(run_id=head.run_id, **resumption.shown(command_options))
    if head.owner is not None:
        return resumption.left_to_owner(command_options, head, changed=bool(command_options.model))
    refuse_untrusted_run(created.get("launch"), f"run {head.run_id}", journal_file(command_options.journal))
    made = _made(head.run_id, created, command_options.model)
    limits = made.limits(command_options.limits, stored)
    options: dict[str, Any] = {
        "limits": limits if command_options.limits else None,
        "by": actor_name(command_options.by),
        "again": command_options.again,
    }
    with in_folder(made.launch.cwd):
        return conducted(view, made, limits, lambda rlm: rlm.resume(head.run_id, **options))


def _made(run_id: str, created: Mapping[str, Any], model: str | None) -> RlmSpec:
    try:
        return RlmSpec.of(created, model)
    except ConfigError as error:
        raise ConfigError(f"run {run_id} cannot be resumed like that: {error}") from error
