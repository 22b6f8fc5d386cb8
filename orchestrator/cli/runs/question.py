"""The questions of a run: the call in words and as data, the commands that answer it, and an answer that is typed.

A call is shown with one argument on each line, every character visible. The lines show the recorded JSON, without a
conversion by a parser: numbers keep their digits, and a name that occurs twice has two lines.
"""

from __future__ import annotations

import asyncio
import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.cli import keyboard
from orchestrator.cli.output import complain, say, shown
from orchestrator.cli.runs.phrase import many, moment, span
from orchestrator.cli.runs.store import OpenStore
from orchestrator.errors import AnswerRefused, RunError
from orchestrator.kernel.journal import Posted
from orchestrator.machines.question import Question
from orchestrator.telemetry.escape import escape
from orchestrator.tools.input_request import MISSING, FormField, field_value, form_fields, request_of

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop.agent import Agent

COLUMNS = 72
"""Width of a row: 80 columns without the indentation."""
ROWS = 12
"""Rows for all arguments: 24 lines without heading, digest and answers."""
VALUE_ROWS = 3
"""Most rows for one of them."""
LONGEST_TOOL = 72
"""Most characters of a tool's name."""


@dataclass(frozen=True, slots=True)
class CallView:
    """A call as lines. The same call has the same view in every command, so `hidden` is always the same."""

    tool: str
    lines: tuple[str, ...]
    hidden: int = 0
    """Characters of tool and arguments that are left out."""

    @classmethod
    def complete(cls, tool: str, arguments: str) -> CallView:
        """Return the whole call."""
        return cls(escape(tool, keep=""), tuple(_lines(arguments)))

    @classmethod
    def screen(cls, tool: str, arguments: str) -> CallView:
        """Return the part of the call that a screen of 80 columns and 24 lines shows."""
        whole = cls.complete(tool, arguments)
        lines: list[str] = []
        left, omitted = ROWS, 0
        hidden = max(len(whole.tool) - LONGEST_TOOL, 0)
        for line in whole.lines:
            part = _fitting(line, min(VALUE_ROWS, left))
            left -= -(-sum(map(_width, part)) // COLUMNS)  # its rows
            more = len(line) - len(part)
            hidden += more
            omitted += not part
            if part:
                lines.append(f"{part}… ({more:,} more characters)" if more else part)
        if omitted:
            lines.append(f"… ({omitted:,} more arguments)")
        return cls(whole.tool[:LONGEST_TOOL], tuple(lines), hidden)


class _Number(str):
    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    __slots__ = ()


def _lines(arguments: str) -> Iterator[str]:
    if not arguments.strip():
        return
    try:
        found = json.loads(
            arguments,
            object_pairs_hook=_Object,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_Number,
        )
        texts = [(name, _json(value)) for name, value in found] if isinstance(found, _Object) else None
    except (ValueError, RecursionError):
        texts = None
    for name, text in [("arguments", _json(arguments))] if texts is None else texts:
        yield escape(f"{name if name.isidentifier() else _json(name)} = {text}", keep="")


def _json(value: Any) -> str:
    match value:
        case _Number():
            return str(value)
        case _Object():
            return f"{{{', '.join(f'{_json(name)}: {_json(one)}' for name, one in value)}}}"
        case list():
            return f"[{', '.join(map(_json, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _fitting(line: str, rows: int) -> str:
    """Return the part of a line that fits into so many rows."""
    left = rows * COLUMNS
    for index, one in enumerate(line):
        left -= _width(one)
        if left < 0:
            return line[:index]
    return line


def _width(one: str) -> int:
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1


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
    named = bool(question.digest) and (digest or "").lower() == question.digest.lower()
    if not count or kind in FREE or named:
        return None
    return (
        f"{many(count, 'character')} of call {question.key} do not fit on a screen, so the answer needs the full "
        f"digest: `{complete(store, run_id)}` prints it after the whole call; nothing was posted"
    )


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
    here: bool = False,
) -> Iterator[str]:
    """Yield the lines of a question: the call, its deadline, and how to answer, or who answered.

    `resumption` resumes the run. Without `full`, a call that does not fit on a screen is cut, and its digest is not
    shown. With `here` the answer is typed at this terminal: one command stands for those that answer.
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
    if here:
        yield f"      elsewhere  {store.command('show', run_id)}"
        return
    for command, meaning in answers(store, run_id, question, full=full):
        yield f"      {meaning}:"
        yield f"          {command}"


def answered_here(question: Question) -> bool:
    """Return whether a person can answer the question at this terminal."""
    return keyboard.present() and question.why in TYPED


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
        request = request_of(question.input)
        message = shown(request.message, sys.maxsize if full else _MESSAGE, keep="")
        yield f"      asks       {message}"
        if request.url:
            yield f"      address    {shown(request.url, _MESSAGE, keep='')}"
            yield "                 (open it only if you trust it; it is never opened for you)"
        for one in form_fields(request.schema or {}):
            yield f"      field      {field_phrase(one)}"
    if not view.hidden:
        yield f"      digest     {question.digest}"


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


# ---- an answer that is typed at the terminal, unless another process answers first ----

TYPED = frozenset(("approval", "input"))
"""Reasons of the questions that are asked at the terminal."""
DECLINE = "/decline"

_NO = {"n": False, "no": False}
_ANSWERS = {"y": True, "yes": True, **_NO}
_WHY = "at the terminal"


class TypedAnswer(NamedTuple):
    """An answer of a person; `values` are those of a form."""

    accepted: bool
    values: Mapping[str, Any] | None = None


class NothingTyped(Exception):
    """The terminal is closed, or another process has answered."""


async def answer_typed(
    agent: Agent, store: OpenStore, run_id: str, asked: Question, elsewhere: asyncio.Event
) -> bool:
    """Read the answer to a question and give it to the run; return whether the question needs no person any more.

    An answer that does not fit the form is asked for again. `elsewhere` is set when another process has answered.
    """
    from orchestrator.cli.load import actor_name  # it imports the settings, which `runs show` does without

    while True:
        try:
            said = await _typed(store, run_id, asked, elsewhere)
        except NothingTyped:
            return elsewhere.is_set()
        try:
            about: dict[str, Any] = {"digest": asked.digest, "by": actor_name(None), "why": _WHY}
            if said.values is not None:
                await agent.respond(run_id, json.dumps(said.values), asked.key, **about)
            else:
                await (agent.approve if said.accepted else agent.reject)(run_id, asked.key, **about)
        except RunError as refused:
            # Another answer was earlier, the question has expired, or the form refuses it.
            complain(str(refused))
            if isinstance(refused, AnswerRefused) and refused.kind == "input":
                continue
        return True


async def _typed(store: OpenStore, run_id: str, asked: Question, elsewhere: asyncio.Event) -> TypedAnswer:
    """Return the typed answer. Raises NothingTyped."""
    tool = shown(asked.tool, LONGEST_TOOL, keep="")
    request = None if asked.input is None else request_of(asked.input)
    if request is None:
        return TypedAnswer(await _yes(store, run_id, asked, f"run {tool}?", elsewhere))
    if request.schema is None:
        asks = f"open the address yourself; continue {tool}?" if request.url else f"continue {tool}?"
        return TypedAnswer(await _yes(store, run_id, asked, asks, elsewhere))
    if hidden(asked) and not await _yes(store, run_id, asked, f"give input to {tool}?", elsewhere):
        return TypedAnswer(accepted=False)
    say(
        f"input for {tool}: a value for each field; an empty line takes the default or leaves the field out, {DECLINE} "
        "declines, Ctrl-C leaves the run parked; or answer from another terminal"
    )
    return await _typed_form(request.schema, form_fields(request.schema), elsewhere)


async def _yes(store: OpenStore, run_id: str, asked: Question, asks: str, elsewhere: asyncio.Event) -> bool:
    """Return whether yes or no was typed. Raises NothingTyped.

    Yes is `y`, or the full digest if the screen does not show the whole call.
    """
    answers = _ANSWERS
    means = "type y or n"
    if hidden(asked):
        answers = _NO | ({asked.digest.lower(): True} if asked.digest else {})
        means = f"type n, or the full digest that `{complete(store, run_id)}` prints"
    while True:
        say(f"{asks} {means}, or answer from another terminal:")
        said = (await _line(elsewhere)).lower()
        if said in answers:
            return answers[said]


async def _typed_form(
    schema: Mapping[str, Any], fields: Iterable[FormField], elsewhere: asyncio.Event
) -> TypedAnswer:
    """Return the values of a form, one field after the other. Raises NothingTyped."""
    values: dict[str, Any] = {}
    for one in fields:
        while True:
            say(f"{field_phrase(one)}:")
            text = await _line(elsewhere)
            if text == DECLINE:
                return TypedAnswer(accepted=False)
            try:
                value = field_value(schema, one.name, text)
            except ValueError as fault:
                say(f"  this does not fit: {shown(str(fault), 500, keep='')}")
                continue
            if value is not MISSING:
                values[one.name] = value
            break
    return TypedAnswer(accepted=True, values=values)


async def _line(elsewhere: asyncio.Event) -> str:
    """Return the next line that is typed. Raises NothingTyped."""
    typing = asyncio.ensure_future(keyboard.line())
    answered = asyncio.ensure_future(elsewhere.wait())
    try:
        await asyncio.wait((typing, answered), return_when=asyncio.FIRST_COMPLETED)
    finally:
        typing.cancel()
        answered.cancel()
    said = None if typing.cancelled() or not typing.done() else typing.result()
    if said is None:
        raise NothingTyped
    return said
