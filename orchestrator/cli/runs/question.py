"""The questions of a run: in words, as data, and the commands that answer it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator.cli.output import shown
from orchestrator.cli.runs.argument import CallView
from orchestrator.cli.runs.phrase import many, moment, span
from orchestrator.cli.runs.store import OpenStore
from orchestrator.kernel.journal import Posted
from orchestrator.machines.question import Question
from orchestrator.tools.input_form import FormField, form_fields
from orchestrator.tools.input_request import InputRequest, request_of

DIGITS = 12
"""Characters of a digest in printed commands; at least as many as --digest requires."""

WHY = {
    "approval": "may this call run?",
    "unknown_effect": "the call was interrupted before its result was recorded (end a frozen process first: it would "
    "continue the call); did it take effect?",
    "undo_failed": "this call could not be undone: how should the run continue?",
    "input": "this call needs input from you",
    "plan": "may this plan be carried out? A process with its folder does: orchestrator approval wait",
}
"""Reason of a question -> the text of the question."""

ANSWERS = {
    "approval": (
        ("approve", "run it", ()),
        ("reject", "the model reads that the call was refused", ("--why", "TEXT")),
        ("respond", "the model reads this as the result, nothing runs", ("TEXT",)),
    ),
    "unknown_effect": (
        ("respond", "it took effect: the model reads this as the result", ("TEXT",)),
        ("approve", "it did not: run it again", ()),
        ("reject", "do not retry: the model reads that it failed", ("--why", "TEXT")),
    ),
    "plan": (
        ("approve", "carry it out", ()),
        ("reject", "discard it", ("--why", "TEXT")),
    ),
}
"""Reason of a question -> (command, effect, placeholders), most likely first."""

_CONFIRM = (
    ("approve", "confirm it: the call continues", ()),
    ("reject", "decline: the tool reads that", ()),
)
"""The answers to a request for input without a form."""

FREE = ("reject",)
"""Answers that need no digest: no call follows them."""

_LONGEST = 300
_MESSAGE = 2_000


def expired(question: Question, now: float) -> bool:
    """Whether it is too late for an answer."""
    return bool(question.expires_at) and question.expires_at <= now


def hidden(question: Question) -> int:
    """Return how many characters of the call a screen does not show. If any, an answer needs the full digest."""
    return CallView.screen(question.tool, question.arguments).hidden


def answer_fault(
    store: OpenStore, run_id: str, question: Question, kind: str, digest: str | None
) -> str | None:
    """Return why an answer of this kind with this digest is refused, because the call was not shown completely."""
    count = hidden(question)
    if not count or kind in FREE or names_all_of(question, digest):
        return None
    return (
        f"{many(count, 'character')} of call {question.key} do not fit on a screen, so the answer needs the full "
        f"digest: `{complete(store, run_id)}` prints it after the whole call; nothing was posted"
    )


def names_all_of(question: Question, typed: str | None) -> bool:
    """Whether a text is the full digest of a question; a question recorded without a digest has none."""
    return bool(question.digest) and (typed or "").lower() == question.digest.lower()


def complete(store: OpenStore, run_id: str) -> str:
    """Return the command that shows the whole question."""
    return store.command("show", run_id, "--full")


def answers(
    store: OpenStore, run_id: str, question: Question, *, full: bool = False
) -> list[tuple[str, str]]:
    """Return (command as it can be typed, effect) of each answer; `full` means that the whole call is shown with it."""
    digest = question.digest[:DIGITS]
    if hidden(question):
        digest = question.digest if full else "DIGEST"
    known = (
        ANSWERS.get(question.why, ANSWERS["approval"]) if question.input is None else _of_form(question.input)
    )
    return [
        (store.command(name, run_id, *_bound(name, question, digest), *fill), meaning)
        for name, meaning, fill in known
    ]


def _of_form(asked: Mapping[str, Any]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return the answers to a request for input, as in ANSWERS."""
    schema = request_of(asked).schema
    if schema is None:
        return _CONFIRM
    values = {shown(one.name, 80, keep=""): "…" for one in form_fields(schema)}
    example = json.dumps(values, ensure_ascii=False)
    return (("respond", "give the input: the call continues with it", (example,)), _CONFIRM[1])


