"""The position of a run, in a few words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from orchestrator.cli.output import shown
from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import RunHead

if TYPE_CHECKING:
    from orchestrator.runtime.runs.story import Story


def position_of(head: RunHead, story: Story) -> str:
    """Return the position of a run in a few words."""
    if head.status == "ended" and story.ended is not None:
        outcome = story.ended.get("outcome", "?")
        reason = ", ".join(filter(None, (head.reason, story.error_kind)))
        return f"ended: {outcome}" if reason in ("", "none") else f"ended: {outcome} ({reason})"
    reason = head_reason(head)
    return head.status if reason == "-" else f"{head.status} ({reason})"


def head_reason(head: RunHead) -> str:
    """Return why a run parked or ended, or that it is claimed again and again."""
    if not head.reason and head.stuck_claims > 1:
        return f"claimed {head.stuck_claims} times without progress"
    return head.reason or "-"


def holder(head: RunHead) -> str:
    """Return the owner of a run and, if it missed heartbeats, when its lease expires; empty without an owner."""
    if head.lease_expires_in is None:
        return head.owner or ""
    return f"{head.owner} (no heartbeat; the lease expires in {math.ceil(head.lease_expires_in)} s)"


def owned_elsewhere(head: RunHead, look: str = "") -> ConfigError:
    """Return the error for a resume of a run that another process owns; `look` is a command that shows the run."""
    then = "that process continues it"
    if head.lease_expires_in is not None:
        then = "that process is stopped or hangs; resume the run when its lease has expired"
    return ConfigError(
        f"run {head.run_id} is held by {shown(holder(head))}: {then}" + (f"; `{look}`" if look else "")
    )
