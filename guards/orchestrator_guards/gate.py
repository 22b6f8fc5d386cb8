"""Gates: of all that stands in the way of an action, what a person is told first. Pure.

Source: seed 001's knowledge base (systems.md 5.2): the order is fixed, and a shut gate says why and what to do.
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
    """A gate that is shut."""

    gate: str
    """One of GATES."""
    reason: str
    """In words, without the contents of files."""
    next_steps: tuple[str, ...] = ()
    """Commands that would help."""
    retryable_now: bool = False
    """The same action may work if it is only asked for again."""
    code: str = ""
    """Of the table of errors, where it has one."""


def first_blocked(found: Iterable[BlockedGate | None]) -> BlockedGate | None:
    """Return the shut gate that comes first in GATES; None where all are open.

    Example:
        >>> shut = [Blocked("drift", "a.py was changed"), None, Blocked("state", "it is Idle")]
        >>> first_blocked(shut).gate
        'state'
        >>> first_blocked([None]) is None
        True
    """
    shut = [one for one in found if one is not None]
    return min(shut, key=lambda one: GATES.index(one.gate), default=None)