def _bound(name: str, question: Question, digest: str) -> tuple[str, ...]:
    if not question.digest:
        return ()
    bound = ("--call", question.key)
    return bound if name in FREE and digest == "DIGEST" else (*bound, "--digest", digest)


def described(  # noqa: PLR0917 - every fact about one question
    store: OpenStore,
    run_id: str,
    question: Question,
    unread: Iterable[Posted],
    now: float,
    resumption: str | None = None,
    *,
    full: bool = False,
) -> Iterator[str]:
    """Yield the lines of a question: the call, its deadline, and how to answer, or who answered.

    `resumption` resumes the run. Without `full`, a call that does not fit on a screen is cut, and its digest is not
    shown.
    """
    yield from _call(store, run_id, question, full=full)
    if question.expires_at:
        left = question.expires_at - now
        when = f"in {span(left)}" if left > 0 else f"{span(-left)} ago: too late to answer"
        verb = "expires" if left > 0 else "expired"
        yield f"      {verb}    {moment(question.expires_at)}, {when}"
    if expired(question, now):
        yield "      to continue (the model reads that no answer came in time):"
        yield f"          {resumption or store.command('resume', run_id)}"
        return
    if (said := next((one for one in unread if one.body.get("call") == question.key), None)) is not None:
        yield f"      answered   {said.kind} by {shown(said.by or 'unknown', 80)}, not read yet"
        return
    for command, meaning in answers(store, run_id, question, full=full):
        yield f"      {meaning}:"
        yield f"          {command}"


def _call(store: OpenStore, run_id: str, question: Question, *, full: bool) -> Iterator[str]:
    """Return the lines of the call: its tool, its arguments, and the reason of the question."""
    view = (CallView.complete if full else CallView.screen)(question.tool, question.arguments)
    yield f"  {question.key}  {view.tool}  {WHY.get(question.why, question.why)}"
    if view.hidden:
        count = many(view.hidden, "character")
        yield f"      {count} of this call are not shown here; to read all of it, with the digest that an answer needs:"
        yield f"          {complete(store, run_id)}"
    yield from (f"      {line}" for line in view.lines)
    if (verdict := question.verdict) is not None:
        detail = f", {verdict.detail}" if verdict.detail else ""
        said = f"{verdict.guard}: observed {verdict.observed}, limit {verdict.limit}{detail}"
        yield f"      rule       {shown(said, _LONGEST, keep='')}"
    if question.notice:
        yield f"      notice     {shown(question.notice, _LONGEST, keep='')}"
    if question.effect:
        yield f"      effect     {shown(question.effect, _LONGEST, keep='')}"
    if question.input is not None:
        yield from _form(request_of(question.input), full=full)
    if not view.hidden:
        yield f"      digest     {question.digest}"


def _form(request: InputRequest, *, full: bool) -> Iterator[str]:
    """Return the lines of a request for input, every character visible."""
    yield f"      asks       {shown(request.message, sys.maxsize if full else _MESSAGE, keep='')}"
    if request.url:
        yield f"      address    {shown(request.url, _MESSAGE, keep='')}"
        yield "                 (open it only if you trust it; it is never opened for you)"
    for one in form_fields(request.schema or {}):
        yield f"      field      {field_phrase(one)}"


def field_phrase(field: FormField) -> str:
    """Return a field in one line: its name, its type, and the values that it allows."""
    parts = [
        field.kind,
        "" if field.is_required else "optional",
        field.about,
        f"one of {', '.join(field.choices)}" if field.choices else "",
        "" if field.default is None else f"default {field.default}",
    ]
    about = "; ".join(shown(part, _LONGEST, keep="") for part in parts if part)
    return f"{shown(field.name, 80, keep='')} ({about})"


def as_json(store: OpenStore, run_id: str, question: Question, now: float) -> dict[str, Any]:
    """Return a question as plain data: the whole call, with the digest that an answer needs."""
    names = ("tool", "arguments", "digest", "effect", "why", "notice")
    return {
        "call": question.key,
        **{name: getattr(question, name) for name in names},
        "hidden_characters": hidden(question),
        "verdict": None if question.verdict is None else question.verdict._asdict(),
        "expires_at": question.expires_at or None,
        "expired": expired(question, now),
        "input": None if question.input is None else request_of(question.input).record(),
        "commands": [command for command, _ in answers(store, run_id, question, full=True)],
    }
