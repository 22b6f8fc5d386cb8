"""A condition on an edge: a thing that the edge needs is present."""

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
