"""Answers to the questions of a session: from a file, then from the person at the terminal.

A file is a JSON object or a TOML table of number and answer, or lines of `1.1: answer`; the name `*` stands for every
question that is not named. Questions without an answer stay open, and the planner is informed. Without a file and a
terminal the run is parked until a person answers.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from orchestrator.cli import keyboard
from orchestrator.cli.output import say, shown
from orchestrator.cli.screen import Screen
from orchestrator.errors import ConfigError
from orchestrator.files.bounded import read_file
from orchestrator.machines.ralph.ports import PlanQuestion
from orchestrator.machines.ralph.questions import can_name

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
                said.update(await _typed(missing))
        return {name: text for name, text in said.items() if text.strip()}


async def _typed(questions: Sequence[PlanQuestion]) -> Mapping[str, str]:
    """Ask at the terminal, one question after the other; an empty line leaves a question open."""
    said: dict[str, str] = {}
    for one in questions:
        about = f" ({one.category})" if one.category else ""
        say(f"\n{one.id}{shown(about)} {shown(one.text)}")
        say("type the answer, or nothing to leave it open:")
        line = await keyboard.line()
        if line is None:
            break
        said[one.id] = line
    return said
