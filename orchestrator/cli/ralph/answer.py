"""`orchestrator ralph answer`: answer the questions of a session from the command line or from a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from orchestrator.cli.exit import Exit
from orchestrator.cli.load import actor_name
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.ralph.find import SessionRun, opened, run_named
from orchestrator.cli.ralph.human_input import ALL, read_answers
from orchestrator.cli.ralph_group import AnswerOptions
from orchestrator.cli.runs.store import OpenStore, at_journal
from orchestrator.errors import AnswerRefused, ConfigError
from orchestrator.machines.ralph.ports import PlanQuestion
from orchestrator.runtime.service.answer import post_replies, replies


def answer_questions(given: AnswerOptions) -> int:
    """Answer questions, or list the open ones. Raises ConfigError for a question that does not exist."""
    if given.question is not None and (given.text is None) == (given.file is None):
        raise ConfigError("give the answer as TEXT, or a --file of answers instead of a question")

    async def work(store: OpenStore) -> tuple[SessionRun, tuple[PlanQuestion, ...], Mapping[str, str]]:
        found = await run_named(store, given.run)
        by = actor_name(given.by) or "unknown"
        kept = await replies(store.journal, found.stored)
        told = {name: str(posted.body["answers"][name]) for name, posted in kept.items()}
        questions = tuple(
            replace(one, answer=told[one.id]) if one.answer is None and one.id in told else one
            for one in opened(found.session).questions()
        )
        mine = {name: text for name, text in told.items() if kept[name].by == by}
        answers = _answers(given, questions, mine)
        if answers:
            await _give(store, found, answers, by)
        return found, questions, answers

    found, questions, answers = at_journal(given.journal, work)
    waiting = [one for one in questions if one.answer is None and one.id not in answers]
    if given.json:
        asked = [{"id": one.id, "text": one.text, "category": one.category} for one in waiting]
        say_json({"run_id": found.head.run_id, "answered": sorted(answers), "questions": asked})
        return Exit.COMPLETED
    for name, text in answers.items():
        say(f"{name}  {shown(text)}")
    for one in waiting:
        say(f"{one.id}  {shown(one.text)}  (waits)")
    if not waiting and not answers:
        say("no question waits")
    return Exit.COMPLETED


def _answers(
    given: AnswerOptions, questions: tuple[PlanQuestion, ...], mine: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the answers to open questions, and those that repeat `mine`. Raises ConfigError for others."""
    open_ones = [one.id for one in questions if one.answer is None]
    said: Mapping[str, str] = {}
    if given.file is not None:
        said = read_answers(given.file)
    elif given.question is not None:
        said = {given.question: given.text or ""}
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


async def _give(store: OpenStore, found: SessionRun, answers: Mapping[str, str], by: str) -> None:
    """Post the answer to the waiting run; if the run has ended, only its session file contains the answer."""
    run_id = found.head.run_id
    if found.head.status == "ended":
        opened(found.session).answer(answers, by or "a person")
        return
    try:
        await post_replies(store.journal, run_id, answers, by, time.time())
    except AnswerRefused as error:
        raise ConfigError(shown(str(error), 400)) from None
