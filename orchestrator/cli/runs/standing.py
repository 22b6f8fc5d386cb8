"""Where a run stands, in a few words."""

from __future__ import annotations

from orchestrator.cli.runs.story import Story
from orchestrator.kernel.journal import RunHead


def standing(head: RunHead, story: Story) -> str:
    """Say in a few words where a run stands."""
    if head.status == "ended" and story.ended is not None:
        outcome = story.ended.get("outcome", "?")
        return f"ended: {outcome}" if head.reason in ("", "none") else f"ended: {outcome} ({head.reason})"
    reason = head_reason(head)
    return head.status if reason == "-" else f"{head.status} ({reason})"


def head_reason(head: RunHead) -> str:
    """Return why a run parked or ended, or that it is claimed again and again."""
    if not head.reason and head.stuck_claims > 1:
        return f"claimed {head.stuck_claims} times without progress"
    return head.reason or "-"
