"""`orchestrator replay --live`: each conversation in its recorded time, at a pace that a person can follow."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator.cli.output import is_terminal, say, shown
from orchestrator.cli.reproduction import ReplayStage, Reproduction
from orchestrator.cli.screen import RunTally, Screen, console, print_report, states_table
from orchestrator.kernel.record import Fact
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.providers.replay import ProviderRecord, ReplayError, RunScript
from orchestrator.runtime.llm_loop.result import Result

PAUSE = 0.2
"""Seconds for a reply whose time was not recorded."""
MOST = 10.0
"""Most seconds of all waits together, unless a speed is given."""

_HINT = """
With a model of your own, put this into my_agent.py and run the line below it:

    async def model(request):            # has request.messages and request.tools
        return "Hello from my model."    # text, or a Response with tool calls

    {orchestrator} run "Hello" --model python:my_agent:model
"""


def _invocation() -> str:
    """Return the command line that starts this program from here."""
    if Path(sys.argv[0]).name != "__main__.py":
        return "orchestrator"
    python = Path(sys.executable)
    near = python.is_relative_to(Path.cwd())
    return f"{python.relative_to(Path.cwd()) if near else 'python'} -m orchestrator"


def pace(
    found: Iterable[ProviderRecord | ReplayError], speed: float | None
) -> tuple[list[ProviderRecord | ReplayError], float]:
    """Return the conversations with a time for every reply, and the factor to wait by."""
    paced = [one if isinstance(one, ReplayError) else _timed(one) for one in found]
    if speed is not None:
        return paced, speed
    whole = sum(_seconds(one) for one in paced if isinstance(one, ProviderRecord))
    return paced, min(1.0, MOST / whole) if whole else 1.0


def _timed(record: ProviderRecord) -> ProviderRecord:
    replies = [index for index, message in enumerate(record.messages) if message.role == "assistant"]
    turns = {index: record.turn(index) for index in replies}
    return replace(
        record, turns={at: replace(turn, latency=turn.latency or PAUSE) for at, turn in turns.items()}
    )


def _seconds(record: ProviderRecord) -> float:
    return sum(turn.latency for turn in record.turns.values()) + sum(record.tool_seconds.values())


class LiveStage(ReplayStage):
    """Prints prompt, states, tools, tokens and answer of each run; times of each state after each conversation."""

    def __init__(self, count: int) -> None:
        self.observers = (self,)
        self._count = count
        self._number = 0
        self._whole = RunTally()
        self._screen = Screen(LLM_LOOP, lambda: None)  # the next heading detects a closed output pipe

    def observe(self, fact: Fact) -> None:
        """Show a fact."""
        self._whole.observe(fact)
        self._screen.observe(fact)

    def begin(self, record: ProviderRecord) -> None:
        """Print the heading."""
        self._screen = Screen(LLM_LOOP, lambda: None)
        self._heading(f"{record.id}, {record.model}" if record.model else record.id)

    def skip(self, done: Reproduction) -> None:
        """Print why a conversation is not played."""
        self._heading(done.id)
        say(f"\n{done.result}: {shown(done.reason)}")

    def _heading(self, text: str) -> None:
        if not self._number:
            say(f"Recorded times are kept; a reply whose time was not recorded takes {PAUSE:g} s.")
        self._number += 1
        say(f"\n=== {self._number} of {self._count}: {shown(text)}")

    @contextmanager
    def turn(self, script: RunScript) -> Iterator[None]:
        """Print the message of the user, then the states of the run."""
        for message in script.prompt:
            if message.role == "user":
                say(f"\nuser: {shown(message.text, 600)}\n")
        with self._screen.showing():
            yield

    def answered(self, result: Result) -> None:
        """Print the answer, or why there is none."""
        said = result.output if isinstance(result.output, str) else ""
        if said:
            say(f"\nassistant: {shown(said, 1_200)}")
        if result.error is not None:
            say(f"\nno answer: {shown(str(result.error))}")

    def end(self, done: Reproduction) -> None:
        """Print the result of the conversation and its times."""
        why = f" ({', '.join(done.irregular) or done.reason})" if done.irregular or done.reason else ""
        say(f"\n{done.result}{why}: {len(done.messages)} messages; {self._screen.tally.totals()}")
        if not is_terminal():  # on a terminal the table above shows them already
            console().print(states_table(self._screen.tally.history))

    def close(self, summary: str) -> None:
        """Print the report over all conversations, and the next commands."""
        say(f"\n=== report: {self._whole.totals()}")
        print_report(self._whole.history, self._whole.ends)
        say(f"  {summary}")
        say(_HINT.format(orchestrator=_invocation()))
