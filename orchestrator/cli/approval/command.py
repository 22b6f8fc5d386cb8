"""The commands of the group: each is one call of `Approval`, and the output of its result."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.approval import difference
from orchestrator.cli.approval import status as status_view
from orchestrator.cli.approval.project import Command, PlannerOptions, ProjectOptions, limits_of, run_command
from orchestrator.cli.load import actor_name, decoded_text
from orchestrator.cli.output import coloured, complain, say, visible
from orchestrator.cli.spread import spread
from orchestrator.errors import ConfigError
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import Status
from orchestrator.runtime.approval.workspace import FileDiff, preview

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
    if confirm and text:
        raise ConfigError(
            "--confirm accepts the interpreted request: give it without TEXT, or submit TEXT without it"
        )
    said = "" if confirm else _read(text)
    command = Command(
        work=lambda one: one.confirm() if confirm else one.run(said), planner="needed", anew=not confirm
    )
    return run_command(on, command, planner=planner, limits=limit)


@spread
def show(*, version: Version = None, on: ProjectOptions) -> int:
    """Show the plan: goal, steps, files, commands, next actions."""

    async def work(one: Approval) -> Status:
        return await one.status() if version is None else await one.show(version)

    def print_status(found: Status) -> None:
        # It does not count as a view of the changes: `diff` does.
        for line in difference.plan_lines(found):
            say(line)
        for line in status_view.action_lines(found.actions, on.given):
            say(line)

    return run_command(on, Command(work=work, elsewhere=Approval.look, show=print_status))


@spread
def diff(*, version: Version = None, on: ProjectOptions) -> int:
    """Show the changes that the plan would make, line by line.

    The output has colours on a terminal unless NO_COLOR is set.
    """
    root = on.root
    files: tuple[FileDiff, ...] = ()

    async def look(found: Status) -> Status:
        nonlocal files
        limits = limits_of(found.launch.get("limits") or {})
        files = await preview(difference.the_plan(found), root, limits.caps, limits.file_seconds)
        return found

    async def work(one: Approval) -> Status:
        return await look(await one.show(version))

    async def elsewhere(root: Path) -> Status:
        return await look(await Approval.look(root))

    def print_status(found: Status) -> None:
        plan = difference.the_plan(found)
        say(f"plan {visible(plan.id)} version {plan.version}: {status_view.one_line(plan.goal)}")
        titles = {step.id: step.title for step in plan.steps}
        for line in difference.lines(files, titles, colour=coloured()):
            say(line)
        say(f"digest {plan.digest}")

    def data(found: Status) -> dict[str, Any]:
        plan = difference.the_plan(found)
        changes = [difference.plain(one) for one in files]
        return {"plan_id": plan.id, "version": plan.version, "digest": plan.digest, "files": changes}

    return run_command(on, Command(work=work, elsewhere=elsewhere, show=print_status, data=data))


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
    names: tuple[str, ...] | None = None
    if steps is not None:
        names = tuple(one.strip() for one in steps.split(","))
        if not all(names):
            raise ConfigError(
                f"--steps {steps!r} is not valid: give step names separated by commas, as in 1,3,4"
            )
        if len(set(names)) < len(names):
            raise ConfigError(f"--steps {steps!r} names a step twice")
    command = Command(
        work=lambda one: one.approve(steps=names, digest=digest, start=execute),
        on_signal="pause",
        judge=status_view.execution_code if execute else status_view.code,
    )
    return run_command(on, command, pace=pace)


@spread
def reject(*, why: Reason = None, on: ProjectOptions) -> int:
    """Reject the plan: it is discarded."""
    return run_command(on, Command(work=lambda one: one.reject(why=why or "")))


@spread
def changes(text: Text, *, planner: PlannerOptions, on: ProjectOptions) -> int:
    """Request changes: the planner makes another version."""
    said = _read(text)
    return run_command(on, Command(work=lambda one: one.changes(said), planner="needed"), planner=planner)


@spread
def execute(*, pace: Pace = 0.0, on: ProjectOptions) -> int:
    """Carry out the approved plan, step by step.

    Ctrl-C pauses it after the current step.
    """
    command = Command(work=lambda one: one.execute(), on_signal="pause", judge=status_view.execution_code)
    return run_command(on, command, pace=pace)


@spread
def wait(*, seconds: Seconds = 0.0, pace: Pace = 0.0, planner: PlannerOptions, on: ProjectOptions) -> int:
    """Wait for an answer of another process, and carry it out.

    The answer to the plan comes from the console or from `orchestrator runs approve`. An approval executes the plan, a
    request for changes makes another version and waits again. Ctrl-C stops the waiting, and later pauses the plan.
    """
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"--seconds {seconds:g} is not valid: give the longest wait, 0 for no limit")

    async def work(approval: Approval) -> Status:
        try:
            return await approval.wait(seconds=seconds)
        except TimeoutError:
            complain(f"no answer came within {seconds:g} s; the plan still waits")
            return await approval.status()

    command = Command(work=work, planner="wanted", on_signal="pause", judge=status_view.execution_code)
    return run_command(on, command, planner=planner, pace=pace)


@spread
def pause(*, on: ProjectOptions) -> int:
    """Pause a plan in another process, after its current step."""
    return _ask(on, "pause", None, lambda one: one.pause(), "it pauses after the current step")


@spread
def resume(*, again: Again = False, pace: Pace = 0.0, planner: PlannerOptions, on: ProjectOptions) -> int:
    """Resume a paused plan.

    If files were changed in the meantime, the command refuses to resume and names them.
    """
    command = Command(
        work=lambda one: one.resume(again=again),
        planner="wanted",
        on_signal="pause",
        judge=status_view.execution_code,
    )
    return run_command(on, command, planner=planner, pace=pace)


@spread
def cancel(*, why: Reason = None, on: ProjectOptions) -> int:
    """Cancel the plan and restore every file.

    Files that others have changed in the meantime are kept and named.
    """
    return _ask(on, "cancel", why, lambda one: one.cancel(why=why or ""), "it stops and restores every file")


@spread
def rollback(*, on: ProjectOptions) -> int:
    """Restore every file after a plan has failed."""
    return run_command(on, Command(work=lambda one: one.rollback()))


@spread
def acknowledge(*, discard: Discard = False, on: ProjectOptions) -> int:
    """Confirm an error that was shown; finished steps are kept."""
    return run_command(on, Command(work=lambda one: one.acknowledge(discard=discard)))


@spread
def retry(*, planner: PlannerOptions, on: ProjectOptions) -> int:
    """Make a new plan for the request that failed."""
    return run_command(on, Command(work=lambda one: one.retry(), planner="needed"), planner=planner)


@spread
def status(*, on: ProjectOptions) -> int:
    """Show the state of the project and the next actions.

    After a crash it also shows the recovery.
    """
    return run_command(on, Command(work=lambda one: one.status(), elsewhere=Approval.look, looks=True))


def _ask(
    on: ProjectOptions,
    what: str,
    why: str | None,
    here: Callable[[Approval], Awaitable[Status]],
    then: str,
) -> int:
    async def elsewhere(root: Path) -> Status:
        await Approval.ask(root, what, by=actor_name(on.by), why=why or "")
        found = await Approval.look(root)
        if found.owner:
            complain(f"sent the request to {found.owner}: {then}")
        return found

    return run_command(on, Command(work=here, elsewhere=elsewhere, asks=True))


def _read(text: str | None) -> str:
    """Return the text; `-` is standard input. Raises ConfigError if it is empty."""
    said = decoded_text(text or "", "TEXT")
    if not said.strip():
        raise ConfigError("TEXT is empty: give a text, or - for standard input")
    return said
