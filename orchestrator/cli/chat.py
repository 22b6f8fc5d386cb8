"""`orchestrator chat`: prompts of a person at the terminal, and the runs that answer them.

The command has the agent, the journal and the earlier prompts of the conversation; a session reads one prompt after the
other and shows its run, with its questions.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeAlias

import typer

from orchestrator.cli import keyboard
from orchestrator.cli import option as given
from orchestrator.cli.exit import EXIT_CODES, Exit, beginning
from orchestrator.cli.fleet import made
from orchestrator.cli.keyboard import LineReader, line_reader
from orchestrator.cli.launch import Launch, LoadedParts
from orchestrator.cli.load import limits_from
from orchestrator.cli.loop import on_signal, run_async
from orchestrator.cli.output import complain, json_text, say, shown
from orchestrator.cli.run import TextPrinter, complain_of_tools, logging_to, new_id, note_of
from orchestrator.cli.runs import question
from orchestrator.cli.runs.question import answer_typed, answered_here
from orchestrator.cli.runs.store import OpenStore, journal_file
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import project_settings
from orchestrator.errors import ConfigError, JournalError, OrchestratorError
from orchestrator.events import QuestionAnswered, QuestionAsked, RunEvent, RunSuspended
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.kernel.fact import Observer
from orchestrator.machines.question import Question
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.run_stream import RunStream


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """The command line of `chat`."""

    agent: given.AgentOptions
    made_by: Annotated[
        str | None,
        typer.Option(
            "--agent",
            metavar="MODULE:FUNCTION",
            help="An agent of yours: a function of the journal, or of the journal and the observers.",
        ),
    ] = None
    limits: given.Limits = ()
    conversation: given.Conversation = None
    log: given.Log = None
    journal: given.Journal = None


MakeAgent: TypeAlias = Callable[[StoredJournal, Sequence[Observer]], AbstractAsyncContextManager[Any]]

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the chat; a run at work stays open and can be resumed."""


@spread
def chat(options: ChatOptions) -> int:
    """Talk to an agent in the terminal.

    Each line is a prompt, and its answer is printed as it comes. Ctrl-C cancels the answer, Ctrl-D leaves; questions
    of the run are asked here. The conversation is in the journal: --conversation continues one. From a pipe each line
    is a prompt, and the exit code is that of the last run.
    """
    conversation = new_id(options.conversation, "conversation_id")
    described = vars(options.agent)
    if (target := options.made_by) is not None:
        told = [name for name, value in described.items() if value] + ["limits"] * bool(options.limits)
        if told:
            raise ConfigError(
                f"{', '.join(told)}: these describe an agent, and --agent names one that is complete; leave them out"
            )

        def make(journal: StoredJournal, observers: Sequence[Observer]) -> AbstractAsyncContextManager[Any]:
            return nullcontext(made(target, journal, observers))

    else:
        settings = project_settings()
        launch = Launch.here(settings, **described)
        parts, limits = LoadedParts.of(launch), limits_from(options.limits, settings.limits)

        def make(journal: StoredJournal, observers: Sequence[Observer]) -> AbstractAsyncContextManager[Any]:
            return launch.agent(parts, journal=journal, observers=observers, limits=limits)

    with logging_to(options.log, project_settings().log_level) as logs:
        return run_async(_chat(options, make, conversation, logs))


async def _chat(options: ChatOptions, make: MakeAgent, conversation: str, logs: Sequence[Observer]) -> int:
    store, task = (
        OpenStore(journal_at(journal_file(options.journal)), options.journal),
        asyncio.current_task(),
    )
    with on_signal(lambda: task and task.cancel(), _ENDING):
        try:
            async with AsyncExitStack() as stack:
                with beginning():
                    await stack.enter_async_context(store.journal)
                agent = await stack.enter_async_context(make(store.journal, logs))
                if not isinstance(agent, Agent):
                    raise ConfigError(f"the agent is a {type(agent).__name__}; chat talks to an Agent")
                with beginning():
                    earlier = await _earlier(store, conversation)
                session = ChatSession(agent, store, line_reader(earlier), conversation)
                if keyboard.present():
                    say(f"conversation {shown(conversation)}, journal {shown(str(store.journal.address))}")
                    say("/help lists the commands, Ctrl-D leaves")
                return await session.converse()
        except asyncio.CancelledError:
            return Exit.CANCELLED


async def _earlier(store: OpenStore, conversation: str) -> list[str]:
    """Return the prompts of a conversation so far. A run that is still open is mentioned."""
    newest = await store.journal.newest(conversation)
    if newest is None:
        return []
    if newest.status != "ended":
        command = store.command("resume", newest.run_id)
        complain(f"the last run of this conversation is open; `{command}` continues it")
        return []
    result = await store.runs.result(newest.run_id)
    return [message.text for message in result.messages if message.role == "user"]


HELP = """/new     start another conversation
/resume  continue the run that was left at its question
/quit    leave (as Ctrl-D)
/help    this list
Ctrl-C cancels the answer at work; at a question it leaves the run parked. Every other line is a prompt."""


