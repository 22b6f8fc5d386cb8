"""The answer of every guard: whether it allows the step, and the two numbers behind the decision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

GUARD_NAMES: Final = (
    "affordable",
    "completion_retries",
    "cost",
    "cost_unknown",
    "elapsed",
    "handoffs",
    "host_budget",
    "input_tokens",
    "iterations",
    "joined",
    "no_progress",
    "output_tokens",
    "planning_retries",
    "present",
    "qa_cycles",
    "refinements",
    "repeated_handoff",
    "repeated_success",
    "replans",
    "restarts",
    "retries",
    "structured_retries",
    "sub_calls",
    "task_attempts",
    "tokens",
    "tool_calls",
    "tool_cap",
    "tool_errors",
)
"""Every value of `Verdict.guard` here: a closed set, so it may label a metric."""


class Verdict(NamedTuple):
    """One guard's decision, with the observed and the allowed value.

    It is a tuple rather than a dataclass because several are made each turn: a frozen dataclass costs three times as
    much to construct. Its truth value is the decision, not its length.

    Example:
        >>> bool(Verdict(False, "iterations", 20, 20))
        False
    """

    ok: bool
    """True: allowed. False: the guard refuses."""
    guard: str
    """Name of the guard, one of `GUARD_NAMES`; safe as a metric label."""
    observed: float = 0
    """The counted value, in the guard's own unit (see the table in guards/README.md)."""
    limit: float = 0
    """The allowed value in the same unit; 0 is unlimited."""
    detail: str = ""
    """Plain words for a person: a tool's name, the evidence of a stall. Never arguments or results."""

    def __bool__(self) -> bool:
        return self.ok

    @property
    def is_budget(self) -> bool:
        """Whether the limit is the most that may be used, so that their ratio is the used share.

        Example:
            >>> Verdict(True, "iterations", 3, 20).is_budget, Verdict(True, "present", 3, 1).is_budget
            (True, False)
        """
        return self.limit > 0 and self.guard not in _NOT_COUNTED and self.guard != "joined"

    def explain(self) -> str:
        """Return the verdict as one sentence.

        Example:
            >>> Verdict(False, "iterations", 20, 20).explain()
            'iterations: 20 of 20 used'
            >>> Verdict(True, "cost", 0.25).explain()
            'cost: 0.25 used, no limit'
        """
        if self.guard in _NOT_COUNTED:
            return f"{self.guard}: {self.detail}"
        if self.guard == "joined":
            sentence = f"{self.guard}: {_number(self.observed)} of {_number(self.limit)} needed"
        elif self.limit == 0:
            sentence = f"{self.guard}: {_number(self.observed)} used, no limit"
        else:
            sentence = f"{self.guard}: {_number(self.observed)} of {_number(self.limit)} used"
        return f"{sentence} ({self.detail})" if self.detail else sentence


_NOT_COUNTED = ("cost_unknown", "present")
"""Guards that check a fact: the detail names it, and their numbers carry no information."""


def first_refusal(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the first verdict that refuses, or None if all allow.

    Given a generator it stops there, so guards after the first refusal are not evaluated.

    Example:
        >>> first_refusal([Verdict(True, "iterations"), Verdict(False, "cost", 2, 1)]).guard
        'cost'
    """
    for verdict in verdicts:
        if not verdict.ok:
            return verdict
    return None


def _number(value: float) -> str:
    """Return a count as a whole number and a measure with at most six decimals."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.6f}".rstrip("0").rstrip(".")
