"""The commands of the group `approval`. Their bodies are in the package of that name, imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import table
from orchestrator.cli.spread import spread

if TYPE_CHECKING:
    from orchestrator.cli.approval.project import ApprovalOptions

group = typer.Typer(
    help="Show, approve, carry out and undo plans for a folder.",
    rich_markup_mode=None,
)

_EXIT_CODES = (
    "Exit codes: 2 is also a refusal, which changed nothing; 3 a plan that is paused.\n\n\b\n" + table()
)

Project = Annotated[
    Path | None,
    typer.Option("--project", "-C", metavar="DIR", help="The folder that is worked on. Default: this one."),
]
PlanFile = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE", help="The plan, as JSON or TOML: no model is asked.")
]
ApprovalLimit = Annotated[
    tuple[str, ...],
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit of the request, e.g. steps=5; 0 is off."),
]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads it from standard input.")]
Request = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", help="The request; - reads it from standard input.", show_default=False),
]
Confirm = Annotated[
    bool, typer.Option("--confirm", help="Yes to the question that the last submit ended with.")
]
Version = Annotated[
    int | None, typer.Option("--version", metavar="N", help="Another version of the plan than the last.")
]
Steps = Annotated[
    str | None,
    typer.Option("--steps", metavar="1,3", help="Only these steps and those that they need, as a new plan."),
]
PlanDigest = Annotated[
    str | None, typer.Option("--digest", metavar="DIGEST", help="Of the plan you saw; another is refused.")
]
Execute = Annotated[bool, typer.Option("--execute", help="Carry it out at once.")]
Pace = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="Wait so long before each step: time to look, and for Ctrl-C."),
]
Seconds = Annotated[float, typer.Option(metavar="SECONDS", help="Longest wait for an answer; 0 is no limit.")]
Again = Annotated[bool, typer.Option("--again", help="Run a command again that may have run already.")]
Discard = Annotated[
    bool,
    typer.Option("--discard", help="Set an unreadable .orchestrator/ aside and start again."),
]
Reason = Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason; it is stored.")]


@dataclass(frozen=True, kw_only=True)
class ProjectOptions:
    """The project, the actor, and the format of the output."""

    project: Project = None
    by: given.By = None
    json: given.Json = False


@dataclass(frozen=True, kw_only=True)
class PlannerOptions:
    """The planner of a command."""

    plan: PlanFile = None
    model: given.Model = None
    base_url: given.BaseUrl = None
    structured: given.Structured = None
    reasoning_field: given.ReasoningField = None
    params: given.Params = ()


def _options(
    on: ProjectOptions, planner: PlannerOptions | None = None, limit: tuple[str, ...] = (), **more: Any
) -> ApprovalOptions:
    from orchestrator.cli.approval.limit import members_from
    from orchestrator.cli.approval.planner import PlannerChoice
    from orchestrator.cli.approval.project import ApprovalOptions
    from orchestrator.cli.load import params_from

    if planner is not None:
        more["named"] = PlannerChoice(
            plan=planner.plan,
            model=planner.model,
            base_url=planner.base_url,
            structured=planner.structured,
            reasoning_field=planner.reasoning_field,
            params=params_from(planner.params),
        )
    return ApprovalOptions(**vars(on), limits=members_from(limit), **more)


@group.callback()
def approval_group() -> None:
    """Change a folder under the control of a person: a plan is shown, approved, carried out, and can be undone."""


@group.command(epilog=_EXIT_CODES)
@spread
def submit(
    text: Request = None,
    *,
    confirm: Confirm = False,
    planner: PlannerOptions,
    limit: ApprovalLimit = (),
    on: ProjectOptions,
) -> int:
    """Submit a request for which a plan is made.

    The command ends with a plan that waits for your approval, a question, or the reason why there is no plan. Nothing
    is written to the project except .orchestrator/. The planner is stored, so that later commands need not name it.
    """
    from orchestrator.cli.approval.act import submit as body

    return body(_options(on, planner, limit), text, confirm=confirm)


@group.command(epilog=_EXIT_CODES)
@spread
def show(*, version: Version = None, on: ProjectOptions) -> int:
    """Show the plan: goal, steps, files, commands, next actions."""
    from orchestrator.cli.approval.view import show as body

    return body(_options(on), version)


@group.command(epilog=_EXIT_CODES)
@spread
def diff(*, version: Version = None, on: ProjectOptions) -> int:
    """Show the changes that the plan would make, line by line.

    The output has colours on a terminal unless NO_COLOR is set.
    """
    from orchestrator.cli.approval.view import diff as body

    return body(_options(on), version)


@group.command(epilog=_EXIT_CODES)
@spread
def approve(
    *,
    steps: Steps = None,
    digest: PlanDigest = None,
    execute: Execute = False,
    pace: Pace = 0.0,
    on: ProjectOptions,
) -> int:
    """Approve the plan as it was shown, or some of its steps.

    `execute` then carries it out. Some of the steps are a new plan, which is checked and waits for its own approval.
    """
    from orchestrator.cli.approval.act import approve as body

    return body(_options(on, pace=pace), steps=steps, digest=digest, execute=execute)


@group.command(epilog=_EXIT_CODES)
@spread
def reject(*, why: Reason = None, on: ProjectOptions) -> int:
    """Reject the plan: it is discarded."""
    from orchestrator.cli.approval.act import reject as body

    return body(_options(on), why)


@group.command(epilog=_EXIT_CODES)
@spread
def changes(text: Text, *, planner: PlannerOptions, on: ProjectOptions) -> int:
    """Request changes: the planner makes another version."""
    from orchestrator.cli.approval.act import changes as body

    return body(_options(on, planner), text)


@group.command(epilog=_EXIT_CODES)
@spread
def execute(*, pace: Pace = 0.0, on: ProjectOptions) -> int:
    """Carry out the approved plan, step by step.

    Ctrl-C pauses it after the current step.
    """
    from orchestrator.cli.approval.act import execute as body

    return body(_options(on, pace=pace))


@group.command(epilog=_EXIT_CODES)
@spread
def wait(*, seconds: Seconds = 0.0, pace: Pace = 0.0, planner: PlannerOptions, on: ProjectOptions) -> int:
    """Wait for an answer of another process, and carry it out.

    The answer to the plan comes from the console or from `orchestrator runs approve`. An approval executes the plan, a
    request for changes makes another version and waits again. Ctrl-C stops the waiting, and later pauses the plan.
    """
    from orchestrator.cli.approval.act import wait as body

    return body(_options(on, planner, pace=pace), seconds=seconds)


@group.command(epilog=_EXIT_CODES)
@spread
def pause(*, on: ProjectOptions) -> int:
    """Pause a plan in another process, after its current step."""
    from orchestrator.cli.approval.act import pause as body

    return body(_options(on))


@group.command(epilog=_EXIT_CODES)
@spread
def resume(*, again: Again = False, pace: Pace = 0.0, planner: PlannerOptions, on: ProjectOptions) -> int:
    """Resume a paused plan.

    If files were changed in the meantime, the command refuses to resume and names them.
    """
    from orchestrator.cli.approval.act import resume as body

    return body(_options(on, planner, pace=pace), again=again)


@group.command(epilog=_EXIT_CODES)
@spread
def cancel(*, why: Reason = None, on: ProjectOptions) -> int:
    """Cancel the plan and restore every file.

    Files that others have changed in the meantime are kept and named.
    """
    from orchestrator.cli.approval.act import cancel as body

    return body(_options(on), why)


@group.command(epilog=_EXIT_CODES)
@spread
def rollback(*, on: ProjectOptions) -> int:
    """Restore every file after a plan has failed."""
    from orchestrator.cli.approval.act import rollback as body

    return body(_options(on))


@group.command(epilog=_EXIT_CODES)
@spread
def acknowledge(*, discard: Discard = False, on: ProjectOptions) -> int:
    """Confirm an error that was shown; finished steps are kept."""
    from orchestrator.cli.approval.act import acknowledge as body

    return body(_options(on), discard=discard)


@group.command(epilog=_EXIT_CODES)
@spread
def retry(*, planner: PlannerOptions, on: ProjectOptions) -> int:
    """Make a new plan for the request that failed."""
    from orchestrator.cli.approval.act import retry as body

    return body(_options(on, planner))


@group.command(epilog=_EXIT_CODES)
@spread
def status(*, on: ProjectOptions) -> int:
    """Show the state of the project and the next actions.

    After a crash it also shows the recovery.
    """
    from orchestrator.cli.approval.act import status as body

    return body(_options(on))
