"""Options of trust: `--trust`, which all commands in a project take, and those of `orchestrator trust`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.mcp_option import McpEnv
from orchestrator.cli.option import Json

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Trust the configuration files, runs and MCP tools of this project, for this command only.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class TrustOptions:
    """The command line of `trust`."""

    files: Annotated[
        tuple[Path, ...],
        typer.Argument(
            metavar="FILE",
            help="Configuration files. Default: orchestrator.toml and ralph.toml of this folder.",
            show_default=False,
        ),
    ] = ()
    mcp: Annotated[
        tuple[str, ...],
        typer.Option(
            "--mcp",
            metavar="[NAME=]COMMAND",
            help="An MCP server, as for `run --mcp`; the name does not count. Repeatable.",
        ),
    ] = ()
    mcp_env: McpEnv = ()
    listed: Annotated[bool, typer.Option("--list", help="List everything that is trusted.")] = False
    revoked: Annotated[
        bool, typer.Option("--revoke", help="Trust the named files and servers no longer.")
    ] = False
    json: Json = False
