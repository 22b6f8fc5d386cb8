"""The command line of `orchestrator console`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from orchestrator.cli import option as given


@dataclass(frozen=True, kw_only=True)
class ConsoleOptions:
    """The command line of `console`."""

    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="The address to listen at. The default is this machine only; another one needs a token.",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="N", help="The port; 0 picks a free one.")] = 8484
    operate: Annotated[
        bool, typer.Option("--operate", help="Allow the token's holder to answer questions and to stop runs.")
    ] = False
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with the token. Default: a new one, where one is needed.",
        ),
    ] = None
    content: Annotated[
        Literal["never", "ask", "always"],
        typer.Option(help="Whether messages, arguments and results are shown; `ask`: on request."),
    ] = "ask"
    allow_host: Annotated[
        tuple[str, ...],
        typer.Option(metavar="NAME", help="Another host name that browsers use for the console. Repeatable."),
    ] = ()
    journal: given.Journal = None
