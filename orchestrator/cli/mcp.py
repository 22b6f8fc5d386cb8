"""`orchestrator mcp serve`: offer agents as MCP tools over stdio or HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from orchestrator.cli import option as given
from orchestrator.cli.exit import Exit, beginning
from orchestrator.cli.fleet import made
from orchestrator.cli.loop import on_signal, run_async
from orchestrator.cli.output import complain, shown
from orchestrator.cli.run import logging_to
from orchestrator.cli.runs.store import journal_file
from orchestrator.cli.spread import spread
from orchestrator.cli.trust.consent import project_settings
from orchestrator.engines.served_agent import DurableAgent
from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.journal.opening import journal_at
from orchestrator.kernel.fact import Observer
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.version import __version__
from orchestrator.web.access import checked_token, is_loopback

group = typer.Typer(help="Agents for MCP clients.", rich_markup_mode=None)


@group.callback()
def mcp_group() -> None:
    """Agents as tools for clients of the Model Context Protocol."""


@dataclass(frozen=True, kw_only=True)
class McpServeOptions:
    """The command line of `mcp serve`."""

    agents: Annotated[
        tuple[str, ...],
        typer.Option(
            "--agent",
            metavar="[NAME=]MODULE:FUNCTION",
            help="A function of the journal, or of the journal and the observers, that returns an agent; repeatable.",
        ),
    ]
    http: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="Serve streamable HTTP at this port; 0 picks a free one. Default: stdio."
        ),
    ] = None
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="The address to listen at. The default is this machine only."),
    ] = "127.0.0.1"
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with the bearer token that clients must show, of at least 16 characters.",
        ),
    ] = None
    proxy_headers: given.ProxyHeaders = ()
    log: given.Log = None
    journal: given.Journal = None


@group.command()
@spread
def serve(options: McpServeOptions) -> int:
    """Offer agents as tools of an MCP server, over stdio or HTTP.

    For example `orchestrator mcp serve --agent my_agents:support`. A call of a tool starts a durable run and returns
    its answer. A question of the run is an elicitation of the client: `input_required` for clients of 2026-07-28. A
    client that repeats the call after a crash of this process continues the same run.
    """
    token = None
    if options.token_env is not None:
        if not (token := os.environ.get(options.token_env)):
            raise ConfigError(
                f"--token-env {shown(options.token_env, 80)}: no such environment variable is set"
            )
        token = checked_token(token, f"the environment variable {options.token_env}")
    elif options.http is not None and not is_loopback(options.host):
        raise ConfigError(
            f"--host {shown(options.host, 80)} is not this machine only: give --token-env NAME, so that clients show "
            "a token"
        )
    with logging_to(options.log, project_settings().log_level) as logs:
        return run_async(_serve(options, token, logs))


async def _serve(options: McpServeOptions, token: str | None, logs: Sequence[Observer]) -> int:
    """Serve until the client closes its end, or a signal."""
    serving = asyncio.ensure_future(_served(options, token, logs))
    with on_signal(serving.cancel, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
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
        agents: list[DurableAgent] = []
        for spec in options.agents:
            name, equals, target = spec.partition("=")
            target = target if equals else spec
            agent: Any = made(target, journal, logs)
            if not isinstance(agent, Agent):
                raise ConfigError(
                    f"agent {target!r} is a {type(agent).__name__}; an MCP client talks to an Agent"
                )
            title = name if equals else agent.name or target.rpartition(":")[2]
            about = f"Give a task to the agent {title}. It may ask a person before it acts."
            agents.append(DurableAgent(agent, title, about))
        if len({one.name for one in agents}) < len(agents):
            raise ConfigError("two agents have one name; give one another name: --agent NAME=MODULE:FUNCTION")
        for one in agents:
            stack.push_async_callback(one.stop)
        server = mcp_server(agents, __version__)
        if options.http is None:
            await serve_stdio(server)
        else:
            await serve_http(
                server,
                options.host,
                options.http,
                token,
                lambda address: complain(f"serving at {address}"),
                proxies=options.proxy_headers,
            )
