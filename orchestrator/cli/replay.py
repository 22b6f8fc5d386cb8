"""`orchestrator replay`: recorded conversations, driven through the real Agent one after the other.

All messages are from our own runs: the first run starts from the recorded prompt, each later one from the history
of our previous run. A conversation is played while that history equals the recorded one. After the first difference
the recording contains no valid replies.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit
from orchestrator.cli.load import limits_from, members_of
from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import complain, is_terminal, say, say_json, shown
from orchestrator.cli.run import logging_to
from orchestrator.cli.screen import RunTally, Screen, console, print_report, states_table
from orchestrator.cli.spread import spread_options
from orchestrator.errors import ConfigError, OrchestratorError, RunUnknown
from orchestrator.examples import bundled
from orchestrator.kernel.fact import Fact, Observer
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.providers.replay import (
    INDEX_FILE,
    IRREGULAR,
    OPEN_END,
    REPRODUCED,
    UNUSABLE,
    ProviderRecord,
    ReplayError,
    ReplayLLM,
    ReplayTools,
    RunScript,
    differences,
    expectation,
    irregularities,
    scan,
    split_runs,
)
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result

DIVERGED = "diverged"
"""The result differs from the recording: a limit ended the run, or our behaviour is not that of the recorded agent."""
CANCELLED = "cancelled"
"""The replay was stopped in this conversation."""

_ALWAYS_COUNTED = (REPRODUCED, OPEN_END, IRREGULAR, UNUSABLE)
_FAULTS = {UNUSABLE: Exit.USAGE, DIVERGED: Exit.FAILED}
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


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The command line of `replay`."""

    paths: Annotated[
        tuple[Path, ...],
        typer.Argument(
            metavar="PATH", help="Files or folders of conversations as JSON lines; index.jsonl is skipped."
        ),
    ] = ()
    bundled: Annotated[
        bool, typer.Option("--bundled", help="The conversations that come with the library.")
    ] = False
    live: Annotated[
        bool, typer.Option("--live", help="Show each state as it passes, at a watchable pace.")
    ] = False
    speed: Annotated[
        float | None,
        typer.Option(
            metavar="FACTOR",
            help="Wait this share of the recorded times: 1 as long as it took, 0 not at all. Default: 0; with "
            "--live at most 1, and less where that would take over ten seconds.",
        ),
    ] = None
    limits: given.Limits = ()
    log: given.Log = None
    json: given.Json = False


@spread_options
def replay_conversations(options: ReplayOptions) -> int:
    """Replay recorded conversations through the real state machine.

    Models and tools return the recorded replies. Each turn of the user is one run, which continues our own
    history. No limit applies unless given. The result of a conversation is one of:

    \b
    reproduced              our messages equal the recorded ones
                            (role, content, calls, ids, arguments, order)
    reproduced_to_open_end  the same, up to the end of a recording
                            without the model's answer
    irregular               the loop cannot produce the recording, `irregular`
                            lists why; played while our messages equal
                            the recorded ones
    unusable                no conversation, `reason` says why;
                            the others are played; exit code 2
    diverged                ours differ, `reason` says where; exit code 1
    cancelled               the replay was stopped here; exit code 6

    --json prints one object a line: id, file, result, irregular, runs, messages (OpenAI form; ours, up to
    the end of the recording), and reason if there is one. Each of runs has outcome, reason, error,
    transitions (how many) and states (visits of each).
    """  # noqa: D301 - the mark of a paragraph that is not rewrapped
    paths = [*options.paths, *(bundled() if options.bundled else ())]
    if not paths:
        raise ConfigError("nothing to replay: give a PATH, or --bundled")
    if options.json and options.live:
        raise ConfigError("--live is for watching and --json prints data; give one of them")
    if options.speed is not None and not 0 <= options.speed < math.inf:
        raise ConfigError(f"speed is {options.speed:g}; it must be 0 (do not wait) or more")
    for path in paths:
        if not path.is_dir():
            path.open("rb").close()
        elif not any(file.name != INDEX_FILE for file in path.glob("*.jsonl")):
            raise ConfigError(f"{path}: no conversations here (*.jsonl, {INDEX_FILE} left out)")
    limits = limits_from(options.limits, members_of(OFF))
    found = (one for path in paths for one in scan(path))

    def show(done: Reproduction) -> None:
        if options.json:
            say_json(done.as_json())
        elif not options.live:  # there the stage shows it
            why = ", ".join(done.irregular) or done.reason
            runs = f"{len(done.runs)} run{'' if len(done.runs) == 1 else 's'}"
            say(f"{done.result:<22}  {runs:>8}  {shown(done.id)}" + (f"  ({shown(why)})" if why else ""))

    with logging_to(options.log) as logs:
        if options.live:
            records, factor = pace(found, options.speed)
            stage = LiveStage(len(records))
            player = ConversationPlayer(limits, stage=stage, observers=logs, speed=factor)
            counts = asyncio.run(player.play_all(records, show))
            stage.close(counts.summary())
        else:
            speed = options.speed or 0.0
            player = ConversationPlayer(limits, stage=ReplayStage(), observers=logs, speed=speed)
            counts = asyncio.run(player.play_all(found, show))
            if not options.json:
                say(counts.summary())
    if player.stopped:
        complain("cancelled by a signal")
        return Exit.CANCELLED
    for kind, code in _FAULTS.items():
        if count := counts.results[kind]:
            worst, total = counts.first[kind], counts.results.total()
            complain(f"{count} of {total} conversations {kind}; the first, {worst.id}: {worst.reason}")
            return code
    return Exit.COMPLETED


