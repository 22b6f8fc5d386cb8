"""`orchestrator worker` and `orchestrator submit`: the processes that execute the runs of a PostgreSQL journal."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit, beginning
from orchestrator.cli.launch import Launch, LoadedParts
from orchestrator.cli.load import context_from, limits_from, prompt_of
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.run import logging_to, new_id
from orchestrator.cli.runs.store import journal_file
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import project_settings
from orchestrator.engines.agent import EngineAgent, refuse_bound
from orchestrator.engines.dispatcher import Dispatcher, Scheduler, WorkerLimits
from orchestrator.engines.operator_command import OperatorCommand
from orchestrator.engines.process import tune_garbage_collection
from orchestrator.engines.worker import Worker
from orchestrator.errors import ConfigError, JournalError, MissingExtra, OrchestratorError
from orchestrator.files.named_object import imported
from orchestrator.journal.address import Address, JournalAddress
from orchestrator.kernel.fact import Observer
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Request, Response
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.telemetry.exposition.server import serve_metrics
from orchestrator.telemetry.metrics import Metrics

_OWN = ("base_url", "tools", "mcp", "mcp_options", "instructions", "output_schema", "params")
"""Members of a launch that only the worker's own agent has."""
SILENCE = 3.0
"""Seconds that a worker waits for the server before it prints the reason."""
OPENING = 3.0
"""Seconds until the server must answer the first request of `submit`."""

DispatcherName = Annotated[
    str, typer.Option(metavar="NAME", help="Who places runs on workers: dbos or procrastinate.")
]


