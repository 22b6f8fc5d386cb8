"""Conditions on an edge: a thing that the edge needs is present, enough branches have completed."""

from __future__ import annotations

from orchestrator_guards.verdict import Verdict


def present(observed: int, limit: int = 1) -> Verdict:
    """Decide whether enough of a thing is present. `observed`: how many there are; `limit`: how many are needed.

    Example:
        >>> present(0).ok, present(3).ok
        (False, True)
    """
    ok = observed >= limit
    return Verdict(ok, "present", observed, limit, "" if ok else f"{limit} needed, {observed} found")


def joined(observed: int, limit: int) -> Verdict:
    """Decide whether enough branches completed. `observed`: those that count; `limit`: how many are needed.

    Example:
        >>> joined(2, 3).ok, joined(3, 3).explain()
        (False, 'joined: 3 of 3 needed')
    """
    return Verdict(observed >= limit, "joined", observed, limit)
