"""`orchestrator run`: one prompt, one run, in the journal from its first record on.

A run is shown in one of three ways: with its screen and the questions that it asks (`SupervisedRun`), as the text that
the model produces (`TextPrinter`, `EventLines`), or, for machines that ask no questions about calls, with its screen
alone (`RunView`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar
from uuid import uuid4

import typer
from pydantic_core import to_jsonable_python

from orchestrator.cli import keyboard
from orchestrator.cli import option as given
from orchestrator.cli.exit import EXIT_CODES, GIVEN, Exit, Options
from orchestrator.cli.launch import Launch, LoadedParts, ServerOptions, in_folder, prompt_messages
from orchestrator.cli.load import limits_from, prompt_of
from orchestrator.cli.loop import on_signal, run_async
from orchestrator.cli.output import (
    complain,
    complain_more,
    is_terminal,
    json_text,
    log_stream,
    say,
    say_json,
    say_more,
    shown,
)
from orchestrator.cli.runs import question
from orchestrator.cli.runs.phrase import many
from orchestrator.cli.runs.question import answer_typed, answered_here
from orchestrator.cli.runs.store import OpenStore, journal_file
from orchestrator.cli.screen import AnswerTail, Screen, error_of
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import project_settings
from orchestrator.errors import ConfigError, RunError, RunExists, RunUnknown
from orchestrator.journal.address import Address
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.kernel.fact import (
    Fact,
    Observer,
    RunParked,
    RunStarted,
    ToolError,
    ToolExecution,
    Transition,
)
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.live_event import ModelRequestRetried, RunEvent, TextDelta, ToolProgress
from orchestrator.llm.message import Message
from orchestrator.llm.run_event import ModelRequestFinished, RunFinished, ToolFinished
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.question import WHY, Question
from orchestrator.runtime.facade import Facade
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import BaseResult, Result, ended_as
from orchestrator.runtime.llm_loop.run_options import Prompt
from orchestrator.runtime.runs.listing import read_page
from orchestrator.runtime.service.arguments import check_run_id
from orchestrator.runtime.service.descendant import PendingQuestion
from orchestrator.telemetry import watchdog
from orchestrator.telemetry.live import LiveRuns
from orchestrator.telemetry.log import TransitionLog
from orchestrator.tools.tool_error import traceback_of
from orchestrator_callbacks.llm_loop.admission import KEPT_ERRORS


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How a run is shown, and where it is stored."""

    run_id: str
    journal: Address | None
    """The journal as the command line names it."""
    log: Path | None
    json: bool
    remind: bool = True
    """Print on stderr how many other runs are open."""
    words: TextPrinter | EventLines | None = None
    """Shows the answer while the model produces it, in place of the states."""
    tail: AnswerTail | None = None
    """Shows it below the states."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(given.DisplayOptions):
    """The command line of `run`."""

    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="What to ask; - reads it from standard input.", show_default=False
        ),
    ] = None
    agent: given.AgentOptions
    limits: given.Limits = ()
    server_prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="[SERVER/]NAME",
            help="A prompt of an MCP server that --mcp names; PROMPT is a further message after it.",
        ),
    ] = None
    prompt_arguments: Annotated[
        tuple[str, ...],
        typer.Option("--prompt-arg", metavar="NAME=VALUE", help="An argument of --prompt; repeatable."),
    ] = ()
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Print the answer as it comes, instead of the states. With --json: each fact as a line, and the "
            "result as the last one.",
        ),
    ] = False
    run_id: given.NewRunId = None
    goes_on: Annotated[
        bool,
        typer.Option("--continue", help="Continue the run of --run-id if it exists, and print an ended one."),
    ] = False
    conversation: given.Conversation = None


@spread
def run_prompt(command_options: RunOptions) -> int:
    """Run one prompt and show the states of the machine.

    A table that is updated on a terminal, with the answer as it comes, plain lines elsewhere; then the answer and
    the outcome. --json prints one object instead: run_id, outcome, reason, output, usage, verdict, error, messages
    (OpenAI form) and transitions. The exit code is that of the outcome.

    Every step is in the journal before it counts. While the run waits for a person, it says how to answer; if its
    process is killed, `orchestrator runs resume` continues it.
    """
    if command_options.prompt is None and command_options.server_prompt is None:
        raise ConfigError("there is no prompt: give text, - for standard input, or --prompt of an MCP server")
    if command_options.goes_on and command_options.run_id is None:
        raise ConfigError("--continue is about a run: name it with --run-id")
    settings = project_settings()
    run_id = new_id(command_options.run_id)
    launch = Launch.here(settings, **vars(command_options.agent))
    parts = LoadedParts.of(launch)
    limits = limits_from(command_options.limits, settings.limits)
    prompt: Prompt
    if command_options.server_prompt is None:
        if command_options.prompt_arguments:
            raise ConfigError("--prompt-arg is an argument of a server's prompt: name one with --prompt")
        prompt = prompt_of(command_options.prompt or "")
    else:  # its messages, then those of the command line
        text = command_options.prompt
        own = [] if text is None else [Message("user", prompt_of(text))]
        servers = ServerOptions(launch.mcp_env, launch.mcp_options, launch.without)
        arguments: dict[str, str] = {}
        for pair in command_options.prompt_arguments:
            name, equals, arguments[name] = pair.partition("=")
            if not (equals and name):
                raise ConfigError(f"--prompt-arg {shown(pair, 120)!r} is not of the form NAME=VALUE")
        asked = prompt_messages(launch.mcp, servers, command_options.server_prompt, arguments)
        prompt = [*run_async(asked), *own]
    words: TextPrinter | EventLines | None = None
    if command_options.stream:
        words = EventLines() if command_options.json else TextPrinter(run_id)
    tail = AnswerTail(run_id) if words is None and not command_options.json and is_terminal() else None
    shows = words or tail

    async def go(agent: Agent) -> Result:
        options: dict[str, Any] = {"run_id": run_id, "conversation_id": command_options.conversation}
        if command_options.goes_on:
            options["if_exists"] = "resume"
        if shows is None:
            return await agent.run(prompt, **options)
        return await streamed(agent, shows, prompt, **options)

    view = ViewOptions(
        run_id, command_options.journal, command_options.log, command_options.json, words=words, tail=tail
    )
    return conducted(view, launch, parts, limits, go)


def new_id(given: str | None, name: str = "run_id") -> str:
    """Return the id of a new run. Raises ConfigError for an id that no route or command line can name."""
    if given is None:
        return uuid4().hex
    check_run_id(given, name)
    return given


def conducted(view: ViewOptions, launch: Launch, parts: LoadedParts, limits: Limits | None, go: Going) -> int:
    """Run one agent to completion, show its progress, and return the exit code of its outcome."""
    settings = project_settings()
    journal = journal_at(journal_file(view.journal))
    live = LiveRuns()
    with logging_to(view.log, settings.log_level) as logs, watchdog.on_signal(live):
        quiet = view.words is not None
        watched = SupervisedRun(
            view.run_id, journal, view.journal, show=not view.json, quiet=quiet, tail=view.tail
        )

        async def conduct() -> Result | None:
            observers = [*watched.observers, live, *logs]
            making = launch.agent(parts, journal=journal, observers=observers, limits=limits)
            async with watched.stoppable(making) as agent:
                return await watched.supervise(agent, go, remind=view.remind)

        with in_folder(launch.cwd):
            result = run_async(conduct())
    if watched.lost:
        return Exit.PIPE
    if result is None:
        complain(watched.left)
        return Exit.CANCELLED
    totals = watched.screen.tally.totals() if watched.screen else None
    print_result(result, totals, shown_already=view.words is not None and view.words.answered)
    return EXIT_CODES[result.outcome]


def print_result(result: Result, totals: str | None, *, shown_already: bool = False) -> None:
    """Print the result of a run, as JSON if `totals` is None; stderr gets the reason of a failure or a blank answer.

    With `shown_already` the answer is not printed again.
    """
    if totals is None:
        say_json(as_json(result))
    else:
        if not shown_already and result.output not in (None, ""):
            text = result.output if isinstance(result.output, str) else json_text(result.output, indent=2)
            say(f"\n{shown(text, 100_000)}")
        reason = "" if result.reason == "none" else f" ({result.reason})"
        say(f"\noutcome: {result.outcome}{reason}; {totals}")
    complain_of_tools(result.tool_errors)
    if (fault := note_of(result)) is not None:
        complain(fault)


def complain_of_tools(errors: Collection[ToolError]) -> None:
    """Print the exceptions of tools on standard error: a line for each kind, with --traceback where each came from."""
    if GIVEN.get(Options()).traceback:
        for error in errors:
            complain(shown(str(error), 600))
            complain_more("traceback", f"\n{traceback_of(error)}")
        return
    for text, count in Counter(map(str, errors)).items():
        complain(shown(f"{text}{f' ×{count}' if count > 1 else ''}", 600))


@contextmanager
def logging_to(file: Path | None, level: str = "info") -> Iterator[list[TransitionLog]]:
    """Yield the observer that appends JSON log lines to a file, or nothing."""
    with ExitStack() as stack:
        lines = None if file is None else log_stream(stack.enter_context(file.open("ab")))
        yield [] if lines is None else [TransitionLog(lines, level=level)]


def note_of(result: BaseResult) -> str | None:
    """Return the line for standard error about the end of a run; None for a run that completed with an answer."""
    if result.outcome is not Outcome.COMPLETED:
        return shown(f"the run {ended_as(result)}", 4_000)
    return "the final answer of the model is blank" if result.reason == "empty_answer" else None


def as_json(result: Result) -> dict[str, Any]:
    """Return the whole result as plain data."""
    verdict = result.verdict
    return {
        "run_id": result.run_id,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "finish_reason": result.finish_reason,
        "vendor_finish_reason": result.vendor_finish_reason,
        "output": result.output,
        "usage": result.usage.as_json(),
        "verdict": None if verdict is None else verdict._asdict(),
        "error": error_json(result.error),
        "tool_errors": [{"tool": one.tool, **one.as_record()} for one in result.tool_errors],
        "messages": [message.to_openai() for message in result.messages],
        "transitions": [transition_json(one) for one in result.transitions],
    }


def error_json(error: BaseException | None) -> dict[str, str] | None:
    """Return an error's type and message."""
    return None if error is None else {"type": type(error).__name__, "message": str(error)}


