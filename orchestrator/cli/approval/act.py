"""The work of each command: one call of `Approval`, and how its result is printed."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from orchestrator.cli.actor import who
from orchestrator.cli.approval import status as standing
from orchestrator.cli.approval.project import ApprovalOptions, Command, carry_out
from orchestrator.cli.load import heard
from orchestrator.cli.output import complain
from orchestrator.errors import ConfigError
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import Status

LONGEST_PACE = 60.0
"""Seconds between steps."""


def submit(asked: ApprovalOptions, text: str | None, *, confirm: bool) -> int:
    """Hand in what is wanted, or confirm what was understood; ends when a plan waits for a person."""
    if confirm and text:
        raise ConfigError(
            "--confirm takes up what was asked about: give no TEXT with it, or submit the TEXT anew"
        )
    said = _text(text) if not confirm else ""
    return carry_out(
        asked,
        Command(work=lambda one: one.submit(said, confirm=confirm), planner="needed", anew=not confirm),
    )


def approve(asked: ApprovalOptions, *, steps: str | None, digest: str | None, execute: bool) -> int:
    """Approve the plan as it was shown, or some of its steps; carried out at once only with `execute`."""
    chosen = None if steps is None else _names(steps)
    check_pace(asked.pace)
    return carry_out(
        asked,
        Command(
            work=lambda one: one.approve(steps=chosen, digest=digest, start=execute),
            on_signal="pause",
            judge=standing.carried if execute else standing.code,
        ),
    )


def execute(asked: ApprovalOptions) -> int:
    """Carry out the approved plan, step by step; the first signal pauses it."""
    check_pace(asked.pace)
    return carry_out(
        asked, Command(work=lambda one: one.execute(), on_signal="pause", judge=standing.carried)
    )


def resume(asked: ApprovalOptions, *, again: bool) -> int:
    """Resume a paused plan if no file has changed in the meantime; the first signal pauses it."""
    check_pace(asked.pace)
    return carry_out(
        asked,
        Command(
            work=lambda one: one.resume(again=again),
            planner="wanted",
            on_signal="pause",
            judge=standing.carried,
        ),
    )


def changes(asked: ApprovalOptions, text: str) -> int:
    """Ask for another version of the plan."""
    said = _text(text)
    return carry_out(asked, Command(work=lambda one: one.changes(said), planner="needed"))


def retry(asked: ApprovalOptions) -> int:
    """Make a new plan for the request that failed."""
    return carry_out(asked, Command(work=lambda one: one.retry(), planner="needed"))


def reject(asked: ApprovalOptions, why: str | None) -> int:
    """Discard the plan."""
    return carry_out(asked, Command(work=lambda one: one.reject(why or "")))


def acknowledge(asked: ApprovalOptions, *, discard: bool) -> int:
    """Leave everything as it is, the error having been shown."""
    return carry_out(asked, Command(work=lambda one: one.acknowledge(discard=discard)))


def rollback(asked: ApprovalOptions) -> int:
    """Put every file back as it was before a plan that failed."""
    return carry_out(asked, Command(work=lambda one: one.rollback()))


def pause(asked: ApprovalOptions) -> int:
    """Ask the process that carries the plan out to pause between steps."""
    return _ask(asked, "pause", None, lambda one: one.pause(), "after the step that is being made")


def cancel(asked: ApprovalOptions, why: str | None) -> int:
    """Stop and put every file back: here, or in the process that carries the plan out."""
    return _ask(asked, "cancel", why, lambda one: one.cancel(why or ""), "and puts every file back")


def status(asked: ApprovalOptions) -> int:
    """Say how the project stands; what a crash left behind is put in order first."""
    return carry_out(asked, Command(work=lambda one: one.status(), elsewhere=Approval.look, looks=True))


def check_pace(pace: float) -> None:
    """Raise ConfigError for a pace that is none."""
    if not math.isfinite(pace) or not 0 <= pace <= LONGEST_PACE:
        raise ConfigError(f"--pace {pace:g}: seconds before each step, 0 to {LONGEST_PACE:g}")


def _ask(
    asked: ApprovalOptions,
    what: str,
    why: str | None,
    here: Callable[[Approval], Awaitable[Status]],
    then: str,
) -> int:
    async def elsewhere(root: Path) -> Status:
        await Approval.ask(root, what, by=who(asked.by), why=why or "")
        found = await Approval.look(root)
        if found.held:
            complain(f"asked {found.held}: it stops {then}")
        return found

    return carry_out(asked, Command(work=here, elsewhere=partial(elsewhere), asks=True))


def _names(steps: str) -> tuple[str, ...]:
    """Return the steps that `1,3,4` names. Raises ConfigError."""
    names = tuple(one.strip() for one in steps.split(","))
    if not all(names):
        raise ConfigError(f"--steps {steps!r}: names of steps with commas between them, as in 1,3,4")
    if len(set(names)) < len(names):
        raise ConfigError(f"--steps {steps!r} names a step twice")
    return names


def _text(text: str | None) -> str:
    """Return what was said; `-` is standard input. Raises ConfigError for nothing."""
    said = heard(text or "", "TEXT")
    if not said.strip():
        raise ConfigError("nothing is said: give TEXT, or - for standard input")
    return said
