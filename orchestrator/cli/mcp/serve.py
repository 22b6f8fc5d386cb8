"""`orchestrator mcp serve`: offer agents as MCP tools over stdio or HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from orchestrator.cli.exit import Exit, beginning
from orchestrator.cli.loop import run_async
from orchestrator.cli.mcp_group import McpServeOptions
from orchestrator.cli.output import complain, shown
from orchestrator.cli.run import logging_to
from orchestrator.cli.runs.store import journal_file
from orchestrator.cli.stop import on_signal
from orchestrator.cli.trust.configuration import project_settings
from orchestrator.cli.worker import made
from orchestrator.engines.served_agent import DurableAgent
from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.kernel.record import Observer
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.version import __version__
from orchestrator.web.access import checked_token, is_loopback

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve_agents(options: McpServeOptions) -> int:
    """Serve until the client closes its end, or a signal; return the exit code. Raises ConfigError."""
    token = _token(options)
    with logging_to(options.log, project_settings().log_level) as logs:
        return run_async(_serve(options, token, logs))


def _token(options: McpServeOptions) -> str | None:
    """Return the token that clients must show. Raises ConfigError if an open address has none."""
    if options.token_env is not None:
        if not (token := os.environ.get(options.token_env)):
            raise ConfigError(
                f"--token-env {shown(options.token_env, 80)}: no such environment variable is set"
            )
        return checked_token(token, f"the environment variable {options.token_env}")
    if options.http is not None and not is_loopback(options.host):
        raise ConfigError(
            f"--host {shown(options.host, 80)} is not this machine only: give --token-env NAME, so that clients show "
            "a token"
        )
    return None


async def _serve(options: McpServeOptions, token: str | None, logs: Sequence[Observer]) -> int:
    serving = asyncio.ensure_future(_served(options, token, logs))
    with on_signal(serving.cancel, _ENDING):
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            if not serving.cancelled():  # the command itself was cancelled
                serving.cancel()
                raise
    return Exit.COMPLETED


async def _served(options: McpServeOptions, token: str | None, logs: Sequence[Observer]) -> None:
    """Serve the agents until the client closes its end, or until the task is cancelled."""
    try:
        from orchestrator.providers.mcp.serving import mcp_server, serve_http, serve_stdio
    except ImportError as error:
        raise MissingExtra("mcp", "mcp", "providers") from error
    # The library warns of clients: of their host names, and of each call that was in flight at the end.
    logging.getLogger("mcp").setLevel(logging.ERROR)
    journal = journal_at(journal_file(options.journal))
    async with AsyncExitStack() as stack:
        with beginning():
            await stack.enter_async_context(journal)
        agents = [_agent(spec, journal, logs) for spec in options.agents]
        if len({agent.name for agent in agents}) < len(agents):
            raise ConfigError("two agents have one name; give one another name: --agent NAME=MODULE:FUNCTION")
        for agent in agents:
            stack.push_async_callback(agent.stop)
        server = mcp_server(agents, __version__)
        if options.http is None:
            await serve_stdio(server)
        else:
            await serve_http(server, options.host, options.http, token, _ready, proxies=options.proxy_headers)


def _ready(address: str) -> None:
    complain(f"serving at {address}")


def _agent(spec: str, journal: StoredJournal, logs: Sequence[Observer]) -> DurableAgent:
    """Return the agent of `[NAME=]MODULE:FUNCTION`. Raises ConfigError."""
    name, equals, target = spec.partition("=")
    target = target if equals else spec
    agent: Any = made(target, journal, logs)
    if not isinstance(agent, Agent):
        raise ConfigError(f"agent {target!r} is a {type(agent).__name__}; an MCP client talks to an Agent")
    title = name if equals else agent.name or target.rpartition(":")[2]
    about = f"Give a task to the agent {title}. It may ask a person before it acts."
    return DurableAgent(agent, title, about)
