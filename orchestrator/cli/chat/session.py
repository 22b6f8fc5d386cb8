"""One chat: prompts of a person, and the runs that answer them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import Any

from orchestrator.cli import keyboard
from orchestrator.cli.chat.line_reader import LineReader
from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import complain, json_text, say, shown
from orchestrator.cli.run import TextPrinter, new_id, note_of
from orchestrator.cli.runs import question
from orchestrator.cli.runs.question import TYPED, answer_typed
from orchestrator.cli.runs.store import OpenStore
from orchestrator.errors import JournalError, OrchestratorError
from orchestrator.events import QuestionAnswered, QuestionAsked, RunEvent, RunSuspended
from orchestrator.machines.question import Question
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.run_stream import RunStream

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
                code = await self._obey(line.strip()) if _is_command(line) else await self._answer(line)

    async def _obey(self, command: str) -> int:
        if command == "/new":
            self.conversation = new_id(None)
            say(f"conversation {self.conversation}")
        elif command == "/resume":
            return await self._resume()
        else:
            say(HELP)
        return Exit.COMPLETED

    async def _resume(self) -> int:
        """Continue the run that was left at its question."""
        run_id, self._parked = self._parked, None
        if run_id is None:
            say("no run was left at its question")
            return Exit.COMPLETED
        return await self._follow(run_id, self._agent.stream_resume(run_id))

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
                self._leave(run_id, questions)
                return None
            finally:
                asking.cancel()
                with suppress(asyncio.CancelledError):
                    await asking
        if not printer.answered and result.output not in (None, ""):
            text = result.output if isinstance(result.output, str) else json_text(result.output, indent=2)
            say(shown(text, 100_000))
        return result

    def _leave(self, run_id: str, questions: _Questions) -> None:
        """Say how a run continues that the person left at a question, of it or of a child run."""
        here = ""
        if any(asking == run_id for asking, _ in questions.asking):
            self._parked, here = run_id, "/resume continues it; "
        command = self._store.command("show", run_id)
        complain(f"run {run_id} stays parked with its question; {here}`{command}` shows it")

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
                await self._decide(run_id, one)

    async def _decide(self, run_id: str, asked: Question) -> None:
        say("\n".join(question.described(self._store, run_id, asked, (), time.time())))
        if keyboard.present() and asked.why in TYPED:
            work = run_id, asked.key
            self.asking.add(work)
            if await answer_typed(self._agent, self._store, run_id, asked, self._answered[work]):
                self.asking.discard(work)


def _is_command(line: str) -> bool:
    return line.strip() in {"/new", "/resume", "/help"}