@dataclass(slots=True)
class Reproduction:
    """The result of one conversation."""

    id: str
    file: str
    result: str
    irregular: tuple[str, ...] = ()
    runs: list[Result] = field(default_factory=list)
    messages: Sequence[Message] = ()
    """Our messages, up to the end of the recording, without results that only close calls without a recorded answer."""
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        runs = []
        for run in self.runs:
            path = run.transitions
            visits = [step.source for step in path[:1]] + [step.dest for step in path if not step.internal]
            runs.append(
                {
                    "outcome": run.outcome.value,
                    "reason": run.reason,
                    "error": None if run.error is None else str(run.error),
                    "transitions": path[-1].seq if path else 0,
                    "states": dict(Counter(visits)),
                }
            )
        data: dict[str, Any] = {
            "id": self.id,
            "file": self.file,
            "result": self.result,
            "irregular": list(self.irregular),
            "runs": runs,
            "messages": [message.to_openai() for message in self.messages],
        }
        return data | {"reason": self.reason} if self.reason else data


@dataclass(slots=True)
class ReplayCounts:
    """Counts of results, and the first fault of each kind."""

    results: Counter[str] = field(default_factory=Counter)
    first: dict[str, Reproduction] = field(default_factory=dict)

    def add(self, done: Reproduction) -> None:
        """Count one result."""
        self.results[done.result] += 1
        self.first.setdefault(done.result, done)

    def summary(self) -> str:
        """Return the counts in one line."""
        kinds = [*_ALWAYS_COUNTED, *(kind for kind in (DIVERGED, CANCELLED) if self.results[kind])]
        counts = ", ".join(f"{self.results[kind]} {kind}" for kind in kinds)
        return f"{self.results.total()} conversations: {counts}"


class ReplayStage:
    """The display of the runs of a conversation; this one shows nothing."""

    observers: Sequence[Observer] = ()

    def begin(self, record: ProviderRecord) -> None:
        """Start a conversation."""

    def turn(self, script: RunScript) -> AbstractContextManager[None]:
        """Enclose one run."""
        del script
        return nullcontext()

    def answered(self, result: Result) -> None:
        """Show the result of one run."""

    def end(self, done: Reproduction) -> None:
        """End a conversation."""

    def skip(self, done: Reproduction) -> None:
        """Skip a line that holds no conversation."""


