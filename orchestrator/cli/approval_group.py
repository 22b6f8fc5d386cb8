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
    help="Plan, look, approve, carry out step by step, take back: nothing is written without a yes.",
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
    list[str] | None,
    typer.Option("--limit", metavar="NAME=VALUE", help="A limit of the request, e.g. steps=5; 0 is off."),
]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="What to say; - reads it from standard input.")]
Request = Annotated[
    str | None,
    typer.Argument(
        metavar="TEXT", help="What is wanted; - reads it from standard input.", show_default=False
    ),
]
Confirm = Annotated[
    bool, typer.Option("--confirm", help="Yes to the question that the last submit ended with.")
]
Version = Annotated[
    int | None, typer.Option("--version", metavar="N", help="Another version of the plan than the last.")
]
Steps = Annotated[
    str | None,
    typer.Option("--steps", metavar="1,3", help="Only these, and what they need: a plan of its own."),
]
PlanDigest = Annotated[
    str | None, typer.Option("--digest", metavar="DIGEST", help="Of the plan you saw; another is refused.")
]
Execute = Annotated[bool, typer.Option("--execute", help="Carry it out at once.")]
Pace = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="Wait so long before each step: time to look, and for Ctrl-C."),
]
Again = Annotated[bool, typer.Option("--again", help="Run a command again that may have run already.")]
Discard = Annotated[
    bool,
    typer.Option("--discard", help="Set .orchestrator/ aside where it cannot be read, and begin anew."),
]
Reason = Annotated[str | None, typer.Option("--why", metavar="TEXT", help="Why; it is kept.")]


@dataclass(frozen=True, kw_only=True)
class ProjectOptions:
    """Which project, who asks, and how the end is printed."""

    project: Project = None
    by: given.By = None
    json: given.Json = False


@dataclass(frozen=True, kw_only=True)
class PlannerOptions:
    """Who makes the plan."""

    plan: PlanFile = None
    model: given.Model = None
    base_url: given.BaseUrl = None
    structured: given.Structured = None
    param: given.Param = None


def _options(
    on: ProjectOptions, planner: PlannerOptions | None = None, limit: list[str] | None = None, **more: Any
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
            params=params_from(planner.param or ()),
        )
    return ApprovalOptions(**vars(on), limits=members_from(limit or ()), **more)


@group.callback()
def approval_group() -> None:
    """Work on a folder with a person in control: a plan is shown, approved, carried out, and can be taken back."""


@group.command(epilog=_EXIT_CODES)
@spread
def submit(
    text: Request = None,
    *,
    confirm: Confirm = False,
    planner: PlannerOptions,
    limit: ApprovalLimit = None,
    on: ProjectOptions,
) -> None:
    """Say what is wanted. It ends with a plan that waits for you, a question, or why there is no plan.

    Nothing is written to the project but .orchestrator/. The planner is kept, so that later commands need not name it.
    """
    from orchestrator.cli.approval.act import submit as body

    raise typer.Exit(body(_options(on, planner, limit), text, confirm=confirm))


@group.command(epilog=_EXIT_CODES)
@spread
def show(*, version: Version = None, on: ProjectOptions) -> None:
    """Show the plan: goal, steps, files, commands, and what you can do."""
    from orchestrator.cli.approval.view import show as body

    raise typer.Exit(body(_options(on), version))


@group.command(epilog=_EXIT_CODES)
@spread
def diff(*, version: Version = None, on: ProjectOptions) -> None:
    """Show what the plan would change, line by line; in colour on a terminal, unless NO_COLOR is set."""
    from orchestrator.cli.approval.view import diff as body

    raise typer.Exit(body(_options(on), version))


@group.command(epilog=_EXIT_CODES)
@spread
def approve(
    *,
    steps: Steps = None,
    digest: PlanDigest = None,
    execute: Execute = False,
    pace: Pace = 0.0,
    on: ProjectOptions,
) -> None:
    """Say yes to the plan as it was shown, or to some of its steps. `execute` then carries it out.

    Some of the steps are a plan of its own, checked anew; it waits for its own yes.
    """
    from orchestrator.cli.approval.act import approve as body

    raise typer.Exit(body(_options(on, pace=pace), steps=steps, digest=digest, execute=execute))


@group.command(epilog=_EXIT_CODES)
@spread
def reject(*, why: Reason = None, on: ProjectOptions) -> None:
    """Say no: the plan is discarded."""
    from orchestrator.cli.approval.act import reject as body

    raise typer.Exit(body(_options(on), why))


@group.command(epilog=_EXIT_CODES)
@spread
def changes(text: Text, *, planner: PlannerOptions, on: ProjectOptions) -> None:
    """Say what should be otherwise: the planner makes another version of the plan."""
    from orchestrator.cli.approval.act import changes as body

    raise typer.Exit(body(_options(on, planner), text))


@group.command(epilog=_EXIT_CODES)
@spread
def execute(*, pace: Pace = 0.0, on: ProjectOptions) -> None:
    """Carry out the approved plan, step by step. Ctrl-C pauses after the step that is being made."""
    from orchestrator.cli.approval.act import execute as body

    raise typer.Exit(body(_options(on, pace=pace)))


@group.command(epilog=_EXIT_CODES)
@spread
def pause(*, on: ProjectOptions) -> None:
    """Pause what another process carries out, after the step that is being made."""
    from orchestrator.cli.approval.act import pause as body

    raise typer.Exit(body(_options(on)))


@group.command(epilog=_EXIT_CODES)
@spread
def resume(*, again: Again = False, pace: Pace = 0.0, planner: PlannerOptions, on: ProjectOptions) -> None:
    """Go on with a paused plan. Files that somebody else changed meanwhile keep it from that, and are named."""
    from orchestrator.cli.approval.act import resume as body

    raise typer.Exit(body(_options(on, planner, pace=pace), again=again))


@group.command(epilog=_EXIT_CODES)
@spread
def cancel(*, why: Reason = None, on: ProjectOptions) -> None:
    """Stop, and put every file back as it was. What somebody else changed meanwhile is kept and named."""
    from orchestrator.cli.approval.act import cancel as body

    raise typer.Exit(body(_options(on), why))


@group.command(epilog=_EXIT_CODES)
@spread
def rollback(*, on: ProjectOptions) -> None:
    """Put every file back as it was, after a plan failed half way."""
    from orchestrator.cli.approval.act import rollback as body

    raise typer.Exit(body(_options(on)))


@group.command(epilog=_EXIT_CODES)
@spread
def acknowledge(*, discard: Discard = False, on: ProjectOptions) -> None:
    """Leave everything as it is after an error was shown: what is done stays."""
    from orchestrator.cli.approval.act import acknowledge as body

    raise typer.Exit(body(_options(on), discard=discard))


@group.command(epilog=_EXIT_CODES)
@spread
def retry(*, planner: PlannerOptions, on: ProjectOptions) -> None:
    """Make a new plan for the request that failed."""
    from orchestrator.cli.approval.act import retry as body

    raise typer.Exit(body(_options(on, planner)))


@group.command(epilog=_EXIT_CODES)
@spread
def status(*, on: ProjectOptions) -> None:
    """Say how the project stands, what was recovered after a crash, and what you can do."""
    from orchestrator.cli.approval.act import status as body

    raise typer.Exit(body(_options(on)))
