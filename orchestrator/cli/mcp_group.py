"""The commands of the group `mcp`. Their bodies are modules of the folder of that name, imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from orchestrator.cli import option as given
from orchestrator.cli.spread import spread

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
    from orchestrator.cli.mcp.serve import serve_agents

    return serve_agents(options)
