"""The state of a project, for a person and as data: state, plan, steps, recovery, actions; and a refusal."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.cli.approval.progress import what
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import TextColor, complain, complain_more, in_words, painted, say_json, visible
from orchestrator.cli.runs.phrase import many, moment, roughly, words
from orchestrator.errors import Held
from orchestrator.machines.approval.fault import ApprovalError, GateRefused
from orchestrator.machines.approval.model import ApprovalState
from orchestrator.runtime.approval.status import Drift, IntentQuestion, RecoveryNote, Status

VERBS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "submit": (("TEXT",), "describe the work"),
    "confirm": ((), "confirm the interpreted request and plan it"),
    "show": ((), "print the plan"),
    "diff": ((), "print the changes of the plan, line by line"),
    "approve": ((), "approve the plan as printed"),
    "execute": ((), "execute the plan, step by step"),
    "reject": ((), "discard the plan"),
    "changes": (("TEXT",), "request a new version of the plan"),
    "pause": ((), "pause after the current step"),
    "resume": ((), "continue with the next step"),
    "resume --again": ((), "run the interrupted command again, then continue"),
    "cancel": ((), "stop and restore every file"),
    "retry": ((), "make a new plan for the same request"),
    "rollback": ((), "restore every file"),
    "acknowledge": ((), "keep every file as it is"),
    "acknowledge --discard": ((), "move .orchestrator/ aside and start again"),
    "status": ((), "print the state of the project"),
}
"""Action -> (placeholders, effect)."""

_LOOKS = ("diff", "show")
_CORRUPT = "corrupt"
"""The value of a recovery's finding if no stored data can be trusted."""

_STEP = re.compile(r"(?P<action>[a-z]+)(?P<options>( --[a-z]+)*)(, (?P<more>.*))?")
_PLACES = (("step", "step"), ("file", "path"))

_TYPED = {"confirm": ("submit", "--confirm")}
"""Action -> its words on the command line, if they differ from its name."""


def typed(action: str, project: str | None, *options: str) -> str:
    """Return an action as a command that can be typed here."""
    fill, _ = VERBS.get(action, ((), ""))
    place = () if project is None else ("--project", project)
    said = words("approval", *_TYPED.get(action, (action,)), *options, *place)
    return " ".join((said, *fill))


def code(status: Status) -> int:
    """Return the exit code that represents the state of a project after a command."""
    if status.state is ApprovalState.FAILED:
        return Exit.FAILED
    return Exit.PARTIAL if status.state is ApprovalState.PAUSED else Exit.COMPLETED


def execution_code(status: Status) -> int:
    """Return the exit code of a command that executes a plan: a plan that was cancelled meanwhile has its own."""
    return Exit.CANCELLED if status.plan_status == "cancelled" else code(status)


# ---- lines ----


def lines(status: Status, project: str | None, *, colour: bool = False) -> Iterator[str]:
    """Return the lines of a project's state; `project` is as the command line names it."""
    yield painted(f"state: {status.state}", TextColor.HEAD, colour=colour)
    if status.owner:
        yield f"owner: {visible(status.owner)}"
    if status.crashed:
        yield "owner: none; the last process ended before its work was complete"
    if status.request:
        yield f"request: {one_line(status.request)}"
    if status.plan is not None:
        yield from plan_lines(status)
    if status.question is not None:
        yield from question_lines(status.question)
    if status.error is not None:
        yield from error_lines(status.error, colour=colour)
    yield from (f"undone: {visible(path)}" for path in status.undone)
    yield from conflict_lines((*status.drift, *status.conflicts), colour=colour)
    yield from action_lines(status.actions, project)


def plan_lines(status: Status, now: float | None = None) -> Iterator[str]:
    """Return the lines of the plan, its deadline for approval, and the status of each step."""
    plan = status.plan
    if plan is None:
        return
    said = f"plan: {visible(plan.id)} version {plan.version}, {status.plan_status}"
    if status.plan_status == "pending" and status.expires_at is not None:
        left = status.expires_at - (time.time() if now is None else now)
        said += f", expires in {roughly(left)} ({moment(status.expires_at)})" if left > 0 else ", expires now"
    yield said
    stand = {one.id: one.status for one in status.steps}
    width = max((len(visible(step.id)) for step in plan.steps), default=0)
    for step in plan.steps:
        yield f"  {visible(step.id).rjust(width)}  {stand.get(step.id, 'pending'):<8} {what(step)}"


def question_lines(question: IntentQuestion) -> Iterator[str]:
    """Return the lines of the interpreted request, of its questions and of its faults."""
    if question.intent is not None:
        kind, summary = question.intent.get("kind", ""), question.intent.get("summary", "")
        yield f"understood: {one_line(kind)}, {one_line(summary)}"
    sure = "" if question.confidence is None else f" (confidence {question.confidence:.2f})"
    yield f"question: {one_line(question.text)}{sure}"


def recovery_lines(recovered: RecoveryNote, project: str | None, *, colour: bool = False) -> Iterator[str]:
    """Return the lines of a recovery after a crash: its findings, its result, and the actions of a person."""
    how = "" if recovered.found == ApprovalState.AWAITING_APPROVAL else " was interrupted"
    moved = "" if recovered.now == recovered.found else f", now {recovered.now}"
    said = f"recovered: {recovered.found}{how}{moved}"
    if recovered.found == _CORRUPT:
        said = f"damaged: the data in .orchestrator/ cannot be trusted{moved}"
    yield painted(visible(said), TextColor.HEAD, colour=colour)
    if recovered.why:
        yield f"  {one_line(recovered.why)}"
    if recovered.kept:
        yield f"  complete and kept: {many(len(recovered.kept), 'step')} ({_names(recovered.kept)})"
    if recovered.undone:
        whole = recovered.found == ApprovalState.CANCELLING
        yield f"  restored{'' if whole else ', of the interrupted step'}: {_names(recovered.undone)}"
    yield from (f"  {line}" for line in conflict_lines(recovered.conflicts, colour=colour))
    for option in recovered.options:
        if option not in VERBS:  # the state of the project shows these
            yield f"  you can: {said_or_typed(option, project)}"