def transition_json(one: Transition) -> dict[str, Any]:
    """Return one step of the path as plain data, the same for every graph; `seconds` is the time in the state."""
    return {
        "seq": one.seq,
        "from_state": one.source,
        "event": one.event,
        "to_state": one.dest,
        "seconds": round(one.dwell, 6),
        "iteration": one.iteration,
        "guard": one.guard,
    }


Going = Callable[[Agent], Awaitable[Result]]


class SupervisedRun:
    """One run with its journal and screen; a signal, or a closed output pipe, cancels it.

    `given` is the journal as the command line names it, for the commands that are printed. With `quiet` the
    screen shows no states.
    """

    attends = True  # it asks the person at the terminal

    def __init__(
        self,
        run_id: str,
        journal: StoredJournal,
        given: Address | None,
        *,
        show: bool,
        quiet: bool = False,
        tail: AnswerTail | None = None,
    ) -> None:
        self.run_id = run_id
        self.lost = False
        self.screen = Screen(LLM_LOOP, self._lose, quiet=quiet, tail=tail) if show else None
        self.observers: list[Observer] = [self] if self.screen is None else [self, self.screen]
        self._store = OpenStore(journal, given)
        address, here = journal.address, Path.cwd()
        if isinstance(address, Path) and address.is_relative_to(here):
            address = address.relative_to(here)
        self._location = str(address)
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
        except RunError as error:
            if self._began or isinstance(error, ConfigError):
                raise
            said = str(error)
            if isinstance(error, RunExists):
                command = self._store.command("resume", self.run_id)
                said = f"run {self.run_id!r} exists: `{command}` resumes it, --continue too, or choose another --run-id"
            raise ConfigError(shown(said, 4_000)) from error

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
            questions = await self._questions(agent, fact.run_id) if fact.reason in WHY else []
            lines: list[str] = []
            if fact.reason == "paused":
                lines += [
                    f"\nrun {shown(fact.run_id)} is paused; to continue it, type in another terminal:",
                    f"  {self._store.command('resume', fact.run_id)}",
                ]
            if questions:
                how = "" if all(map(answered_here, questions)) else "; answer from another terminal"
                lines.append(f"\nrun {shown(fact.run_id)} waits for a person{how}:")
            for one in questions:
                lines += self._described(fact.run_id, one)
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
        questions = await self._questions(agent, run_id)
        with screen.still():
            for one in questions:
                if not answered_here(one):
                    continue
                if len(questions) > 1:  # output of other questions has moved it up
                    screen.notice("\n".join(self._described(run_id, one)))
                self._asking.add(run_id)
                if not await answer_typed(agent, self._store, run_id, one, self._answered[run_id]):
                    return
            self._asking.discard(run_id)

    @staticmethod
    async def _questions(agent: Agent, run_id: str) -> list[PendingQuestion]:
        """Return the questions of one run of the tree: each is printed when its own run is parked."""
        return [one for one in await agent.pending(run_id) if one.run_id == run_id]

    def _described(self, run_id: str, asked: Question) -> Iterator[str]:
        here = answered_here(asked)
        return question.described(self._store, run_id, asked, (), time.time(), here=here)

    async def _remind(self) -> None:
        """Print the number of other open runs without an owner, of those that `runs list` shows."""
        page = await read_page(self._store.journal)  # `doctor` reports damaged ones
        waiting = sum(
            head.status != "ended" and head.owner is None and head.run_id != self.run_id for head in page.runs
        )
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


