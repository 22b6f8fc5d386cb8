"""What a run asks a person: in words, as data, and the commands that answer it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.cli.output import shown
from orchestrator.cli.runs.phrase import moment, span
from orchestrator.cli.runs.store import Store
from orchestrator.kernel.journal import Posted
from orchestrator.machines.llm_loop.model import Question

DIGITS = 12
"""Characters of a digest that printed commands name; as many as --digest needs to be exact enough."""

WHY = {
    "approval": "may this call run?",
    "unknown_effect": "the process died or was frozen while this call ran (if it is frozen, end it first: it would "
    "continue the call): did it take effect?",
    "undo_failed": "this call could not be undone: what is to be done about it?",
}
"""Reason of a question -> the question."""

ANSWERS = {
    "approval": (
        ("approve", "run it", ()),
        ("reject", "the model reads that it was refused", ("--why", "TEXT")),
        ("respond", "the model reads this as the result, nothing runs", ("TEXT",)),
    ),
    "unknown_effect": (
        ("respond", "it took effect: the model reads this as the result", ("TEXT",)),
        ("approve", "it did not: run it again", ()),
        ("reject", "give up: the model reads that it failed", ("--why", "TEXT")),
    ),
}
"""Reason of a question -> (command, what it comes to, what is to be filled in), likeliest first."""

_LONGEST = 1_200


def expired(question: Question, now: float) -> bool:
    """Whether an answer comes too late."""
    return bool(question.expires_at) and question.expires_at <= now


def answers(store: Store, run_id: str, question: Question) -> list[tuple[str, str]]:
    """Return (command as it can be typed, what it comes to) of each answer to a question."""
    bound = ("--call", question.key, "--digest", question.digest[:DIGITS]) if question.digest else ()
    known = ANSWERS.get(question.why, ANSWERS["approval"])
    return [(store.command(name, run_id, *bound, *fill), meaning) for name, meaning, fill in known]


def told(  # noqa: PLR0917 - all that is known of one question
    store: Store,
    run_id: str,
    question: Question,
    unread: Iterable[Posted],
    now: float,
    resumption: str | None = None,
) -> Iterator[str]:
    """Say what is asked, until when, and how to answer, or who did. `resumption` goes on with the run."""
    yield f"  {question.key}  {shown(question.tool, 80)}  {WHY.get(question.why, question.why)}"
    if question.arguments:
        yield f"      arguments  {shown(question.arguments, _LONGEST)}"
    yield f"      digest     {question.digest}"
    if question.expires_at:
        left = question.expires_at - now
        when = f"in {span(left)}" if left > 0 else f"{span(-left)} ago: too late to answer"
        verb = "expires" if left > 0 else "expired"
        yield f"      {verb}    {moment(question.expires_at)}, {when}"
    if expired(question, now):
        yield "      the model reads that nobody answered in time, after:"
        yield f"          {resumption or store.command('resume', run_id)}"
        return
    if (said := next((one for one in unread if one.body.get("call") == question.key), None)) is not None:
        yield f"      answered   {said.kind} by {shown(said.by or 'somebody', 80)}, not taken yet"
        return
    for command, meaning in answers(store, run_id, question):
        yield f"      {meaning}:"
        yield f"          {command}"


def as_json(store: Store, run_id: str, question: Question, now: float) -> dict[str, Any]:
    """Return a question as plain data."""
    names = ("tool", "arguments", "digest", "why")
    return {
        "call": question.key,
        **{name: getattr(question, name) for name in names},
        "expires_at": question.expires_at or None,
        "expired": expired(question, now),
        "commands": [command for command, _ in answers(store, run_id, question)],
    }
