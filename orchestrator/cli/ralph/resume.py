"""`orchestrator ralph resume`: resume a run as it was started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli.launch import in_folder
from orchestrator.cli.load import actor_name, params_from
from orchestrator.cli.ralph.agents import AgentsFile
from orchestrator.cli.ralph.find import run_named
from orchestrator.cli.ralph.human_input import AnswerSource, read_answers
from orchestrator.cli.ralph.run import RalphViewOptions, RunAgents, conducted
from orchestrator.cli.ralph_group import RalphResumeOptions
from orchestrator.cli.runs.position import owned_elsewhere
from orchestrator.cli.runs.store import at_journal, journal_file
from orchestrator.cli.trust.consent import refuse_untrusted_run
from orchestrator.errors import ConfigError
from orchestrator.machines.ralph.limits import RalphLimits
from orchestrator.settings import build


def resume_run(command_options: RalphResumeOptions) -> int:
    """Resume a run, or read the result of one that has ended; return the exit code of its outcome."""
    found = at_journal(command_options.journal, lambda store: run_named(store, command_options.run))
    run_id, launch = found.head.run_id, found.launch
    if found.head.owner is not None:
        raise owned_elsewhere(found.head)
    refuse_untrusted_run(launch, f"run {run_id}", journal_file(command_options.journal))
    agents = _agents(run_id, launch, command_options.agents)
    answers = read_answers(command_options.answers) if command_options.answers else None
    changes = params_from(command_options.limits)
    limits = build(RalphLimits, {**(found.stored.context.get("limits") or {}), **changes}, "limits")
    view = RalphViewOptions(
        address=journal_file(command_options.journal),
        root=Path(launch.get("root") or ".ralph-sessions"),
        journal=command_options.journal.absolute()
        if isinstance(command_options.journal, Path)
        else command_options.journal,
        run_id=run_id,
        session=found.session,
        agents=tuple(launch.get("agents") or ())
        if command_options.agents is None
        else ("--agents", str(command_options.agents.absolute())),
        log=None if command_options.log is None else command_options.log.absolute(),
        json=command_options.json,
    )
    options: dict[str, Any] = {
        "limits": limits if changes else None,
        "by": actor_name(command_options.by),
        "again": command_options.again,
    }
    with in_folder(launch.get("cwd")):
        staff = RunAgents(agents=agents, answer_source=AnswerSource(answers), limits=limits, launch=launch)
        return conducted(view, staff, lambda ralph: ralph.resume(run_id, **options))


def _agents(run_id: str, launch: Mapping[str, Any], instead: Path | None) -> AgentsFile:
    """Return the agents that a run was started with, or their replacements."""
    if instead is not None:
        return AgentsFile.read(instead)
    kept = launch.get("ralph")
    if not isinstance(kept, Mapping):
        raise ConfigError(
            f"run {run_id} was not started by the command line, so its agents are not known: give --agents FILE"
        )
    given = {
        name: {member: value for member, value in agent.items() if value is not None}
        for name, agent in kept.get("agents", {}).items()
    }
    return AgentsFile.of({**kept, "agents": given}, f"run {run_id}")
