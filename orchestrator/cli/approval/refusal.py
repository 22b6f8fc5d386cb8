"""The output of a refused command: the gate, the reason, the next action. A refused command changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orchestrator.cli.approval.status import one_line, said_or_typed, typed, worth_saying
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import complain, complain_more, say_json
from orchestrator.errors import Held
from orchestrator.machines.approval.fault import ApprovalError, GateRefused


def print_refusal(refused: GateRefused, project: str | None, *, json: bool) -> Exit:
    """Print the refusal on stderr, with --json also as data on standard output; return the exit code."""
    again = "; it can be tried again now" if refused.retryable_now else ""
    named = f"gate {refused.gate}" + (f", {refused.code}" if refused.code else "")
    data = {
        "gate": str(refused.gate),
        "code": refused.code,
        "reason": refused.reason,
        "next_steps": list(refused.next_steps),
        "retryable_now": refused.retryable_now,
    }
    steps = [said_or_typed(one, project) for one in worth_saying(refused.next_steps)]
    return _say(f"({named}): {one_line(refused.reason)}{again}", "next", steps, data, json=json)


def faulted(error: ApprovalError, *, json: bool) -> Exit:
    """Print each fault of the given input with its code; return the exit code."""
    first, *others = error.faults
    also = [f"{one.code} {one.message}" for one in others]
    data = {"code": error.code, "faults": [one.plain() for one in error.faults]}
    return _say(f"({first.code}): {one_line(first.message)}", "also", also, data, json=json)


def busy(owned: Held, project: str | None, *, json: bool) -> Exit:
    """Report that another process works on the project; return the exit code."""
    steps = [typed("status", project), typed("pause", project), typed("cancel", project)]
    reason = f"{owned.owner} works on this project" + (f"; {owned.warning}" if owned.warning else "")
    data: dict[str, Any] = {
        "gate": "state",
        "code": None,
        "reason": reason,
        "next_steps": steps,
        "retryable_now": False,
    }
    return _say(f"(gate state): {one_line(reason)}", "next", steps, data, json=json)


def _say(sentence: str, label: str, more: Iterable[str], data: dict[str, Any], *, json: bool) -> Exit:
    if json:
        say_json({"refused": data})
    complain(f"refused {sentence}")
    for one in more:
        complain_more(label, one_line(one))
    return Exit.USAGE
