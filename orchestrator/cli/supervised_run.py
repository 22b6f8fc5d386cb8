"""One run of one journal for one person: screen, signals, and the questions of the run while it waits."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from orchestrator.cli import keyboard
from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import complain, shown
from orchestrator.cli.runs import question
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.runs.store import OpenStore
from orchestrator.cli.runs.typed_answer import TYPED, answer_typed
from orchestrator.cli.screen import Screen
from orchestrator.errors import ConfigError, Corrupt, RunError, RunExists
from orchestrator.journal.address import Address
from orchestrator.journal.opening import StoredJournal
from orchestrator.kernel.record import Fact, Observer, RunParked, RunStarted
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.question import WHY, Question
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result

Going = Callable[[Agent], Awaitable[Result]]


class SupervisedRun:
    """One run with its journal and screen; a signal, or a closed output pipe, cancels it.

    `given` is the journal as the command line names it, for the commands that are printed. With `quiet` the
    screen shows no states.
    """

    def __init__(
        self, run_id: str, journal: StoredJournal, given: Address | None, *, show: bool, quiet: bool = False
    ) -> None:
        self.run_id = run_id
        self.lost = False
        self.screen = Screen(LLM_LOOP, self._lose, quiet=quiet) if show else None
        self.observers: list[Observer] = [self] if self.screen is None else [self, self.screen]
        self._store = OpenStore(journal, given)
        self._location = _near(journal.address)
        self._agent: Agent | None = None
        self._began = self._stopped = False
        self._making: asyncio.Task[Any] | None = None
        """The task that constructs the agent, during the construction."""
        self._parked: asyncio.Queue[RunParked] = asyncio.Queue()
        self._answered: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Run id -> event that is set while the run does not wait."""
        self._asking: set[str] = set()
        """Ids of the runs that wait for the person at the terminal."""
        self._driving: asyncio.Future[Result] | None = None
        self._left = False

    @asynccontextmanager
    async def stoppable(self, making: AbstractAsyncContextManager[Agent]) -> AsyncIterator[Agent]:
        """Construct the agent and close it again; signals cancel both.

        MCP servers are child processes, and a process that a signal ends would leave them running: so the first signal
        cancels the current work, also before the run. Raises KeyboardInterrupt if there is no agent yet, otherwise the
        errors of `making`.
        """
        with on_signal(self._cancel):
            async with AsyncExitStack() as stack:
                self._making = asyncio.current_task()
                try:
                    agent = await stack.enter_async_context(making)
                except (asyncio.CancelledError, Exception):
                    if self._stopped:
                        raise KeyboardInterrupt from None
                    raise
                finally:
                    self._making = None
                yield agent

    @property
    def left(self) -> str:
        """The sentence about a run that was left parked."""
        command = self._store.command("resume", self.run_id)
        return f"run {shown(self.run_id)} stays parked with its question; `{command}` continues it"

    async def supervise(self, agent: Agent, go: Going, *, remind: bool) -> Result | None:
        """Open the journal, drive the run, and return its result; with `remind`, mention other open runs.

        None means that a signal came while the run asked the person at the terminal: it stays parked.

        Raises ConfigError if the run cannot start; after the start, the errors of the run.
        """
        self._agent = agent
        try:
            async with self._store.journal:
                return await self._run_once(agent, go, remind=remind)
        except RunError as error:
            if self._began or isinstance(error, ConfigError):
                raise
            raise ConfigError(shown(self._said(error), 4_000)) from error

    async def _run_once(self, agent: Agent, go: Going, *, remind: bool) -> Result | None:
        if remind:
            await self._remind()
        if self._stopped:
            raise KeyboardInterrupt
        with self.screen.showing() if self.screen else nullcontext():
            asking = asyncio.create_task(self._ask(agent), name="what the run asks")
            self._driving = asyncio.ensure_future(go(agent))
            try:
                return await self._driving
            except asyncio.CancelledError:
                if not self._left:
                    raise
                return None
            finally:
                asking.cancel()
                with suppress(asyncio.CancelledError):
                    await asking

    def observe(self, fact: Fact) -> None:
        """Record that the run has started, waits, or continues."""
        if isinstance(fact, RunStarted):
            self._answered[fact.run_id].set()
            self._asking.discard(fact.run_id)
        if isinstance(fact, RunStarted) and fact.run_id == self.run_id:
            is_first, self._began = not self._began, True
            if self._stopped:
                self._cancel()
            if is_first and self.screen is not None:  # last, because the terminal may be gone
                self.screen.notice(f"run {shown(self.run_id)}, journal {shown(self._location)}")
        elif isinstance(fact, RunParked):
            self._answered[fact.run_id].clear()
            self._parked.put_nowait(fact)

    # ---- people ----

    async def _ask(self, agent: Agent) -> None:
        """Print the questions whenever the run, or a child run, waits for a person; until cancelled."""
        while True:
            fact = await self._parked.get()
            questions = await agent.pending(fact.run_id) if fact.reason in WHY else []
            lines = list(self._waiting(fact, questions))
            if lines and self.screen is not None:
                self.screen.notice("\n".join(lines))
                if keyboard.present():
                    await self._decide(agent, fact.run_id, self.screen)
            elif lines:
                complain(
                    f"run {fact.run_id} waits for a person: `{self._store.command('show', fact.run_id)}`"
                )

    async def _decide(self, agent: Agent, run_id: str, screen: Screen) -> None:
        """Read the answers from the terminal, unless another process answers first."""
        questions = await agent.pending(run_id)
        with screen.still():
            for one in questions:
                if one.why not in TYPED:
                    continue
                if len(questions) > 1:  # output of other questions has moved it up
                    screen.notice("\n".join(question.described(self._store, run_id, one, (), time.time())))
                self._asking.add(run_id)
                if not await answer_typed(agent, self._store, run_id, one, self._answered[run_id]):
                    return
            self._asking.discard(run_id)

    def _waiting(self, fact: RunParked, questions: list[Question]) -> Iterator[str]:
        if fact.reason == "paused":
            yield f"\nrun {shown(fact.run_id)} is paused; to continue it, type in another terminal:"
            yield f"  {self._store.command('resume', fact.run_id)}"
        if questions:
            yield f"\nrun {shown(fact.run_id)} waits for a person; answer from another terminal:"
        for one in questions:
            yield from question.described(self._store, fact.run_id, one, (), time.time())

    async def _remind(self) -> None:
        """Print the number of open runs without an owner."""
        waiting = 0
        with suppress(Corrupt):  # of other runs; `doctor` reports it
            async for head in self._store.journal.runs():
                waiting += head.status != "ended" and head.owner is None
        if waiting:
            verb, has = ("is", "has") if waiting == 1 else ("are", "have")
            complain(
                f"{many(waiting, 'other run')} {verb} open and {has} no owner: "
                f"`{self._store.command('resume')}` says what would happen"
            )

    # ---- stopping ----

    def _cancel(self) -> None:
        """Ask the run to stop; a run that has not started is asked at its start, one without an agent never starts.

        A run that asks the person at the terminal is left parked instead: its question can be answered later.
        """
        if self._asking and self._driving is not None:
            self._left = True
            self._driving.cancel()
            return
        self._stopped = True
        if self._making is not None:
            self._making.cancel()
        elif self._agent is not None:
            self._agent.hosting.ask(self.run_id, "cancel", by="caller", why="signal")

    def _lose(self) -> None:
        self.lost = True
        self._cancel()

    def _said(self, error: RunError) -> str:
        if isinstance(error, RunExists):
            go_on = self._store.command("resume", self.run_id)
            return f"run {self.run_id!r} exists: `{go_on}` resumes it, or choose another --run-id"
        return str(error)


def _near(address: Address) -> str:
    """Return an address as text; a path below the current folder is relative to it."""
    here = Path.cwd()
    return str(
        address.relative_to(here) if isinstance(address, Path) and address.is_relative_to(here) else address
    )