# ---- worker ----


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The command line of `worker`."""

    agents: Annotated[
        tuple[str, ...],
        typer.Option(
            "--agent",
            metavar="[NAME=]MODULE:FUNCTION",
            help="A function that takes the journal and returns an Agent, a Pipeline or an Rlm. Repeatable.",
        ),
    ] = ()
    agent: given.AgentOptions
    limits: given.Limits = ()
    log: given.Log = None
    journal: given.Journal = None
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What this worker is called: its own among those that live. Default: made up.",
        ),
    ] = None
    slots: Annotated[int, typer.Option(metavar="N", help="How many runs this worker executes at once.")] = 16
    grace: Annotated[float, typer.Option(metavar="SECONDS", help="How long runs get to end at a signal.")] = (
        30.0
    )
    dispatcher: DispatcherName = "dbos"
    concurrency: Annotated[
        int, typer.Option(metavar="N", help="How many runs all workers execute at once; 0 is no limit.")
    ] = 0
    tenant_concurrency: Annotated[
        int, typer.Option(metavar="N", help="How many of one tenant; 0 is any number.")
    ] = 0
    rate: Annotated[
        str | None,
        typer.Option(metavar="N/SECONDS", help="How many runs are started or resumed within a time."),
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(metavar="N", help="Serve this worker's metrics here; 0 picks a free port.")
    ] = None


@spread
def work(options: WorkerOptions) -> int:
    """Carry out runs of a PostgreSQL journal until SIGTERM or SIGINT.

    Any number of workers share a journal. Runs come from `orchestrator submit` and from programs that call
    deposit(). The agents are functions of the journal (--agent), or the one that --model and --tool describe. If a
    worker dies, another worker resumes its runs within seconds. After the first signal runs get --grace seconds to
    end, the others are released to other workers; the second signal ends the process at once.
    """
    address = database(options.journal, "a worker carries")
    settings = project_settings()
    made_of = vars(options.agent)
    launch = Launch.here(settings, **made_of)
    # A model of the settings is used only without named agents: else a worker had two agents for one graph.
    own = not options.agents or made_of.get("model") is not None
    if not own and (
        useless := [name for name in _OWN if made_of.get(name)] + ["limits"] * bool(options.limits)
    ):
        raise ConfigError(
            f"{', '.join(useless)}: these are for an agent of --model, and --agent makes its own"
        )
    OperatorCommand.of("slots", "", {"slots": options.slots})  # invalid options are reported before
    OperatorCommand.of("drain", "", {"grace": options.grace})  # the server is contacted
    for spec in options.agents:
        _maker(named_target(spec)[1])
    limits = limits_from(options.limits, settings.limits)
    parts = LoadedParts.of(launch) if own else None
    number, period = rate_of(options.rate)
    caps = WorkerLimits(
        concurrency=options.concurrency,
        tenant_concurrency=options.tenant_concurrency,
        rate=number,
        period=period,
    )
    placing = dispatcher(options.dispatcher, address, caps)
    name = options.name or f"{socket.gethostname()}-{secrets.token_hex(4)}"

    @asynccontextmanager
    async def agents(journal: Journal, observers: list[Observer]) -> AsyncIterator[dict[str, EngineAgent]]:
        """Yield the named agents, and the one that the command line itself describes."""
        found: dict[str, EngineAgent] = {}
        for spec in options.agents:
            title, target = named_target(spec)
            agent = made(target, journal)
            if title in found:
                raise ConfigError(f"two agents are called {title!r}; give one another name: NAME={spec}")
            found[title] = agent
        if parts is None:
            yield found
            return
        async with launch.agent(
            parts, journal=journal, observers=observers, limits=limits, keep=False
        ) as agent:
            yield {**found, "llm_loop": agent}

    with logging_to(options.log, settings.log_level) as logs:
        observers: list[Observer] = [Metrics(), *logs]
        return run_async(_work(options, lambda journal: agents(journal, observers), placing, address, name))


async def _work(
    options: WorkerOptions,
    agents_of: Callable[[Journal], contextlib.AbstractAsyncContextManager[dict[str, EngineAgent]]],
    placing: Dispatcher,
    address: JournalAddress,
    name: str,
) -> int:
    from orchestrator.journal.postgres import PostgresJournal

    journal = PostgresJournal(address, name=name)
    with beginning():
        opening = asyncio.create_task(journal.open())
        await asyncio.wait((opening,), timeout=SILENCE)
        if not opening.done():
            complain(f"waiting for {address}, which does not answer yet")
        await opening
    async with journal, agents_of(journal) as agents:
        if not agents:
            raise ConfigError("a worker needs an agent: --model SPEC, or --agent MODULE:FUNCTION")
        worker = Worker(agents, placing, slots=options.slots, grace=options.grace)
        tune_garbage_collection()
        async with contextlib.AsyncExitStack() as stack:
            with beginning():
                await stack.enter_async_context(worker)
            served = ""
            if options.metrics_port is not None:
                server = stack.enter_context(serve_metrics(port=options.metrics_port))
                served = f", metrics at {server.url}"
            graphs = ", ".join(sorted({agent.hosting.graph for agent in agents.values()}))
            line = f"worker {shown(name)} carries {graphs} of {address}, {options.slots} slots{served}"
            drained = await worker.run_until_signal(ready=lambda: say(line))
    say(
        f"worker {shown(name)} has stopped: {len(drained.ended)} runs ended, "
        f"{len(drained.parked) + len(drained.interrupted)} left to others"
    )
    return Exit.COMPLETED


def named_target(spec: str) -> tuple[str, str]:
    """Return the name and the function of `[NAME=]MODULE:FUNCTION`; without a name it is that of the function."""
    name, equals, target = spec.partition("=")
    return (name, target) if equals else (spec.rpartition(":")[2], spec)


def _maker(target: str) -> Callable[..., Any]:
    """Return the function that makes an agent. Raises ConfigError."""
    make = imported(target, "agent")
    if not callable(make):
        raise ConfigError(
            f"agent {target!r} is no function; name one that takes the journal and returns an agent"
        )
    found: Callable[..., Any] = make
    return found


def made(target: str, journal: Journal, observers: Sequence[Observer] | None = None) -> Any:
    """Return the agent that a function of the journal makes. Raises ConfigError if no worker could execute its runs.

    A function with a parameter `observers` gets them, unless they are None.
    """
    make = _maker(target)
    takes = observers is not None and "observers" in inspect.signature(make).parameters
    try:
        agent = make(journal, observers=observers) if takes else make(journal)
    except OrchestratorError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        raise ConfigError(f"agent {target!r} cannot be made: {said}") from error
    refuse_bound(agent)
    return agent


def rate_of(text: str | None) -> tuple[int, float]:
    """Return number and seconds of `N/SECONDS`; None means no limit. Raises ConfigError."""
    if text is None:
        return 0, 1.0
    number, slash, period = text.partition("/")
    try:
        return int(number), float(period if slash else "1")
    except ValueError:
        raise ConfigError(f"rate {text!r} is not of the form N/SECONDS, such as 5/2") from None


def database(given: Address | None, command: str) -> JournalAddress:
    """Return the address of the database. Raises ConfigError if the journal is a file."""
    target = journal_file(given)
    if isinstance(target, JournalAddress):
        return target
    raise ConfigError(
        f"{command} runs of a PostgreSQL journal, which many machines share, and {target} is a file: "
        "give --dsn postgresql://user@host/database or set ORCHESTRATOR_JOURNAL"
    )


def dispatcher(kind: str, address: JournalAddress, caps: WorkerLimits) -> Dispatcher:
    """Return the dispatcher of a name. Raises ConfigError, MissingExtra."""
    if kind == "dbos":
        from orchestrator.engines.dbos import DbosDispatcher

        return DbosDispatcher(address, caps=caps)
    if kind == "procrastinate":
        from orchestrator.engines.procrastinate import ProcrastinateDispatcher

        return ProcrastinateDispatcher(address, caps=caps)
    raise ConfigError(f"dispatcher is {kind!r}; it must be dbos or procrastinate")


# ---- submit ----


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(given.JournalOptions):
    """The command line of `submit`."""

    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What to ask; - reads it from standard input.")
    ]
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="The agent that the run is for, as for `worker`. Default: the llm_loop agent without a name.",
        ),
    ] = None
    about: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The text that the prompt is about, for an agent that is an Rlm."),
    ] = None
    instructions: given.Instructions = None
    limits: given.Limits = ()
    run_id: given.NewRunId = None
    conversation: given.Conversation = None
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="The tenant of the run, for limits of each tenant.")
    ] = ""
    dispatcher: DispatcherName = "dbos"


@spread
def submit_run(command_options: SubmitOptions) -> int:
    """Submit a run to the workers of a PostgreSQL journal.

    The command prints the id of the run and asks no model.
    """
    address = database(command_options.journal, "`submit` leaves")
    prompt = prompt_of(command_options.prompt)
    run_id = new_id(command_options.run_id)
    try:
        scheduler: Scheduler | None = dispatcher(command_options.dispatcher, address, WorkerLimits())
    except MissingExtra:
        scheduler = None  # without a notification workers find the run some seconds later

    async def work() -> bool:
        from orchestrator.journal.postgres import PostgresJournal

        async with PostgresJournal(address, opening=OPENING) as journal:
            await _deposit(command_options, journal, prompt, run_id)
        if scheduler is None:
            return False
        try:
            await scheduler.submit(run_id, 0, tenant=command_options.tenant)
        except JournalError:
            return False
        finally:
            if (stop := getattr(scheduler, "stop", None)) is not None:
                await stop()
        return True

    with beginning():
        placed = asyncio.run(work())
    if command_options.json:
        say_json({"run_id": run_id, "placed": placed})
    else:
        say(run_id)
        if not placed:
            complain(f"run {shown(run_id)} is in the journal; a worker finds it there by its next sweep")
    return Exit.COMPLETED


async def _deposit(command_options: SubmitOptions, journal: Any, prompt: str, run_id: str) -> None:
    options: dict[str, Any] = {"run_id": run_id, "tenant": command_options.tenant}
    if command_options.agent is None:
        if command_options.about is not None:
            raise ConfigError("--about is for an agent that is an Rlm: name it with --agent")
        loop = Agent(_Nobody(), journal=journal, observers=(), instructions=command_options.instructions)
        limits = limits_from(command_options.limits, project_settings().limits)
        await loop.deposit(prompt, conversation_id=command_options.conversation, limits=limits, **options)
        return
    name = command_options.agent
    if command_options.instructions is not None or command_options.limits:
        raise ConfigError(f"instructions and limits are those of agent {name!r}: leave them out")
    agent = made(name, journal)
    if not hasattr(agent, "deposit"):
        raise ConfigError(f"agent {name!r} is of the class {type(agent).__name__}, which leaves no runs")
    if not hasattr(agent.hosting.journal, "holders"):
        raise ConfigError(f"agent {name!r} has another journal than the one that it is given")
    if command_options.conversation is not None:
        agent.hosting.check(None, command_options.conversation, None, None)
        options |= {"conversation_id": command_options.conversation}
    if command_options.about is not None:
        if not isinstance(agent, Rlm):
            raise ConfigError(f"agent {name!r} is of the class {type(agent).__name__}; --about is for an Rlm")
        options |= {"context": context_from(command_options.about, as_json=False)}
    await agent.deposit(prompt, **options)


class _Nobody:
    """Replaces the model, which only the worker has; it gets no request."""

    double = True
    model = "nobody"

    async def complete(self, request: Request) -> Response:
        raise AssertionError(
            f"the model was asked where a run was only left ({len(request.messages)} messages)"
        )