def error_lines(error: Mapping[str, Any], *, colour: bool = False) -> Iterator[str]:
    """Return an error object as lines: the error, its reason, and the possible actions."""
    place = "".join(f"{name} {one_line(error[key])}: " for name, key in _PLACES if error.get(key))
    head = f"error: {one_line(error.get('code'))} {place}{one_line(error.get('message', ''))}"
    yield painted(head, TextColor.WARNING, colour=colour)
    if error.get("technical_detail"):
        yield f"  detail: {one_line(in_words(error['technical_detail']))}"
    kind = f"{one_line(error.get('category'))}, {one_line(error.get('severity'))}"
    yield f"  {kind}; recovery: {one_line(error.get('recovery_path'))}"


def conflict_lines(conflicts: Iterable[Drift | Mapping[str, Any]], *, colour: bool = False) -> Iterator[str]:
    """Return a line for each file that differs from the expected content; none of them was changed."""
    for one in conflicts:
        if isinstance(one, Drift):
            path, why = one.path, one.why
        else:
            found = one.get("found")
            there = f"found {str(found)[:12]}" if found else "the file is missing"
            path = one.get("path", "")
            why = str(one.get("why") or f"changed by another program ({there}); it was kept")
        yield painted(f"conflict: {visible(str(path))}: {one_line(why)}", TextColor.WARNING, colour=colour)


def _names(names: Iterable[Any]) -> str:
    return ", ".join(visible(str(one)) for one in names)


def said_or_typed(step: str, project: str | None) -> str:
    """Return the next action: `ACTION [--option][, words]` as the command that is typed, any other text unchanged."""
    found = _STEP.fullmatch(" ".join(step.split()))
    if found is None or found["action"] not in VERBS:
        return one_line(step)
    command = typed(found["action"], project, *found["options"].split())
    return f"{command}  ({one_line(found['more'])})" if found["more"] else command


def worth_saying(actions: Iterable[str]) -> list[str]:
    """Return the lines about possible actions, in the order in which to take them."""
    possible = list(actions)
    if "reject" in possible and "cancel" in possible:  # the same effect while nothing is executed
        possible.remove("cancel")
    if "submit" in possible:  # there is nothing to show first
        possible = [action for action in possible if action not in _LOOKS]
    if "approve" in possible:  # only after `show` or `diff`
        possible.sort(key=lambda action: action not in _LOOKS)
    return possible


def action_lines(actions: Iterable[str], project: str | None) -> Iterator[str]:
    """Return the commands that are possible now, and the effect of each."""
    possible = worth_saying(actions)
    known = []
    for one in possible:  # an option without a text has that of the action without it
        _, meaning = VERBS.get(one, VERBS.get(one.split(maxsplit=1)[0], ((), "")))
        known.append((said_or_typed(one, project), meaning))
    if not known:
        return
    width = max(len(command) for command, _ in known)
    yield "you can:"
    yield from (f"  {command.ljust(width)}  {meaning}".rstrip() for command, meaning in known)


def one_line(text: Any) -> str:
    """Return an external text on one line, with every character visible."""
    return visible(" ".join(str(text).split()))


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
    return _refuse(f"({named}): {one_line(refused.reason)}{again}", "next", steps, data, json=json)


def print_faults(error: ApprovalError, *, json: bool) -> Exit:
    """Print each fault of the given input with its code; return the exit code."""
    first, *others = error.faults
    also = [f"{one.code} {one.message}" for one in others]
    data = {"code": error.code, "faults": [one.plain() for one in error.faults]}
    return _refuse(f"({first.code}): {one_line(first.message)}", "also", also, data, json=json)


def print_busy(owned: Held, project: str | None, *, json: bool) -> Exit:
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
    return _refuse(f"(gate state): {one_line(reason)}", "next", steps, data, json=json)


def _refuse(sentence: str, label: str, more: Iterable[str], data: dict[str, Any], *, json: bool) -> Exit:
    if json:
        say_json({"refused": data})
    complain(f"refused {sentence}")
    for one in more:
        complain_more(label, one_line(one))
    return Exit.USAGE


def status_json(found: Status, recovered: RecoveryNote | None) -> dict[str, Any]:
    """Return the whole state; `recovered` is the recovery of this start, `recovery` the latest one of the project."""
    question = found.question
    return {
        "state": found.state.value,
        "run_id": found.run_id,
        "request": found.request,
        "intent": None if found.intent is None else dict(found.intent),
        "plan": None if found.plan is None else {**found.plan.plain(), "digest": found.plan.digest},
        "plan_status": found.plan_status,
        "approved_at": found.approved_at,
        "expires_at": found.expires_at,
        "steps": [asdict(one) for one in found.steps],
        "question": question
        and {
            "text": question.text,
            "intent": None if question.intent is None else dict(question.intent),
            "confidence": question.confidence,
        },
        "error": None if found.error is None else dict(found.error),
        "recovered": None if recovered is None else recovered.plain(),
        "recovery": None if found.recovery is None else found.recovery.plain(),
        "crashed": found.crashed,
        "drift": [asdict(one) for one in found.drift],
        "undone": list(found.undone),
        "conflicts": [dict(one) for one in found.conflicts],
        "actions": list(found.actions),
        "held": found.owner,
    }