class ConversationPlayer:
    """Plays conversations one after the other. `stop` ends the run in flight and everything after it."""

    def __init__(
        self, limits: Limits, *, stage: ReplayStage, observers: Iterable[Observer] = (), speed: float = 0.0
    ) -> None:
        self.stopped = False
        self._limits = limits
        self._stage = stage
        self._observers = (*stage.observers, *observers)
        self._speed = speed
        self._live: tuple[Agent, str] | None = None

    def stop(self) -> None:
        """Cancel the current run; start no further one."""
        self.stopped = True
        if self._live is not None:
            agent, run_id = self._live
            with suppress(RunUnknown):  # it has just ended
                agent.cancel(run_id, why="signal")

    async def play_all(
        self, found: Iterable[ProviderRecord | ReplayError], show: Callable[[Reproduction], None]
    ) -> ReplayCounts:
        """Play the conversations until a signal, and show the result of each."""
        counts = ReplayCounts()
        with on_signal(self.stop):
            for one in found:
                if self.stopped:
                    break
                done = await self.play(one)
                counts.add(done)
                show(done)
        return counts

    async def play(self, record: ProviderRecord | ReplayError) -> Reproduction:
        """Play one conversation. If it cannot be read, or our own API rejects it, it is unusable."""
        if isinstance(record, ReplayError):
            name = record.file.replace("\\", "/").rpartition("/")[2]
            line = "" if record.line is None else f"-{record.line}"
            done = Reproduction(
                f"{name.rpartition('.')[0] or name}{line}", name, UNUSABLE, reason=str(record)
            )
            self._stage.skip(done)
            return done
        self._stage.begin(record)
        try:
            done = await self._played(record)
        except OrchestratorError as error:
            done = Reproduction(record.id, record.file, UNUSABLE, reason=str(error))
        self._stage.end(done)
        return done

    async def _played(self, record: ProviderRecord) -> Reproduction:
        agent = Agent(
            ReplayLLM(record, speed=self._speed),
            tools=ReplayTools(record, speed=self._speed),
            limits=self._limits,
            observers=self._observers,
        )
        scripts = split_runs(record)
        ours: Sequence[Message] = scripts[0].history if scripts else ()
        done = Reproduction(record.id, record.file, IRREGULAR, irregularities(record.messages))
        for script in scripts:
            await asyncio.sleep(0)  # replies do not wait, but signal handlers need a turn of the loop
            if self.stopped:
                break
            run_id = uuid4().hex
            self._live = agent, run_id
            try:
                with self._stage.turn(script):
                    result = await agent.run([*ours, *script.prompt], run_id=run_id)
            finally:
                self._live = None
            self._stage.answered(result)
            done.runs.append(result)
            ours = result.messages[: script.stop]
            closed = len(result.messages) > script.stop and script is not scripts[-1]
            if closed or next(differences(record.messages[: script.stop], ours), None) is not None:
                break
        done.messages = ours
        last = done.runs[-1] if done.runs else None
        expected = expectation(record)
        if (self.stopped and len(done.runs) < len(scripts)) or (
            last is not None and last.outcome is Outcome.CANCELLED
        ):
            done.result, done.reason = CANCELLED, "stopped by a signal"
        elif expected == IRREGULAR:
            done.result = IRREGULAR
        elif (difference := next(differences(record.messages, done.messages), None)) is None:
            done.result = expected
        else:
            ended = f"; the run ended as {last.outcome} ({last.reason})" if last is not None else ""
            done.result, done.reason = DIVERGED, f"{difference}{ended}"
        return done


def pace(
    found: Iterable[ProviderRecord | ReplayError], speed: float | None
) -> tuple[list[ProviderRecord | ReplayError], float]:
    """Return the conversations with a time for every reply, and the factor to wait by."""
    paced: list[ProviderRecord | ReplayError] = []
    whole = 0.0
    for one in found:
        if not isinstance(one, ReplayError):
            replies = [index for index, message in enumerate(one.messages) if message.role == "assistant"]
            turns = {index: one.turn(index) for index in replies}
            turns = {at: replace(turn, latency=turn.latency or PAUSE) for at, turn in turns.items()}
            one = replace(one, turns=turns)  # noqa: PLW2901 - the same conversation, with times
            whole += sum(turn.latency for turn in turns.values()) + sum(one.tool_seconds.values())
        paced.append(one)
    if speed is not None:
        return paced, speed
    return paced, min(1.0, MOST / whole) if whole else 1.0


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
        command = "orchestrator"
        if Path(sys.argv[0]).name == "__main__.py":
            python, here = Path(sys.executable), Path.cwd()
            near = python.relative_to(here) if python.is_relative_to(here) else "python"
            command = f"{near} -m orchestrator"
        say(_HINT.format(orchestrator=command))
