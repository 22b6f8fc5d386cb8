"""The work of each command: one call of `Approval`, and the output of its result."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from orchestrator.cli.approval import status as status_view
from orchestrator.cli.approval.project import ApprovalOptions, Command, run_command
from orchestrator.cli.load import actor_name, decoded_text
from orchestrator.cli.output import complain
from orchestrator.errors import ConfigError
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import Status

LONGEST_PACE = 60.0
"""Seconds between steps."""


def submit(options: ApprovalOptions, text: str | None, *, confirm: bool) -> int:
    """Submit a request, or confirm its interpretation. The command ends when a plan waits for a person."""
    if confirm and text:
        raise ConfigError(
            "--confirm accepts the interpreted request: give it without TEXT, or submit TEXT without it"
        )
    said = _text(text) if not confirm else ""
    return run_command(
        options,
        Command(
            work=lambda one: one.confirm() if confirm else one.run(said), planner="needed", anew=not confirm
        ),
    )


def approve(options: ApprovalOptions, *, steps: str | None, digest: str | None, execute: bool) -> int:
    """Approve the plan as it was shown, or some of its steps. Only `execute` also executes it."""
    chosen = None if steps is None else _names(steps)
    check_pace(options.pace)
    return run_command(
        options,
        Command(
            work=lambda one: one.approve(steps=chosen, digest=digest, start=execute),
            on_signal="pause",
            judge=status_view.execution_code if execute else status_view.code,
        ),
    )


def execute(options: ApprovalOptions) -> int:
    """Execute the approved plan, step by step. The first signal pauses it."""
    check_pace(options.pace)
    return run_command(
        options, Command(work=lambda one: one.execute(), on_signal="pause", judge=status_view.execution_code)
    )


def resume(options: ApprovalOptions, *, again: bool) -> int:
    """Resume a paused plan if no file has changed in the meantime. The first signal pauses it again."""
    check_pace(options.pace)
    return run_command(
        options,
        Command(
            work=lambda one: one.resume(again=again),
            planner="wanted",
            on_signal="pause",
            judge=status_view.execution_code,
        ),
    )


def wait(options: ApprovalOptions, *, seconds: float) -> int:
    """Wait for an answer of another process, and carry it out. The first signal stops the wait or pauses the plan."""
    check_pace(options.pace)
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"--seconds {seconds:g} is not valid: give the longest wait, 0 for no limit")

    async def work(approval: Approval) -> Status:
        try:
            return await approval.wait(seconds=seconds)
        except TimeoutError:
            complain(f"no answer came within {seconds:g} s; the plan still waits")
            return await approval.status()

    return run_command(
        options,
        Command(work=work, planner="wanted", on_signal="pause", judge=status_view.execution_code),
    )


def changes(options: ApprovalOptions, text: str) -> int:
    """Request another version of the plan."""
    said = _text(text)
    return run_command(options, Command(work=lambda one: one.changes(said), planner="needed"))


def retry(options: ApprovalOptions) -> int:
    """Make a new plan for the request that failed."""
    return run_command(options, Command(work=lambda one: one.retry(), planner="needed"))


def reject(options: ApprovalOptions, why: str | None) -> int:
    """Discard the plan."""
    return run_command(options, Command(work=lambda one: one.reject(why=why or "")))


def acknowledge(options: ApprovalOptions, *, discard: bool) -> int:
    """Confirm the error that was shown, and leave every file as it is."""
    return run_command(options, Command(work=lambda one: one.acknowledge(discard=discard)))


def rollback(options: ApprovalOptions) -> int:
    """Restore every file after a plan has failed."""
    return run_command(options, Command(work=lambda one: one.rollback()))


def pause(options: ApprovalOptions) -> int:
    """Ask the process that executes the plan to pause between steps."""
    return _ask(options, "pause", None, lambda one: one.pause(), "it pauses after the current step")


def cancel(options: ApprovalOptions, why: str | None) -> int:
    """Stop and restore every file: here, or in the process that executes the plan."""
    return _ask(
        options, "cancel", why, lambda one: one.cancel(why=why or ""), "it stops and restores every file"
    )


def status(options: ApprovalOptions) -> int:
    """Print the state of the project, after recovery from a crash."""
    return run_command(options, Command(work=lambda one: one.status(), elsewhere=Approval.look, looks=True))


def check_pace(pace: float) -> None:
    """Raise ConfigError for a pace that is not valid."""
    if not math.isfinite(pace) or not 0 <= pace <= LONGEST_PACE:
        raise ConfigError(
            f"--pace {pace:g} is not valid: give 0 to {LONGEST_PACE:g} seconds before each step"
        )


def _ask(
    options: ApprovalOptions,
    what: str,
    why: str | None,
    here: Callable[[Approval], Awaitable[Status]],
    then: str,
) -> int:
    async def elsewhere(root: Path) -> Status:
        await Approval.ask(root, what, by=actor_name(options.by), why=why or "")
        found = await Approval.look(root)
        if found.owner:
            complain(f"sent the request to {found.owner}: {then}")
        return found

    return run_command(options, Command(work=here, elsewhere=partial(elsewhere), asks=True))


def _names(steps: str) -> tuple[str, ...]:
    """Return the steps that a list such as `1,3,4` names. Raises ConfigError."""
    names = tuple(one.strip() for one in steps.split(","))
    if not all(names):
        raise ConfigError(f"--steps {steps!r} is not valid: give step names separated by commas, as in 1,3,4")
    if len(set(names)) < len(names):
        raise ConfigError(f"--steps {steps!r} names a step twice")
    return names


def _text(text: str | None) -> str:
    """Return the text; `-` is standard input. Raises ConfigError if it is empty."""
    said = decoded_text(text or "", "TEXT")
    if not said.strip():
        raise ConfigError("TEXT is empty: give a text, or - for standard input")
    return said