class ChatSession:
    """Reads prompts and answers each with a run of the conversation.

    Args:
        agent: The agent.
        store: Its journal, open.
        reader: The source of prompts.
        conversation: Id of the conversation.
    """

    def __init__(self, agent: Agent, store: OpenStore, reader: LineReader, conversation: str) -> None:
        self._agent = agent
        self._store = store
        self._reader = reader
        self.conversation = conversation
        self._parked: str | None = None
        """Id of the last run that was left at its question."""

    async def converse(self) -> int:
        """Answer prompts until the end of the input, and return the exit code of the last run."""
        code: int = Exit.COMPLETED
        while True:
            try:
                line = await self._reader.read()
            except KeyboardInterrupt:
                say("Ctrl-D or /quit leaves the chat")
                continue
            if line is None or line.strip() == "/quit":
                return code
            if line.strip():
                is_command = line.strip() in {"/new", "/resume", "/help"}
                code = await (self._obey(line.strip()) if is_command else self._answer(line))

    async def _obey(self, command: str) -> int:
        if command == "/new":
            self.conversation = new_id(None)
            say(f"conversation {self.conversation}")
        elif command == "/resume":
            run_id, self._parked = self._parked, None
            if run_id is not None:
                return await self._follow(run_id, self._agent.stream_resume(run_id))
            say("no run was left at its question")
        else:
            say(HELP)
        return Exit.COMPLETED

    async def _answer(self, prompt: str) -> int:
        """Run one prompt."""
        run_id = new_id(None)
        stream = self._agent.stream(prompt, run_id=run_id, conversation_id=self.conversation)
        return await self._follow(run_id, stream)

    async def _follow(self, run_id: str, stream: RunStream[Any, Result]) -> int:
        """Print a run to its end. An error of the run is printed; an error of the journal ends the chat."""
        try:
            result = await self._run(run_id, stream)
        except JournalError:
            raise
        except OrchestratorError as error:
            complain(shown(str(error), 4_000))
            return Exit.FAILED
        if result is None:
            return Exit.CANCELLED
        complain_of_tools(result.tool_errors)
        if (note := note_of(result)) is not None:
            complain(note)
        return EXIT_CODES[result.outcome]

    async def _run(self, run_id: str, stream: RunStream[Any, Result]) -> Result | None:
        """Return the result of a run; None if Ctrl-C came at a question, which leaves the run parked."""
        printer, questions = TextPrinter(run_id), _Questions(self._agent, self._store)
        async with stream:
            asking = asyncio.create_task(questions.answer(), name="questions of the run")
            reading = asyncio.ensure_future(_read(stream, printer, questions))
            try:
                with on_signal(partial(self._interrupt, run_id, questions, reading), (signal.SIGINT,)):
                    result = await reading
            except asyncio.CancelledError:
                if not questions.left:
                    raise
                here = ""
                if any(asking == run_id for asking, _ in questions.asking):
                    self._parked, here = run_id, "/resume continues it; "
                command = self._store.command("show", run_id)
                complain(f"run {run_id} stays parked with its question; {here}`{command}` shows it")
                return None
            finally:
                asking.cancel()
                with suppress(asyncio.CancelledError):
                    await asking
        if not printer.answered and result.output not in (None, ""):
            text = result.output if isinstance(result.output, str) else json_text(result.output, indent=2)
            say(shown(text, 100_000))
        return result

    def _interrupt(self, run_id: str, questions: _Questions, reading: asyncio.Future[Result]) -> None:
        """Leave a run parked that asks the person at the terminal, and cancel any other."""
        if questions.asking:
            questions.left = True
            reading.cancel()
        else:
            self._agent.hosting.ask(run_id, "cancel", by="caller", why="signal")


async def _read(stream: RunStream[Any, Result], printer: TextPrinter, questions: _Questions) -> Result:
    async for event in stream:
        printer.show(event)
        questions.observe(event)
    return await stream.result()


class _Questions:
    """The open questions of one run and of its child runs, asked one after another."""

    def __init__(self, agent: Agent, store: OpenStore) -> None:
        self._agent = agent
        self._store = store
        self._parked: asyncio.Queue[str] = asyncio.Queue()
        self._answered: defaultdict[tuple[str, str], asyncio.Event] = defaultdict(asyncio.Event)
        self.asking: set[tuple[str, str]] = set()
        """Run id and key of the questions that wait for the person at the terminal."""
        self.left = False
        """Whether the person left the run at a question."""

    def observe(self, event: RunEvent) -> None:
        """Record that a question was asked or answered, or that a run waits for an answer."""
        if isinstance(event, QuestionAsked):
            self._answered[event.run_id, event.key].clear()  # a call may ask several times
        elif isinstance(event, RunSuspended):
            self._parked.put_nowait(event.run_id)
        elif isinstance(event, QuestionAnswered):
            self._answered[event.run_id, event.key].set()
            self.asking.discard((event.run_id, event.key))

    async def answer(self) -> None:
        """Print the questions of each run that waits, and read the answers of a person; until cancelled."""
        while True:
            run_id = await self._parked.get()
            for one in await self._agent.pending(run_id):
                if one.run_id == run_id:  # a child run is in the queue itself
                    await self._decide(run_id, one)

    async def _decide(self, run_id: str, asked: Question) -> None:
        here = answered_here(asked)
        say("\n".join(question.described(self._store, run_id, asked, (), time.time(), here=here)))
        if here:
            work = run_id, asked.key
            self.asking.add(work)
            if await answer_typed(self._agent, self._store, run_id, asked, self._answered[work]):
                self.asking.discard(work)