class TextPrinter:
    """Prints the text of a model as it arrives, and between answers a line for each tool that ran."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.answered = False
        """Whether the last answer was streamed: not every model supports streaming."""
        self._attempt: tuple[int, int] | None = None
        self._open = False
        """Whether the last line is incomplete."""

    def show(self, event: RunEvent) -> None:
        """Print an event of the run, but not of child runs. Raises BrokenPipeError if the pipe is closed."""
        if event.run_id != self.run_id:
            return
        match event:
            case TextDelta():
                if self._attempt is not None and self._attempt != (event.iteration, event.attempt):
                    self._close()
                self._attempt = event.iteration, event.attempt
                say_more(event.text)
                self._open = True
            case ModelRequestFinished():
                self.answered = self._attempt is not None
                self._attempt = None
                self._close()
            case ModelRequestRetried():
                self._close()
                say(f"    attempt {event.attempt}: {event.reason}, the next in {event.delay:.3f} s")
            case ToolProgress():
                self._close()
                say(f"    tool {shown(event.tool, keep='')}: {shown(event.text, 200)}")
            case ToolFinished():
                size = f"{len(event.result):,} characters"
                outcome = event.outcome if event.error is None else error_of(event.error)
                say(f"    tool {shown(event.tool, keep='')}: {outcome}, {size}, {event.seconds:.3f} s")
            case RunFinished():
                self._close()

    def _close(self) -> None:
        if self._open:
            say()
        self._open = False


class EventLines:
    """Prints each event as a line of JSON: its class as `type`, its id, then its members."""

    answered = False

    def show(self, event: RunEvent) -> None:
        """Print an event."""
        say_json(event_json(event))


def event_json(event: RunEvent) -> dict[str, Any]:
    """Return an event as JSON data."""
    members = {name: value for name, value in asdict(event).items() if name not in {"seq", "part"}}
    data: dict[str, Any] = to_jsonable_python(members, fallback=str)
    return {"type": type(event).__name__, "id": event.id, **data}


async def streamed(
    agent: Agent, shows: TextPrinter | EventLines | AnswerTail, prompt: Prompt, **options: Any
) -> Result:
    """Run a prompt and print its events. A closed pipe cancels the run, and BrokenPipeError is raised."""
    gone: BrokenPipeError | None = None
    async with agent.stream(prompt, **options) as stream:
        async for event in stream:
            try:
                if gone is None:
                    shows.show(event)
            except BrokenPipeError as error:
                gone = error
                await agent.cancel(stream.run_id, why="nobody reads the answer")
        result = await stream.result()
    if gone is not None:
        raise gone
    return result


C = TypeVar("C", bound=Facade[Any])
R = TypeVar("R")


class RunView(Generic[C, R]):
    """A run with its screen; a signal, or a closed output pipe, cancels it.

    `run_id` is None if it is unknown before the run starts. `screen` creates the screen; None shows nothing.
    """

    def __init__(
        self,
        graph: Graph,
        run_id: str | None,
        address: Address,
        screen: Callable[[Callable[[], None]], Screen] | None,
    ) -> None:
        self.run_id = run_id
        self.lost = False
        self.screen = None if screen is None else screen(self._lose)
        self.tool_errors: deque[ToolError] = deque(maxlen=KEPT_ERRORS)
        """The last exceptions of its tools, and of those of its child runs."""
        self._graph = graph.name
        self._address = address
        self._service: C | None = None
        self._began = self._stopped = False

    @property
    def observers(self) -> list[Observer]:
        """The observers of the run."""
        return [self] if self.screen is None else [self, self.screen]

    async def run(self, service: C, journal: StoredJournal, go: Callable[[C], Awaitable[R]]) -> R:
        """Open the journal, drive the run, and return its result. Raises ConfigError if it cannot start."""
        self._service = service
        try:
            with on_signal(self._cancel):
                async with journal:
                    if self._stopped:
                        raise KeyboardInterrupt
                    with self.screen.showing() if self.screen else nullcontext():
                        return await go(service)
        except RunError as error:
            if self._began or isinstance(error, ConfigError):
                raise
            raise ConfigError(shown(str(error), 4_000)) from error

    def observe(self, fact: Fact) -> None:
        """Record that the run has started, and the exceptions of tools."""
        if isinstance(fact, ToolExecution) and fact.error is not None:
            self.tool_errors.append(fact.error)
        if not isinstance(fact, RunStarted) or fact.graph != self._graph:
            return
        if self.run_id is None:
            self.run_id = fact.run_id
        if fact.run_id != self.run_id:
            return
        is_first, self._began = not self._began, True
        if self._stopped:
            self._cancel()
        if is_first and self.screen is not None:  # last, because the terminal may be gone
            self.screen.notice(f"run {shown(fact.run_id)}, journal {shown(str(self._address))}")

    def _cancel(self) -> None:
        self._stopped = True
        if self._service is not None and self.run_id is not None:
            with suppress(RunUnknown):  # a run that has not started is cancelled at its start
                self._service.cancel(self.run_id, by="terminal", why="a signal")

    def _lose(self) -> None:
        self.lost = True
        self._cancel()
