"""`orchestrator worker`: one of the processes that execute the runs of a PostgreSQL journal."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.cli.exit import Exit, beginning
from orchestrator.cli.fleet_option import WorkerOptions
from orchestrator.cli.launch import Launch, LoadedParts
from orchestrator.cli.load import imported, limits_from
from orchestrator.cli.loop import run_async
from orchestrator.cli.output import complain, say, shown
from orchestrator.cli.run import logging_to
from orchestrator.cli.runs.store import journal_file
from orchestrator.cli.trust.consent import project_settings
from orchestrator.engines.agent import EngineAgent, refuse_bound
from orchestrator.engines.dispatcher import Dispatcher, WorkerLimits
from orchestrator.engines.garbage_collection import tune_garbage_collection
from orchestrator.engines.operator_command import OperatorCommand
from orchestrator.engines.worker import Worker
from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.journal.address import Address, JournalAddress
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.record import Observer
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.telemetry.exposition.server import serve_metrics
from orchestrator.telemetry.metrics import Metrics

_OWN = ("base_url", "tools", "mcp", "mcp_options", "instructions", "output_schema", "params")
"""Members of a launch that only the worker's own agent has."""
SILENCE = 3.0
"""Seconds that a worker waits for the server before it prints the reason."""


def work(options: WorkerOptions) -> int:
    """Work until a signal or an operator's drain, and return the exit code. Raises ConfigError, RunError."""
    address = database(options.journal, "a worker carries")
    settings = project_settings()
    made_of = options.agent.plain()
    launch = Launch.here(settings, **made_of)
    # A model of the settings is used only without named agents: else a worker had two agents for one graph.
    own = not options.agents or made_of.get("model") is not None
    if not own and (
        useless := [name for name in _OWN if made_of.get(name)] + ["limits"] * bool(options.limits)
    ):
        raise ConfigError(
            f"{', '.join(useless)}: these are for an agent of --model, and --agent makes its own"
        )
    _look(options)
    limits = limits_from(options.limits, settings.limits)
    parts = LoadedParts.of(launch) if own else None
    placing = dispatcher(options.dispatcher, address, options.caps)
    name = options.name or f"{socket.gethostname()}-{_few()}"
    with logging_to(options.log, settings.log_level) as logs:
        metrics = Metrics()
        return run_async(
            _work(options, _Making(launch, parts, limits, [metrics, *logs]), placing, address, name)
        )


@dataclass(frozen=True, slots=True)
class _Making:
    """The parts of the worker's own agent."""

    launch: Launch
    parts: LoadedParts | None
    limits: Limits
    observers: list[Observer]


def _look(options: WorkerOptions) -> None:
    """Raise ConfigError for options that are invalid for a worker, before the server is contacted."""
    OperatorCommand.of("slots", "", {"slots": options.slots})
    OperatorCommand.of("drain", "", {"grace": options.grace})
    for spec in options.agents:
        _maker(named_target(spec)[1])


async def _work(
    options: WorkerOptions, making: _Making, placing: Dispatcher, address: JournalAddress, name: str
) -> int:
    from orchestrator.journal.postgres import PostgresJournal

    journal = PostgresJournal(address, name=name)
    with beginning():
        await _opened(journal.open(), address)
    async with journal, _agents(options, making, journal) as agents:
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


async def _opened(opening: Coroutine[Any, Any, None], address: JournalAddress) -> None:
    """Wait until the journal is open, and print the reason for the wait if it takes long."""
    task = asyncio.create_task(opening)
    await asyncio.wait((task,), timeout=SILENCE)
    if not task.done():
        complain(f"waiting for {address}, which does not answer yet")
    await task


@asynccontextmanager
async def _agents(
    options: WorkerOptions, making: _Making, journal: Journal
) -> AsyncIterator[dict[str, EngineAgent]]:
    """Create the agents of a worker: the named ones, and the one that the command line itself describes."""
    found: dict[str, EngineAgent] = {}
    for spec in options.agents:
        name, agent = _named(spec, journal)
        if name in found:
            raise ConfigError(f"two agents are called {name!r}; give one another name: NAME={spec}")
        found[name] = agent
    if making.parts is None:
        yield found
        return
    own = making.launch.agent(
        making.parts, journal=journal, observers=making.observers, limits=making.limits, keep=False
    )
    async with own as agent:
        yield {**found, "llm_loop": agent}


def _named(spec: str, journal: Journal) -> tuple[str, EngineAgent]:
    """Return the name and the agent. Raises ConfigError."""
    name, target = named_target(spec)
    return name, made(target, journal)


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


def _few() -> str:
    import secrets

    return secrets.token_hex(4)
