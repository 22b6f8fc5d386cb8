"""One chat: prompts of a person, and the runs that answer them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial

from orchestrator.cli import keyboard
from orchestrator.cli.actor import actor_name
from orchestrator.cli.chat.line_reader import LineReader
from orchestrator.cli.exit import EXIT_CODES, Exit
from orchestrator.cli.output import complain, json_text, say, shown
from orchestrator.cli.run import new_id, note_of
from orchestrator.cli.runs import question
from orchestrator.cli.runs.store import OpenStore
from orchestrator.cli.runs.typed_answer import typed_answer
from orchestrator.cli.stop import on_signal
from orchestrator.cli.streamed import TextPrinter
from orchestrator.errors import JournalError, OrchestratorError, RunError
from orchestrator.events import QuestionAnswered, QuestionAsked, RunEvent
from orchestrator.machines.llm_loop.model import Question
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result

HELP = """/new   start another conversation
/quit  leave (as Ctrl-D)
/help  this list
Ctrl-C cancels the answer at work. Every other line is a prompt."""


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
        else:
            say(HELP)
        return Exit.COMPLETED

    async def _answer(self, prompt: str) -> int:
        """Run one prompt. An error of the run is printed; an error of the journal ends the chat."""
        try:
            result = await self._run(prompt)
        except JournalError:
            raise
        except OrchestratorError as error:
            complain(shown(str(error), 4_000))
            return Exit.FAILED
        if (note := note_of(result)) is not None:
            complain(note)
        return EXIT_CODES[result.outcome]

    async def _run(self, prompt: str) -> Result:
        run_id = new_id(None)
        printer, questions = TextPrinter(run_id), _Questions(self._agent, self._store)
        stream = self._agent.stream(prompt, run_id=run_id, conversation_id=self.conversation)
        async with stream:
            asking = asyncio.create_task(questions.answer(), name="questions of the run")
            try:
                with on_signal(partial(self._interrupt, run_id), (signal.SIGINT,)):
                    async for event in stream:
                        printer.show(event)
                        questions.observe(event)
                    result = await stream.result()
            finally:
                asking.cancel()
                with suppress(asyncio.CancelledError):
                    await asking
        if not printer.answered and result.output not in (None, ""):
            text = result.output if isinstance(result.output, str) else json_text(result.output, indent=2)
            say(shown(text, 100_000))
        return result

    def _interrupt(self, run_id: str) -> None:
        self._agent.hosting.ask(run_id, "cancel", by="caller", why="signal")


class _Questions:
    """The open questions of one run and of its child runs, asked one after another."""

    def __init__(self, agent: Agent, store: OpenStore) -> None:
        self._agent = agent
        self._store = store
        self._unread: asyncio.Queue[QuestionAsked] = asyncio.Queue()
        self._answered: defaultdict[tuple[str, str], asyncio.Event] = defaultdict(asyncio.Event)

    def observe(self, event: RunEvent) -> None:
        """Record that a question was asked, or answered."""
        if isinstance(event, QuestionAsked):
            self._unread.put_nowait(event)
        elif isinstance(event, QuestionAnswered):
            self._answered[event.run_id, event.key].set()

    async def answer(self) -> None:
        """Print each question, and read its answer if a person is at the terminal; until cancelled."""
        while True:
            event = await self._unread.get()
            for one in await self._agent.pending(event.run_id):
                if one.key == event.key:
                    await self._decide(event, one)

    async def _decide(self, event: QuestionAsked, asked: Question) -> None:
        say("\n".join(question.described(self._store, event.run_id, asked, (), time.time())))
        if not keyboard.present() or asked.why != "approval":
            return
        elsewhere = self._answered[event.run_id, event.key]
        said = await typed_answer(self._store, event.run_id, asked, elsewhere)
        if said is None:
            return
        decide = self._agent.approve if said else self._agent.reject
        try:
            await decide(
                event.run_id, asked.key, digest=asked.digest, by=actor_name(None), why="at the terminal"
            )
        except RunError as refused:  # another answer was earlier, or the question has expired
            complain(str(refused))


def _is_command(line: str) -> bool:
    return line.strip() in {"/new", "/help"}
