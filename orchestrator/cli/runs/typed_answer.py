"""The answer to a question of a run, typed at the terminal, unless another process answers first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from orchestrator.cli import keyboard
from orchestrator.cli.load import actor_name
from orchestrator.cli.output import complain, say, shown
from orchestrator.cli.runs import question
from orchestrator.cli.runs.argument import LONGEST_TOOL
from orchestrator.cli.runs.store import OpenStore
from orchestrator.errors import AnswerRefused, RunError
from orchestrator.machines.question import Question
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.input_form import MISSING, FormField, field_value, form_fields
from orchestrator.tools.input_request import request_of

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
    while True:
        try:
            said = await _typed(store, run_id, asked, elsewhere)
        except NothingTyped:
            return elsewhere.is_set()
        try:
            await _give(agent, run_id, asked, said)
        except RunError as refused:
            # Another answer was earlier, the question has expired, or the form refuses it.
            complain(str(refused))
            if isinstance(refused, AnswerRefused) and refused.kind == "input":
                continue
        return True


async def _give(agent: Agent, run_id: str, asked: Question, said: TypedAnswer) -> None:
    about: dict[str, Any] = {"digest": asked.digest, "by": actor_name(None), "why": _WHY}
    if said.values is not None:
        await agent.respond(run_id, json.dumps(said.values), asked.key, **about)
        return
    await (agent.approve if said.accepted else agent.reject)(run_id, asked.key, **about)


async def _typed(store: OpenStore, run_id: str, asked: Question, elsewhere: asyncio.Event) -> TypedAnswer:
    """Return the typed answer. Raises NothingTyped."""
    tool, hidden = shown(asked.tool, LONGEST_TOOL, keep=""), question.hidden(asked)
    request = None if asked.input is None else request_of(asked.input)
    if request is None:
        return TypedAnswer(await _yes(store, run_id, asked, f"run {tool}?", elsewhere))
    if request.schema is None:
        asks = f"open the address yourself; continue {tool}?" if request.url else f"continue {tool}?"
        return TypedAnswer(await _yes(store, run_id, asked, asks, elsewhere))
    if hidden and not await _yes(store, run_id, asked, f"give input to {tool}?", elsewhere):
        return TypedAnswer(accepted=False)
    say(
        f"input for {tool}: a value for each field; an empty line takes the default or leaves the field out, {DECLINE} "
        "declines, Ctrl-C leaves the run parked; or answer from another terminal"
    )
    return await _form(request.schema, form_fields(request.schema), elsewhere)


async def _yes(store: OpenStore, run_id: str, asked: Question, asks: str, elsewhere: asyncio.Event) -> bool:
    """Return whether yes or no was typed. Raises NothingTyped.

    Yes is `y`, or the full digest if the screen does not show the whole call.
    """
    answers = _ANSWERS
    means = "type y or n"
    if question.hidden(asked):
        answers = _NO | ({asked.digest.lower(): True} if asked.digest else {})
        means = f"type n, or the full digest that `{question.complete(store, run_id)}` prints"
    while True:
        say(f"{asks} {means}, or answer from another terminal:")
        said = (await _line(elsewhere)).lower()
        if said in answers:
            return answers[said]


async def _form(
    schema: Mapping[str, Any], fields: Iterable[FormField], elsewhere: asyncio.Event
) -> TypedAnswer:
    """Return the values of a form, one field after the other. Raises NothingTyped."""
    values: dict[str, Any] = {}
    for one in fields:
        while True:
            say(f"{question.field_phrase(one)}:")
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
