"""Yes or no to a question of a run, typed at the terminal, unless another process answers first."""

from __future__ import annotations

import asyncio

from orchestrator.cli import keyboard
from orchestrator.cli.output import say, shown
from orchestrator.cli.runs import question
from orchestrator.cli.runs.argument import LONGEST_TOOL
from orchestrator.cli.runs.store import OpenStore
from orchestrator.machines.llm_loop.model import Question

_NO = {"n": False, "no": False}
_ANSWERS = {"y": True, "yes": True, **_NO}


async def typed_answer(
    store: OpenStore, run_id: str, asked: Question, elsewhere: asyncio.Event
) -> bool | None:
    """Return whether yes or no was typed; None if the terminal is closed, or when `elsewhere` is set.

    Yes is `y`, or the full digest if the screen does not show the whole call.
    """
    answers = _ANSWERS
    means = "type y or n"
    if question.hidden(asked):
        answers = _NO | ({asked.digest.lower(): True} if asked.digest else {})
        means = f"type n, or the full digest that `{question.complete(store, run_id)}` prints"
    while True:
        say(f"run {shown(asked.tool, LONGEST_TOOL, keep='')}? {means}, or answer from another terminal:")
        typing = asyncio.ensure_future(keyboard.line())
        answered = asyncio.ensure_future(elsewhere.wait())
        try:
            await asyncio.wait((typing, answered), return_when=asyncio.FIRST_COMPLETED)
        finally:
            typing.cancel()
            answered.cancel()
        said = None if typing.cancelled() or not typing.done() else typing.result()
        if said is None:
            return None
        if said.lower() in answers:
            return answers[said.lower()]
