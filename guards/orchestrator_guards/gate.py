"""Gates: select the reason that a person sees first if several block an action. Pure.

The order of the gates is fixed, and a blocked gate has a reason and next steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

GATES: Final = (
    "state",
    "project_open",
    "not_cancelling",
    "plan",
    "drift",
    "ai",
    "token_budget",
    "limits",
    "preview_acknowledged",
    "logging_ready",
)
"""Every gate, the most important first."""


class BlockedGate(NamedTuple):
    """A gate that blocks the action."""

    gate: str
    """One of GATES."""
    reason: str
    """The reason in words, without the contents of files."""
    next_steps: tuple[str, ...] = ()
    """Commands that would help."""
    retryable_now: bool = False
    """Whether a repetition of the same action may work now."""
    code: str = ""
    """Code in the table of errors, if any."""


def first_blocked(found: Iterable[BlockedGate | None]) -> BlockedGate | None:
    """Return the blocked gate that comes first in GATES; None if all are open.

    Example:
        >>> blocked = [BlockedGate("drift", "a.py was changed"), None, BlockedGate("state", "it is Idle")]
        >>> first_blocked(blocked).gate
        'state'
        >>> first_blocked([None]) is None
        True
    """
    shut = [one for one in found if one is not None]
    return min(shut, key=lambda one: GATES.index(one.gate), default=None)
