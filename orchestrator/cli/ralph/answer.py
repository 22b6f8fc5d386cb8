"""Answers to the questions of a session: from a file, from the person at the terminal, and from `ralph answer`.

A file is a JSON object or a TOML table of number and answer, or lines of `1.1: answer`; the name `*` stands for every
question that is not named. Questions without an answer stay open, and the planner is informed. Without a file and a
terminal the run is parked until a person answers.
"""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from orchestrator.cli import keyboard
from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.load import actor_name
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.ralph.session import AnyRun, SessionRun, opened, run_named
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.cli.screen import Screen
from orchestrator.cli.spread import spread
from orchestrator.errors import AnswerRefused, ConfigError
from orchestrator.files.bounded import read_file
from orchestrator.machines.ralph.model import PlanQuestion
from orchestrator.machines.ralph.questions import can_name
from orchestrator.runtime.service.answer import post_replies, replies

ALL = "*"


def read_answers(file: Path) -> Mapping[str, str]:
    """Read a file of answers, also to questions that are not asked yet. Raises ConfigError and OSError."""
    text = read_file(file).decode(errors="replace")
    try:
        if file.suffix == ".json":
            answers = _texts(json.loads(text), file)
        elif file.suffix == ".toml":
            answers = _texts(tomllib.loads(text), file)
        else:
            answers = _lines(text, file)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read ({error})") from error
    for name in answers:
        if name != ALL and not can_name(name):
            raise ConfigError(
                f"{file} answers {shown(name, 80)!r}, which no question can be named: 1.1 is the first one of cycle 1, "
                f"technical:1.1 that of plan.questions.technical.md, {ALL} every one that is not named"
            )
    return answers


def _lines(text: str, file: Path) -> Mapping[str, str]:
    answers: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        question, colon, answer = line.partition(": ")
        if not colon or not answer.strip():
            raise ConfigError(f"{file}:{number} is no answer; `1.1: the answer` would be one")
        if question.strip() in answers:
            raise ConfigError(f"{file}:{number} answers {shown(question.strip(), 80)} a second time")
        answers[question.strip()] = answer.strip()
    return answers


def _texts(found: Any, file: Path) -> Mapping[str, str]:
    if not isinstance(found, Mapping) or not all(isinstance(one, str) for one in found.values()):
        raise ConfigError(
            f'{file} holds no answers: an object of number and text, as {{"1.1": "the answer"}}'
        )
    return found


class AnswerSource:
    """Answers from a file and from the terminal. `answers` is None if there is no file."""

    def __init__(self, answers: Mapping[str, str] | None) -> None:
        self._answers = answers
        self.screen: Screen | None = None
        """It is not updated while a person types."""

    @property
    def port(self) -> Any:
        """The value of the option `answer` of a Ralph."""
        park: Literal["park"] = "park"
        return self if self._answers is not None or (self.screen is not None and keyboard.present()) else park

    async def __call__(self, questions: Sequence[PlanQuestion]) -> Mapping[str, str]:
        """Return the answers from the file and from the terminal."""
        given = self._answers or {}
        said = {one.id: given.get(one.id, given.get(ALL, "")) for one in questions}
        missing = [one for one in questions if not said[one.id].strip()]
        if missing and self.screen is not None and keyboard.present():
            with self.screen.still():
                for one in missing:  # an empty line leaves a question open
                    about = f" ({one.category})" if one.category else ""
                    say(f"\n{one.id}{shown(about)} {shown(one.text)}")
                    say("type the answer, or nothing to leave it open:")
                    line = await keyboard.line()
                    if line is None:
                        break
                    said[one.id] = line
        return {name: text for name, text in said.items() if text.strip()}


@spread
def answer(
    run: AnyRun = None,
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="The question, as in 1.1.", show_default=False)
    ] = None,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The answer.", show_default=False)
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="A file of answers, as for `run --answers`."),
    ] = None,
    by: given.By = None,
    at: given.JournalOptions,
) -> int:
    """Answer a question of a run; without an answer, list the questions.

    `resume` continues a run that was parked.
    """
    if question is not None and (text is None) == (file is None):
        raise ConfigError("give the answer as TEXT, or a --file of answers instead of a question")

    async def work(store: OpenStore) -> tuple[SessionRun, tuple[PlanQuestion, ...], Mapping[str, str]]:
        found = await run_named(store, run)
        actor = actor_name(by) or "unknown"
        kept = await replies(store.journal, found.stored)
        told = {name: str(posted.body["answers"][name]) for name, posted in kept.items()}
        questions = tuple(
            replace(one, answer=told[one.id]) if one.answer is None and one.id in told else one
            for one in opened(found.session).questions()
        )
        said: Mapping[str, str] = {}
        if file is not None:
            said = read_answers(file)
        elif question is not None:
            said = {question: text or ""}
        mine = {name: reply for name, reply in told.items() if kept[name].by == actor}
        answers = _accepted(said, questions, mine)
        if not answers:
            return found, questions, answers
        if found.head.status == "ended":  # only its session file contains the answer
            opened(found.session).answer(answers, actor)
            return found, questions, answers
        try:
            await post_replies(store.journal, found.head.run_id, answers, actor, time.time())
        except AnswerRefused as error:
            raise ConfigError(shown(str(error), 400)) from None
        return found, questions, answers

    found, questions, answers = at_journal(at.journal, work)
    waiting = [one for one in questions if one.answer is None and one.id not in answers]
    if at.json:
        asked = [{"id": one.id, "text": one.text, "category": one.category} for one in waiting]
        say_json({"run_id": found.head.run_id, "answered": sorted(answers), "questions": asked})
        return Exit.COMPLETED
    for name, reply in answers.items():
        say(f"{name}  {shown(reply)}")
    for one in waiting:
        say(f"{one.id}  {shown(one.text)}  (waits)")
    if not waiting and not answers:
        say("no question waits")
    return Exit.COMPLETED


def _accepted(
    said: Mapping[str, str], questions: tuple[PlanQuestion, ...], mine: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the answers to open questions, and those that repeat `mine`. Raises ConfigError for others."""
    open_ones = [one.id for one in questions if one.answer is None]
    for name, text in said.items():
        if name not in {ALL, *open_ones} and mine.get(name) != text:
            answered = any(one.id == name for one in questions)
            why = "is answered already" if answered else "is no question"
            raise ConfigError(f"{shown(name, 80)!r} {why}; waiting: {', '.join(open_ones) or 'none'}")
        if not text.strip():
            raise ConfigError(f"the answer to {shown(name, 80)} is empty")
    every = said.get(ALL, "")
    repeated = {name: text for name, text in said.items() if mine.get(name) == text}
    return repeated | {name: text for name in open_ones if (text := said.get(name, every))}
