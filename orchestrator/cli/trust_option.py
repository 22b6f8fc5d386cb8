"""Options of trust: `--trust`, which all commands in a project take, and those of `orchestrator trust`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Trust the configuration files, runs and MCP tools of this project, for this command only.",
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE",
        help="Configuration files. Default: orchestrator.toml and ralph.toml of this folder.",
        show_default=False,
    ),
]
Servers = Annotated[
    list[str] | None,
    typer.Option("--mcp", metavar="[NAME=]COMMAND", help="An MCP server, as for `run --mcp`. Repeatable."),
]
List = Annotated[bool, typer.Option("--list", help="List everything that is trusted.")]
Revoke = Annotated[bool, typer.Option("--revoke", help="Trust the named files and servers no longer.")]
