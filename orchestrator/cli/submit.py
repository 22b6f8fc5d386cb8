"""`orchestrator submit`: submit a run to a PostgreSQL journal, for execution by a worker."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.cli.exit import Exit, beginning
from orchestrator.cli.fleet_option import SubmitOptions
from orchestrator.cli.load import limits_from, prompt_of
from orchestrator.cli.output import complain, say, say_json, shown
from orchestrator.cli.rlm.agent_spec import context_from
from orchestrator.cli.run import new_id
from orchestrator.cli.trust.consent import project_settings
from orchestrator.cli.worker import database, dispatcher, made
from orchestrator.engines.dispatcher import Scheduler, WorkerLimits
from orchestrator.errors import ConfigError, JournalError, MissingExtra
from orchestrator.llm.message import Request, Response
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.rlm.rlm import Rlm

OPENING = 3.0
"""Seconds until the server must answer the first request."""


def submit_run(command_options: SubmitOptions) -> int:
    """Write the run to the journal, notify the dispatcher, and return the exit code. Raises ConfigError."""
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
            return await _placed(scheduler, run_id, command_options.tenant)

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
    if command_options.agent is not None:
        await _of_agent(command_options.agent, command_options, journal, prompt, options)
        return
    if command_options.about is not None:
        raise ConfigError("--about is for an agent that is an Rlm: name it with --agent")
    loop = Agent(_Nobody(), journal=journal, observers=(), instructions=command_options.instructions)
    limits = limits_from(command_options.limits, project_settings().limits)
    await loop.deposit(prompt, conversation_id=command_options.conversation, limits=limits, **options)


async def _of_agent(
    name: str, command_options: SubmitOptions, journal: Any, prompt: str, options: dict[str, Any]
) -> None:
    """Submit a run of an agent that a module makes. Raises ConfigError for options that this agent cannot take."""
    if command_options.instructions is not None or command_options.limits:
        raise ConfigError(f"instructions and limits are those of agent {name!r}: leave them out")
    agent = made(name, journal)
    if not hasattr(agent, "deposit"):
        raise ConfigError(f"agent {name!r} is of the class {type(agent).__name__}, which leaves no runs")
    if not hasattr(agent.hosting.journal, "holders"):
        raise ConfigError(f"agent {name!r} has another journal than the one that it is given")
    if command_options.conversation is not None:
        agent.hosting.check(None, command_options.conversation, None, None)
        options = options | {"conversation_id": command_options.conversation}
    if command_options.about is not None:
        if not isinstance(agent, Rlm):
            raise ConfigError(f"agent {name!r} is of the class {type(agent).__name__}; --about is for an Rlm")
        options = options | {"context": context_from(command_options.about, as_json=False)}
    await agent.deposit(prompt, **options)


async def _placed(scheduler: Scheduler | None, run_id: str, tenant: str) -> bool:
    if scheduler is None:
        return False
    try:
        await scheduler.submit(run_id, 0, tenant=tenant)
    except JournalError:
        return False
    finally:
        if (stop := getattr(scheduler, "stop", None)) is not None:
            await stop()
    return True


class _Nobody:
    """Replaces the model, which only the worker has; it gets no request."""

    double = True
    model = "nobody"

    async def complete(self, request: Request) -> Response:
        raise AssertionError(
            f"the model was asked where a run was only left ({len(request.messages)} messages)"
        )
